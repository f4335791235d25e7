"""Record what the model was at stages of its training: runs/stages.

    python scripts/stages.py RUN CORPUS STEP...

RUN is the training run behind checkpoints/nlm, with the checkpoints that `keep_doublings` left. Step 0 is the model
before its training; the last stage is the shipped checkpoint itself. CORPUS is the corpus that it was trained on: its
reporting half is scored, and its training text says which words are made up. Each stage takes some minutes and is kept
in RUN, so an interrupted recording goes on where it was. No text is recorded.
"""

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from nlm_core import NLM, UserError, load_checkpoint
from nlm_core.ablate import ablate, single_heads
from nlm_core.config import TrainConfig
from nlm_core.data import Corpus
from nlm_core.embeddings import OTHERS, ids_of, words_by_group
from nlm_core.errors import one_line_errors
from nlm_core.evaluate import evaluate_generation
from nlm_core.files import digest_of, project_root, read_json, sha256_of, shown, write_json, written_whole
from nlm_core.records import write_record
from nlm_core.runfolder import RunFolder
from nlm_core.score import score
from nlm_core.source import beginning_of, text_to_score, words_and_copies
from nlm_core.stages import ARRAYS
from nlm_core.stats import sums_by
from nlm_core.tokenizer import Tokenizer

ABLATION_TOKENS = 20_000
SEEDS = range(4)  # of the small generation matrix: ten prompts, four temperatures
NEW_TOKENS = 200
WORDS = [word for word, _ in words_by_group()] + OTHERS.split()


class Recorder:
    """Measures a model at one stage; the same texts, prompts and seeds for all stages."""

    def __init__(self, corpus: str, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        source = text_to_score(corpus, "report", tokenizer)
        self.stories, self.fit = list(source.stories), source.fit
        self.ablated = beginning_of(source, tokenizer, ABLATION_TOKENS)
        self.known, self.copies = words_and_copies(corpus)
        self.word_ids = ids_of(tokenizer, WORDS)
        # What was measured in another way or on another text is not mixed with it.
        what = (Corpus.open(corpus).manifest, ABLATION_TOKENS, list(SEEDS), NEW_TOKENS, WORDS)
        self.key = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]

    def measure(self, model: NLM) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays of a stage, and its figures."""
        scored = score(model, self.tokenizer, self.stories, self.fit, progress=True)
        losses = ablate(model, self.ablated.ids, single_heads(model.config), progress=True)
        texts = evaluate_generation(
            model,
            self.tokenizer,
            seeds=SEEDS,
            max_new_tokens=NEW_TOKENS,
            known=self.known,
            copies=self.copies,
            progress=True,
        )
        count = len(self.stories)
        deltas = losses.deltas.sum(axis=0) / losses.targets.sum()
        arrays = {
            "pos_emb": model.pos_emb.detach().numpy().astype(np.float16),
            "vectors": model.token_emb.detach().numpy()[self.word_ids].astype(np.float16),
            "deltas": deltas.reshape(model.config.n_layers, -1).astype(np.float32),
            "nats": sums_by(scored.stories, scored.nats, count),
            "story_tokens": sums_by(scored.stories, np.ones(len(scored.nats)), count),
        }
        return arrays, {"losses": scored.summary(), "generation": texts.summary()}


def model_at(run: Path, step: int, shipped: dict[str, Any]) -> tuple[str, NLM]:
    """The model after a step of the run, the shipped one where it is the last; and what tells it from all others."""
    if step == 0:
        seed = TrainConfig.from_dict(read_json(run / "config.json")["train"]).seed
        torch.manual_seed(seed)  # as a run begins
        return f"fresh-{seed}", NLM(shipped["config"]).eval()
    folder = RunFolder(run).step_folder(step)
    if step != shipped["step"] and not folder.is_dir():
        raise UserError(f"{shown(run)} has kept no checkpoint of step {step:,}")
    checkpoint = shipped if step == shipped["step"] else load_checkpoint(folder)
    return checkpoint["sha256"][:16], NLM.from_params(checkpoint["config"], checkpoint["params"])


def stage(
    run: Path, step: int, checkpoint: dict[str, Any], recorder: Recorder
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Measure a stage, or take what was measured before."""
    name, model = model_at(run, step, checkpoint)
    file = run / "stages" / f"{step:08d}-{name}-{recorder.key}.safetensors"
    if file.exists() and file.with_suffix(".json").exists():
        kept = read_json(file.with_suffix(".json"))
        if kept["arrays"] == sha256_of(file) and kept["sha256"] == digest_of(kept):
            return safetensors.numpy.load_file(file), kept["figures"]
    print(f"step {step:,}", flush=True)
    arrays, figures = recorder.measure(model)
    file.parent.mkdir(exist_ok=True)
    with written_whole(file) as out:
        out.write(safetensors.numpy.save(arrays))
    content = {"arrays": sha256_of(file), "figures": figures}
    write_json(file.with_suffix(".json"), {**content, "sha256": digest_of(content)})
    return arrays, figures


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("corpus")
    parser.add_argument("steps", type=int, nargs="+")
    arguments = parser.parse_args(words)
    run, steps = arguments.run, sorted(set(arguments.steps))
    checkpoint = load_checkpoint(project_root() / "checkpoints" / "nlm")
    config = read_json(run / "config.json")
    if checkpoint["step"] != steps[-1]:
        raise UserError(f"the last stage has to be the shipped checkpoint's step, {checkpoint['step']:,}")
    corpus = Corpus.open(arguments.corpus)
    if corpus.manifest["maps"]["train"]["sha256"] != config["data"]["train"]["sha256"]:
        raise UserError(f"{shown(run)} was not trained on the corpus {arguments.corpus!r}")
    recorder = Recorder(arguments.corpus, checkpoint["tokenizer"])
    found, figures = zip(*(stage(run, step, checkpoint, recorder) for step in steps), strict=True)
    folder = project_root() / "runs" / "stages"
    folder.mkdir(parents=True, exist_ok=True)
    with written_whole(folder / ARRAYS) as out:
        names = ("pos_emb", "vectors", "deltas")
        out.write(safetensors.numpy.save({name: np.stack([arrays[name] for arrays in found]) for name in names}))
    per_step = config["train"]["batch_size"] * config["model"]["context_length"]
    write_record(
        folder,
        command=["python", "scripts/stages.py", "RUN", arguments.corpus, *map(str, steps)],
        checkpoint=checkpoint["sha256"],
        data={
            "scored": "the reporting half of the validation text; units are its stories, figures are sums of nats",
            "ablated": f"its first stories, of {len(recorder.ablated.ids):,} tokens",
            **{part: corpus.manifest["maps"][part] for part in ("train", "report")},
        },
        units={
            "tokens": found[-1]["story_tokens"],
            **{f"step {step}": arrays["nats"] for step, arrays in zip(steps, found, strict=True)},
        },
        arrays=sha256_of(folder / ARRAYS),
        words=WORDS,
        stages=[{"step": step, "tokens": step * per_step, **some} for step, some in zip(steps, figures, strict=True)],
    )


if __name__ == "__main__":
    with one_line_errors():
        main()
