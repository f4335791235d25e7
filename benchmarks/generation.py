"""Rows: writing 200 tokens for one prompt, and for 40 prompts at once, beside `generate` of transformers.

Both sides draw from softmax(logits / 0.8) over the whole vocabulary and write exactly as many tokens. They draw by
different means, so what is shown to agree is the text that each writes when it always takes the likeliest token.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.inputs import Inputs
from benchmarks.measure import Candidate, Goal, Side, alternate, best_of, require_agreement, row, say, timed
from benchmarks.peers import ATTENTION, forbid_silence, gpt2_of, require
from benchmarks.profiles import writing_profile
from nlm_core.decode import decoder_for
from nlm_core.generate import begin, generate, write
from nlm_core.hardware import autocast
from nlm_core.model import NLM
from nlm_core.sampling import Sampling

ONE, MANY = "generation, one prompt", "generation, {} prompts at once"
GOALS = {ONE: Goal(2, 4), MANY: Goal(2.5, 5)}
TEMPERATURE = 0.8
# Where the two sides take different tokens, how far apart the two logits may be by the float32 model: a tie.
TIES = {"float32": 1e-3, "bfloat16": 0.5}


@dataclass(frozen=True)
class PeerSettings:
    """How transformers generates.

    Attributes:
        precision: "float32" or "bfloat16" (autocast).
        attention: "sdpa" or "eager".
        cache: "dynamic" (it grows) or "static" (of full length from the start, which allows to compile).
        compile: the decoding step by torch.compile.
    """

    precision: str
    attention: str
    cache: str
    compile: bool


class PeerGenerator:
    """transformers' GPT-2 and the prompts, as it wants them: padded on the left."""

    def __init__(self, model: NLM, prompts: Sequence[Sequence[int]], new_tokens: int, settings: PeerSettings):
        transformers = require("transformers")
        self.gpt2, self.settings = gpt2_of(model, settings.attention), settings
        longest = max(map(len, prompts))
        self.ids = torch.tensor([[0] * (longest - len(ids)) + list(ids) for ids in prompts])  # (B, T)
        self.mask = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts])
        self.options: dict[str, Any] = {"max_new_tokens": new_tokens, "pad_token_id": 0}
        if settings.cache == "static":
            self.options["cache_implementation"] = "static"
        if settings.compile:
            forbid_silence()
            compile_config = transformers.CompileConfig(mode="default", dynamic=False)
            compile_config._compile_all_devices = True  # without it, transformers compiles on accelerators only
            self.options["compile_config"] = compile_config
        else:
            self.options["disable_compile"] = True

    def write(self, **sampling: Any) -> Tensor:
        """Return the new tokens: (B, new_tokens)."""
        with torch.inference_mode(), autocast(torch.device("cpu"), self.settings.precision):
            written = self.gpt2.generate(input_ids=self.ids, attention_mask=self.mask, **self.options, **sampling)
        return written[:, self.ids.shape[1] :]

    def greedy(self) -> Tensor:
        return self.write(do_sample=False)

    def sample(self, seed: int) -> Tensor:
        torch.manual_seed(seed)
        return self.write(do_sample=True, temperature=TEMPERATURE, top_k=0, top_p=1.0)


@torch.inference_mode()
def largest_gap(model: NLM, prompts: Sequence[Sequence[int]], ours: Sequence[Sequence[int]], theirs: Tensor) -> float:
    """Where two greedy texts part, the difference of the two tokens' logits by our model; the largest of all rows.

    Args:
        model: in float32.
        prompts: their ids.
        ours, theirs: the new tokens.
    """
    gap = 0.0
    for prompt, a, b in zip(prompts, ours, theirs.tolist(), strict=True):
        if len(a) != len(b):
            return float("inf")
        at = next((place for place, pair in enumerate(zip(a, b, strict=True)) if pair[0] != pair[1]), None)
        if at is not None:
            logits = model(torch.tensor([[*prompt, *a[:at]]]))[0, -1]
            gap = max(gap, (logits[a[at]] - logits[b[at]]).abs().item())
    return gap


def measure_one(inputs: Inputs, name: str, goal: Goal, openings: list[str]) -> dict[str, Any]:
    name = name.format(len(openings))
    say(name)
    model, tokenizer = inputs.model(), inputs.tokenizer
    prompts = [tokenizer.encode(opening) for opening in openings]
    texts = begin(model, tokenizer, openings)
    for _ in write(model, tokenizer, texts, inputs.new_tokens, Sampling(temperature=0)):
        pass
    greedy = [text.ids[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]
    agreements: dict[PeerSettings, Any] = {}
    generators: dict[PeerSettings, PeerGenerator] = {}

    def build(settings: PeerSettings) -> Callable[[], Callable[[], Tensor]]:
        def fresh() -> Callable[[], Tensor]:
            peer = PeerGenerator(model, prompts, inputs.new_tokens, settings)
            theirs = peer.greedy()
            gap = largest_gap(model, prompts, greedy, theirs)
            same = sum(a == b for a, b in zip(greedy, theirs.tolist(), strict=True))
            found = {"logits where two greedy texts part": (gap, TIES[settings.precision])}
            agreements[settings] = {
                "equal greedy texts": f"{same} of {len(greedy)}",
                **require_agreement("the greedy texts", found),
            }
            generators[settings] = peer
            return lambda: peer.sample(0)

        return fresh

    candidates = [
        Candidate(asdict(settings), build(settings))
        for cache, compiled in [("dynamic", False), ("static", False)] + [("static", True)] * inputs.compile
        for attention in ATTENTION
        for precision in ("float32", "bfloat16")
        for settings in [PeerSettings(precision, attention, cache, compiled)]
    ]
    best, tried = best_of(candidates, inputs.trials)
    settings = PeerSettings(**best.settings)
    peer = generators[settings]

    def our_texts(number: int) -> list[str]:
        return generate(model, tokenizer, openings, inputs.new_tokens, TEMPERATURE, seed=number)

    our_texts(0)
    peer.sample(0)
    say("    in turn")
    times = alternate(timed(our_texts), timed(peer.sample), inputs.rounds)
    # In computation; the weights lie in memory as float16 where each is exactly such a number.
    weights = "float16 weights" if getattr(decoder_for(model, 1), "f16", 0) else "float32 weights"
    return row(
        name,
        goal,
        (Side("nlm", {"precision": "float32", "weights": weights}), times[0]),
        (Side("transformers", asdict(settings)), times[1]),
        len(openings) * inputs.new_tokens,
        "tokens/s",
        agreements[settings],
        prompts=len(openings),
        new_tokens=inputs.new_tokens,
        peer_tried=tried,
        profile=writing_profile(lambda: our_texts(0)),
    )


def measure(inputs: Inputs) -> list[dict[str, Any]]:
    return [
        measure_one(inputs, ONE, GOALS[ONE], ["Once upon a time"]),
        measure_one(inputs, MANY, GOALS[MANY], inputs.openings(inputs.prompts)),
    ]
