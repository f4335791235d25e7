"""Every setting of a model and of a training run, with its presets and its checks."""

import contextlib
import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

from nlm_core.errors import UserError

KINDS = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}
POSITIONS = ("learned", "sinusoidal", "none")
MOST_PARAMETERS = 10**9


class Config:
    """What the two kinds of settings share: strict reading from JSON and from `KEY=VALUE` words."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Config":
        """Build the settings from a dictionary.

        Raises:
            UserError: a key is unknown, or a value has the wrong type or is out of range.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        checked = {}
        for key, value in values.items():
            if key not in fields:
                raise UserError(f"unknown setting {key!r}; {cls.__name__} has: {', '.join(fields)}")
            kind = fields[key].type
            if kind is float and type(value) is int:
                with contextlib.suppress(OverflowError):
                    value = float(value)
            if type(value) is not kind:
                raise UserError(f"{key} must be {KINDS[kind]}, not {value!r}")
            checked[key] = value
        return cls(**checked)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def _require(self, condition: bool, message: str) -> None:
        if not condition:
            raise UserError(message)


@dataclass(frozen=True)
class ModelConfig(Config):
    """The shape of the network; the defaults are the book's model of 10,657,280 parameters.

    Attributes:
        vocab_size: V, the number of token ids.
        context_length: the largest number of tokens that the model can read at once.
        d_model: C, the width of the residual stream.
        n_layers: L, the number of blocks.
        n_heads: H, the number of attention heads in each block; must divide `d_model`.
        positions: where the position table comes from: "learned" (a parameter), "sinusoidal" (a fixed formula), or
            "none" (no table; the causal mask alone carries order).
    """

    vocab_size: int = 4096
    context_length: int = 512
    d_model: int = 256
    n_layers: int = 12
    n_heads: int = 8
    positions: str = "learned"

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context_length", "d_model", "n_layers", "n_heads"):
            value = getattr(self, name)
            self._require(1 <= value <= 1 << 20, f"{name} must be 1 to {1 << 20:,}, not {value}")
        self._require(
            self.positions in POSITIONS, f"positions must be one of {', '.join(POSITIONS)}, not {self.positions!r}"
        )
        self._require(
            self.n_parameters <= MOST_PARAMETERS,
            f"this shape has {self.n_parameters:,} parameters; nlm is made for small models of at most "
            f"{MOST_PARAMETERS:,}",
        )
        self._require(
            self.d_model % self.n_heads == 0,
            f"d_model {self.d_model} is not divisible by n_heads {self.n_heads}; "
            "each head needs the same whole number of channels",
        )

    @property
    def n_parameters(self) -> int:
        """Two tables, a final norm, and in each block 12 C^2 weights, 9 C biases and 4 C of the norms."""
        C = self.d_model
        rows = self.vocab_size + (self.context_length if self.positions == "learned" else 0)
        return (rows + 2) * C + self.n_layers * (12 * C**2 + 13 * C)

    @property
    def head_size(self) -> int:
        """D = C / H."""
        return self.d_model // self.n_heads


@dataclass(frozen=True)
class TrainConfig(Config):
    """How a model is trained. Learning rates are per step; `lr` is the peak for both optimizers.

    Attributes:
        seed: of the first weights, of the order in which windows are read, and of dropout.
        optimizer: "muon" (Muon for the blocks' matrices, AdamW for the rest) or "adamw".
        lr: peak learning rate.
        warmup_steps: steps over which the learning rate rises linearly from 0 to `lr`.
        decay_fraction: share of the run, at its end, over which it falls linearly to 0.
        weight_decay: decoupled; applied to matrices, never to norms, biases or the two tables.
        beta1, beta2: AdamW's decay rates of the first and second moments.
        momentum: Muon's.
        clip: the gradient's largest global norm; 0 switches clipping off.
        dropout: probability, on the embedding sum and on each residual branch.
        batch_size: windows per step.
        micro_batch_size: windows per forward and backward pass; gradients are added up. On a CPU each core works on a
            micro-batch of its own; on a GPU larger ones are faster.
        log_every: steps between two lines of the log.
        eval_every: steps between two evaluations.
        eval_tokens: how much of the "choose" half of the validation text each evaluation reads.
        save_every: steps between two checkpoints.
        keep: how many checkpoints stay: the newest, and those before it to fall back to.
        keep_doublings: save after steps 1, 2, 4, 8 and so on as well, and let those stay: snapshots of the training,
            dense at its beginning.
        precision: "float32", "bfloat16" (autocast), or "auto": bfloat16 where the processor is fast at it.
        device: "cpu", "cuda", "mps", or "auto".
        compile: compile the blocks with `torch.compile` (slow to start, faster steps).
    """

    seed: int = 0
    optimizer: str = "muon"
    lr: float = 3e-3
    warmup_steps: int = 100
    decay_fraction: float = 0.35
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.98
    momentum: float = 0.95
    clip: float = 1.0
    dropout: float = 0.0
    batch_size: int = 8
    micro_batch_size: int = 2
    log_every: int = 10
    eval_every: int = 250
    eval_tokens: int = 100_000
    save_every: int = 250
    keep: int = 2
    keep_doublings: bool = False
    precision: str = "auto"
    device: str = "auto"
    compile: bool = False

    def __post_init__(self) -> None:
        for name in ("warmup_steps", "weight_decay", "clip", "seed"):
            value = getattr(self, name)
            self._require(0 <= value < math.inf, f"{name} must be a finite number, 0 or more, not {value}")
        self._require(self.seed < 1 << 63, f"seed must fit into 63 bits, which {self.seed} does not")
        for name in ("batch_size", "micro_batch_size", "log_every", "eval_every", "eval_tokens", "save_every", "keep"):
            value = getattr(self, name)
            self._require(1 <= value <= 1 << 40, f"{name} must be 1 to {1 << 40:,}, not {value}")
        self._require(self.batch_size <= 1 << 16, f"batch_size must be at most {1 << 16:,}, not {self.batch_size}")
        for name in ("decay_fraction", "dropout", "beta1", "beta2", "momentum"):
            value = getattr(self, name)
            self._require(0 <= value < 1, f"{name} must be at least 0 and below 1, not {value}")
        self._require(0 < self.lr <= 1e30, f"lr must be above 0 and at most 1e30, not {self.lr}")
        for name, allowed in (
            ("optimizer", ("muon", "adamw")),
            ("precision", ("auto", "float32", "bfloat16")),
            ("device", ("auto", "cpu", "cuda", "mps")),
        ):
            value = getattr(self, name)
            self._require(value in allowed, f"{name} must be one of {', '.join(allowed)}, not {value!r}")
        self._require(
            self.batch_size % self.micro_batch_size == 0,
            f"batch_size {self.batch_size} is not divisible by micro_batch_size {self.micro_batch_size}",
        )


