"""Stages of the book's training: what `scripts/stages.py` recorded in `runs/stages`, for the chapters to read."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.numpy
from jaxtyping import Float, Int

from nlm_core.errors import UserError
from nlm_core.files import project_root, readable_file, sha256_of, shown
from nlm_core.records import read_record

ARRAYS = "stages.safetensors"


@dataclass(frozen=True)
class Stages:
    """S moments of one training, from before its first step to the checkpoint that ships.

    Attributes:
        steps: (S,) steps done.
        tokens: (S,) training tokens read, repeated ones counted again.
        pos_emb: (S, T, C) the position tables, rounded to float16.
        words: the N words whose vectors were kept.
        vectors: (S, N, C) their rows of the token table, rounded to float16.
        deltas: (S, L, H) what each head is worth: the rise of the loss without it (zero ablation), in nats per token.
        figures: for each stage, losses by token class and the metrics of generated texts.
        nats: (stories, S) sums of nats over each story of the reporting half.
        story_tokens: (stories,) how many targets each story has.
        results: the whole record, with its command and its hashes.
    """

    steps: Int[np.ndarray, " S"]
    tokens: Int[np.ndarray, " S"]
    pos_emb: Float[np.ndarray, "S T C"]
    words: list[str]
    vectors: Float[np.ndarray, "S N C"]
    deltas: Float[np.ndarray, "S L H"]
    figures: list[dict[str, Any]]
    nats: Float[np.ndarray, "stories S"]
    story_tokens: Float[np.ndarray, " stories"]
    results: dict[str, Any]


def read_stages(name: str = "stages") -> Stages:
    """Read `runs/NAME`.

    Raises:
        UserError: there is no such record, or it is not whole.
    """
    record = read_record(name)
    file = readable_file(project_root() / "runs" / name / ARRAYS)
    if record.results.get("arrays") != sha256_of(file):
        raise UserError(f"{shown(file)} is damaged: it is not what the record beside it belongs to")
    arrays = {key: value.astype(np.float32) for key, value in safetensors.numpy.load_file(file).items()}
    figures = record.results["stages"]
    return Stages(
        steps=np.array([stage["step"] for stage in figures]),
        tokens=np.array([stage["tokens"] for stage in figures]),
        words=record.results["words"],
        figures=figures,
        nats=np.column_stack([record.units[f"step {stage['step']}"] for stage in figures]),
        story_tokens=record.units["tokens"],
        results=record.results,
        **arrays,
    )
