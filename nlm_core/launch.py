"""From what a person asked for to a `Trainer`: a new run from a preset, or an old run as its folder remembers it.

Where several processes train together, the first one reads what was asked for and what the folder holds, and tells the
others, who need the corpus but not the folder.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nlm_core.checkpoint import load_checkpoint, step_folders
from nlm_core.config import PRESETS, Budget, ModelConfig, TrainConfig, preset
from nlm_core.data import Corpus, the_corpus
from nlm_core.distributed import Team
from nlm_core.errors import UserError
from nlm_core.files import project_root, shown
from nlm_core.hardware import pick_device, pick_precision
from nlm_core.runfolder import MAY_CHANGE, RunFolder
from nlm_core.train import Trainer


def new_run(
    preset_name: str,
    data: str | None,
    out: Path | None,
    overrides: dict[str, Any],
    budget: Budget | None,
    say: Callable[[str], None] = print,
    team: Team | None = None,
) -> Trainer:
    """Make a trainer for a folder without a run in it.

    Raises:
        UserError: the folder is taken, the corpus is missing, or a setting is not allowed.
    """
    return _trainer(lambda: _fresh(preset_name, data, out, overrides, budget), say, team or Team())


def resume_run(
    out: Path,
    data: str | None,
    overrides: dict[str, Any],
    budget: Budget | None,
    say: Callable[[str], None] = print,
    team: Team | None = None,
) -> Trainer:
    """Make a trainer that goes on with the run in `out`, with the settings that it began with.

    Raises:
        UserError: there is no run, its text or tokenizer has changed, or a setting would change that may not.
    """
    return _trainer(lambda: _remembered(RunFolder(out), data, overrides, budget), say, team or Team())


def complete_run(
    preset_name: str,
    data: str,
    out: Path,
    overrides: dict[str, Any],
    budget: Budget,
    say: Callable[[str], None] = print,
) -> Path | None:
    """Start a run, or go on with it, or leave it as it is, whichever is needed for it to be complete.

    Args:
        preset_name, data, out, overrides, budget: as for `new_run`.
        say: told what a person should know.

    Returns:
        The folder of its last checkpoint; None if a signal ended the run early.

    Raises:
        UserError: the folder holds a run of other settings or another text, or the budget is in minutes.
    """
    folder = RunFolder(out)
    if budget.unit == "minutes":
        raise UserError("a run to be completed needs a budget in steps or tokens: minutes are another number each time")
    if folder.started():
        corpus, before = Corpus.open(the_corpus(data)), folder.read_config()
        model, config = preset(preset_name, corpus.tokenizer.vocab_size, overrides)
        tokens_per_step = config.batch_size * model.context_length
        asked = {"steps": budget.steps(tokens_per_step), "text": corpus.manifest["maps"]["train"]["sha256"]}
        asked |= {**model.to_dict(), **config.to_dict()}
        try:
            has = {"steps": before["budget"]["steps"], "text": before["data"]["train"]["sha256"]}
            has |= {**before["model"], **before["train"]}
        except (KeyError, TypeError):
            raise UserError(f"{shown(folder.config_file)} is not the record of a run") from None
        settled = ("precision", *MAY_CHANGE)  # "auto" became what it means here
        if changed := [key for key in asked if key not in settled and has.get(key, asked[key]) != asked[key]]:
            raise UserError(
                f"{shown(folder.path)} holds a run of another {changed[0]}: {has[changed[0]]!r} and not "
                f"{asked[changed[0]]!r}; move it away first"
            )
        if step_folders(folder.path) and load_checkpoint(folder.path)["step"] == asked["steps"]:
            return step_folders(folder.path)[-1]
        trainer = resume_run(folder.path, data, {}, budget, say)
    else:
        trainer = new_run(preset_name, data, folder.path, overrides, budget, say)
    last = trainer.run()
    return last if trainer.stop_signal is None else None


def _fresh(
    preset_name: str, data: str | None, out: Path | None, overrides: dict[str, Any], budget: Budget | None
) -> dict[str, Any]:
    """A `Trainer`'s arguments for a new run."""
    name = the_corpus(data)
    folder = RunFolder(out or project_root() / "runs" / f"{preset_name}-{name}")
    if folder.started():
        raise UserError(
            f"{shown(folder.path)} already holds a run; add --resume to go on with it, or give another --out"
        )
    if not folder.unused():
        raise UserError(f"{shown(folder.path)} is there already and is not a run; give another --out")
    corpus = Corpus.open(name)
    model_config, config = preset(preset_name, corpus.tokenizer.vocab_size, overrides)
    return {
        "folder": folder,
        "corpus": corpus,
        "model_config": model_config,
        "config": config,
        "budget": budget or PRESETS[preset_name].budget,
    }