@dataclass(frozen=True)
class Budget:
    """How long to train: a number of "steps", "tokens" or "minutes"."""

    unit: str
    amount: float

    def __post_init__(self) -> None:
        if self.unit not in ("steps", "tokens", "minutes"):
            raise UserError(f"a budget is in steps, tokens or minutes, not in {self.unit!r}")
        if not 0 < self.amount <= 1e15:
            raise UserError(f"--{self.unit} must be above 0 and at most 1e15, not {self.amount}")

    def steps(self, tokens_per_step: int) -> int | None:
        """The budget in steps; None where that depends on the machine's speed."""
        if self.unit == "minutes":
            return None
        return math.ceil(self.amount / (tokens_per_step if self.unit == "tokens" else 1))


@dataclass(frozen=True)
class Preset:
    """A named choice of settings: what differs from the defaults, and how long to train unless told otherwise."""

    model: dict[str, Any]
    train: dict[str, Any]
    budget: Budget


PRESETS = {
    # The book's model: 10,657,280 parameters with a vocabulary of 4096.
    "nlm": Preset({}, {"lr": 0.006, "decay_fraction": 0.5}, Budget("tokens", 16_000_000)),
    # A minute or two on a laptop: enough to see words and names appear.
    "tiny": Preset(
        {"context_length": 128, "d_model": 64, "n_layers": 2, "n_heads": 4},
        {"micro_batch_size": 4, "warmup_steps": 20, "eval_every": 100, "save_every": 100},
        Budget("steps", 1000),
    ),
}


def preset(name: str, vocab_size: int, overrides: dict[str, Any]) -> tuple[ModelConfig, TrainConfig]:
    """Return a preset's two configurations, with `overrides` of either applied.

    Where only the batch size is overridden, the micro-batches become the largest of at most the usual size that fit.

    Raises:
        UserError: the preset or an override's key is unknown, or a value is not allowed.
    """
    if name not in PRESETS:
        raise UserError(f"unknown preset {name!r}; there are: {', '.join(PRESETS)}")
    model, train = dict(PRESETS[name].model), dict(PRESETS[name].train)
    model_keys = {field.name for field in dataclasses.fields(ModelConfig)} - {"vocab_size"}
    train_keys = {field.name for field in dataclasses.fields(TrainConfig)}
    for key, value in overrides.items():
        if key not in model_keys | train_keys:
            hint = " (it is the tokenizer's)" if key == "vocab_size" else ""
            known = ", ".join(sorted(model_keys | train_keys))
            raise UserError(f"{key!r} is not a setting that can be given here{hint}; there are: {known}")
        (model if key in model_keys else train)[key] = value
    size = overrides.get("batch_size")
    if type(size) is int and "micro_batch_size" not in overrides:
        most = train.get("micro_batch_size", TrainConfig.micro_batch_size)
        train["micro_batch_size"] = next(part for part in range(most, 0, -1) if size % part == 0)
    return ModelConfig.from_dict({**model, "vocab_size": vocab_size}), TrainConfig.from_dict(train)


def parse_overrides(words: list[str]) -> dict[str, Any]:
    """Turn `["lr=0.001", "optimizer=adamw"]` into a dictionary; values are read as JSON, else as text."""
    overrides = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UserError(f"{word!r} is not of the form KEY=VALUE, as in lr=0.001")
        try:
            overrides[key] = json.loads(text)
        except (ValueError, RecursionError):
            overrides[key] = text
    return overrides
