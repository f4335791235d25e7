"""A checkpoint is a folder of safetensors and JSON; nothing in it is ever unpickled.

    model.safetensors       the parameters (float16 in a release, float32 where training goes on)
    tokenizer.json          the tokenizer that the ids belong to
    config.json             shape, step, metrics, the sha256 of each file, and a sha256 over all of that
    optimizer.safetensors   only where training goes on: the optimizers' state

The last hash names the checkpoint: it changes with any bit of the weights, the tokenizer or the configuration.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import torch

from nlm_core.config import ModelConfig
from nlm_core.errors import UserError
from nlm_core.files import digest_of, folder_written_whole, project_root, read_json, sha256_of, shown, write_json
from nlm_core.model import NLM
from nlm_core.tokenizer import Tokenizer

FORMAT = "nlm-checkpoint-1"
WEIGHTS, OPTIMIZER, TOKENIZER, CONFIG = "model.safetensors", "optimizer.safetensors", "tokenizer.json", "config.json"
STEPS = "checkpoints"  # the folder of a run that holds step-00000250, step-00000500, ...


def save_checkpoint(
    path: str | Path,
    model: NLM,
    tokenizer: Tokenizer,
    *,
    step: int = 0,
    metrics: dict[str, Any] | None = None,
    dtype: str = "float16",
    optimizer: dict[str, np.ndarray] | None = None,
    training: dict[str, Any] | None = None,
) -> Path:
    """Write a checkpoint folder, whole or not at all.

    A checkpoint already there is replaced, with all that its folder holds; a folder of anything else never is.

    Args:
        path: the folder.
        model: its parameters are written in `dtype`, "float16" or "float32".
        tokenizer: its vocabulary must be the model's.
        step: training steps done.
        metrics: losses and the like, for people to read.
        optimizer: arrays that training needs to go on.
        training: numbers that training needs to go on.

    Raises:
        UserError: the folder holds something else, the tokenizer is not the model's, or a parameter is not finite.
    """
    path = Path(path)
    if dtype not in ("float16", "float32"):
        raise UserError(f"parameters are saved as float16 or float32, not {dtype!r}")
    if path.is_dir() and any(path.iterdir()):
        try:
            _read_config(path)
        except UserError as error:
            raise UserError(f"{error}; it stays as it is, save to another folder") from None
    if tokenizer.vocab_size != model.config.vocab_size:
        raise UserError(f"the tokenizer has {tokenizer.vocab_size} ids, the model {model.config.vocab_size}")
    # safetensors writes memory as it lies: a matrix must lie row by row.
    with np.errstate(over="ignore"):
        params = {
            name: value.detach().cpu().numpy().astype(dtype, order="C") for name, value in model.state_dict().items()
        }
    for name, value in params.items():
        if not np.isfinite(value).all():
            raise UserError(f"parameter {name} holds values that are not finite in {dtype}: nothing was written")
    with folder_written_whole(path) as folder:
        (folder / WEIGHTS).write_bytes(safetensors.numpy.save(params))
        if optimizer is not None:
            state = {name: np.asarray(value, order="C") for name, value in optimizer.items()}
            (folder / OPTIMIZER).write_bytes(safetensors.numpy.save(state))
        tokenizer.save(folder / TOKENIZER)
        content = {
            "format": FORMAT,
            "model": model.config.to_dict(),
            "step": step,
            "metrics": metrics or {},
            "training": training or {},
            "files": {file.name: sha256_of(file) for file in sorted(folder.iterdir())},
        }
        write_json(folder / CONFIG, {**content, "sha256": digest_of(content)})
    return path


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        return safetensors.numpy.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{shown(path)} is not a whole safetensors file ({error})") from None


def _read_config(folder: Path) -> dict[str, Any]:
    if not (folder / CONFIG).is_file():
        raise UserError(f"{shown(folder)} is not an nlm checkpoint: it has no {CONFIG}")
    content = read_json(folder / CONFIG)
    if "budget" in content:
        raise UserError(f"the run {shown(folder)} has no checkpoint yet")
    if content.get("format") != FORMAT:
        raise UserError(f"{shown(folder / CONFIG)} does not belong to an nlm checkpoint ({FORMAT})")
    return content


def _read_verified(folder: Path) -> dict[str, Any]:
    """Read config.json and check every hash in it."""
    content = _read_config(folder)
    if content.get("sha256") != digest_of(content):
        raise UserError(f"{shown(folder / CONFIG)} is damaged or was edited: its hash differs")
    files = content.get("files")
    if not isinstance(files, dict) or not {WEIGHTS, TOKENIZER} <= files.keys():
        raise UserError(f"{shown(folder / CONFIG)} does not list the checkpoint's files")
    for name, expected in files.items():
        if not (folder / name).is_file():
            raise UserError(f"{shown(folder / name)} is missing")
        if sha256_of(folder / name) != expected:
            raise UserError(f"{shown(folder / name)} is damaged: its hash differs from the one in {CONFIG}")
    return content


def default_checkpoint() -> Path:
    """$NLM_CHECKPOINT, else the one that ships with the project."""
    return Path(os.environ.get("NLM_CHECKPOINT") or project_root() / "checkpoints" / "nlm")


def load_checkpoint(path: str | Path | None = None, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Read a checkpoint folder, or the newest checkpoint of a training run's folder.

    Args:
        path: the folder; None means $NLM_CHECKPOINT, else the shipped one.
        say: told when a run's newest checkpoint is damaged and the one before it is taken.

    Returns:
        `params` (float32 numpy arrays by name: `token_emb` (V, C), `pos_emb` (T, C) where positions are learned, ...),
        `config` (ModelConfig),
        `step`, `metrics`, `training`, `tokenizer` (Tokenizer), `sha256`, and `path`.

    Raises:
        UserError: missing, foreign, truncated, altered, or of another shape than its configuration says.
    """
    path = default_checkpoint() if path is None else Path(path)
    if not path.is_dir():
        raise UserError(f"{shown(path)} is not a folder with a checkpoint")
    if (path / STEPS).is_dir():
        return _newest(path, say)
    content = _read_verified(path)
    if missing := {"model", "step", "metrics", "training"} - content.keys():
        raise UserError(f"{shown(path / CONFIG)} lacks {', '.join(sorted(missing))}")
    config = ModelConfig.from_dict(content["model"])
    params = {name: value.astype(np.float32) for name, value in _read_arrays(path / WEIGHTS).items()}
    with torch.device("meta"):
        expected = {name: tuple(value.shape) for name, value in NLM(config).state_dict().items()}
    found = {name: value.shape for name, value in params.items()}
    if found != expected:
        name = next(name for name in {**expected, **found} if expected.get(name) != found.get(name))
        raise UserError(
            f"{shown(path / WEIGHTS)} does not fit its {CONFIG}: {name} is {found.get(name, 'missing')} "
            f"instead of {expected.get(name, 'absent')}"
        )
    return {
        "params": params,
        "config": config,
        "step": content["step"],
        "metrics": content["metrics"],
        "training": content["training"],
        "tokenizer": Tokenizer.load(path / TOKENIZER),
        "sha256": content["sha256"],
        "path": path,
    }


def load_optimizer(checkpoint: dict[str, Any]) -> dict[str, np.ndarray]:
    """Read the optimizers' state of a checkpoint that `load_checkpoint` returned and verified."""
    path = checkpoint["path"] / OPTIMIZER
    if not path.is_file():
        raise UserError(f"{shown(checkpoint['path'])} holds a finished model; training can't go on from it")
    return _read_arrays(path)


def step_folders(run: Path) -> list[Path]:
    """A run's own checkpoints, oldest first; copies that a person made under other names are left alone."""
    if not (run / STEPS).exists():
        return []
    return sorted(path for path in (run / STEPS).iterdir() if re.fullmatch(r"step-\d{8}", path.name))


def _newest(run: Path, say: Callable[[str], None]) -> dict[str, Any]:
    folders = step_folders(run)
    if not folders:
        raise UserError(f"the run {shown(run)} has no checkpoint yet")
    for folder in reversed(folders):
        try:
            return load_checkpoint(folder)
        except UserError as error:
            say(str(error) if folder == folders[0] else f"{error}; taking the checkpoint before it")
    raise UserError(f"all {len(folders)} checkpoints in {shown(run / STEPS)} are damaged")