def _remembered(
    folder: RunFolder, data: str | None, overrides: dict[str, Any], budget: Budget | None
) -> dict[str, Any]:
    """A `Trainer`'s arguments for an old run."""
    if not folder.started():
        raise UserError(f"there is no run to resume in {shown(folder.path)}; leave out --resume to start one")
    before = folder.read_config()
    try:
        model_config, config = ModelConfig.from_dict(before["model"]), TrainConfig.from_dict(before["train"])
        text, settings = before["data"], before["model"] | before["train"]
        name, tokenizer, train = text["name"], text["tokenizer"]["sha256"], text["train"]["sha256"]
        # A budget in minutes that became steps stays those steps.
        steps = before["budget"]["steps"]
        old_budget = Budget(before["budget"]["unit"], before["budget"]["amount"])
        old_budget = old_budget if steps is None else Budget("steps", steps)
        if not isinstance(before["machine"], dict) or not isinstance(before.get("resumed", []), list):
            raise TypeError
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{shown(folder.config_file)} is not the record of a run") from None
    for key, value in overrides.items():
        if key not in settings:
            raise UserError(f"{key!r} is not a setting; there are: {', '.join(sorted(settings))}")
        if key not in MAY_CHANGE and value != settings[key]:
            raise UserError(
                f"{key} was {settings[key]!r} when this run began and can't become {value!r}; on resuming, only the "
                f"budget, {', '.join(MAY_CHANGE)} may change. Start a new run for anything else"
            )
    if data is not None and data != name:
        raise UserError(f"this run reads the corpus {name!r}; it can't go on with {data!r}")
    corpus = Corpus.open(the_corpus(name))
    if corpus.tokenizer.sha256 != tokenizer:
        raise UserError(f"corpus {name!r} was prepared with another tokenizer since this run began")
    if corpus.manifest["maps"]["train"]["sha256"] != train:
        raise UserError(f"the training text of corpus {name!r} has changed since this run began")
    changes = {key: value for key, value in overrides.items() if key in MAY_CHANGE}
    config = TrainConfig.from_dict({**config.to_dict(), **changes})
    return {
        "folder": folder,
        "corpus": corpus,
        "model_config": model_config,
        "config": config,
        "budget": budget or old_budget,
        "resume": True,
    }


def _trainer(asked_for: Callable[[], dict[str, Any]], say: Callable[[str], None], team: Team) -> Trainer:
    """Make the trainer of what the first process was asked for, in each process."""
    run = team.attempt(lambda: asked_for() if team.first else {})
    told = team.broadcast(lambda: _for_others(run))
    return team.attempt(lambda: Trainer(**(run or _as_told(told)), say=say, team=team))


def _for_others(run: dict[str, Any]) -> dict[str, Any]:
    """The same with the corpus's name and hashes in place of its text, and nothing left for each machine to choose."""
    config, corpus = run["config"], run["corpus"]
    device = pick_device(config.device)
    config = dataclasses.replace(config, device=device.type, precision=pick_precision(config.precision, device))
    return {**run, "config": config, "corpus": (corpus.manifest["name"], _hashes(corpus))}


def _as_told(run: dict[str, Any]) -> dict[str, Any]:
    name, hashes = run["corpus"]
    corpus = Corpus.open(the_corpus(name))
    if _hashes(corpus) != hashes:
        raise UserError(f"corpus {name!r} is another one here than in the first process; copy its data folder")
    return {**run, "corpus": corpus}


def _hashes(corpus: Corpus) -> tuple[str, str]:
    return corpus.tokenizer.sha256, corpus.manifest["maps"]["train"]["sha256"]
