"""Rows: a training step with AdamW, and the peak memory of that step, beside transformers' GPT-2.

A step is the same on both sides: forward pass, loss, backward pass, clipping at 1.0, AdamW (fused, the same groups),
gradients forgotten. Weights, batches, learning rate and dropout (0) are the same as well. In how many parts each side
computes the gradient of the batch is its own choice; the peer is tried with our parts, too.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.inputs import Inputs
from benchmarks.measure import Candidate, Goal, Side, alternate, best_of, require_agreement, row, say, timed
from benchmarks.memory import peak_in_fresh_process
from benchmarks.peers import ATTENTION, compiled, gpt2_names, gpt2_of, is_transposed
from benchmarks.profiles import step_profile
from nlm_core.batches import Windows
from nlm_core.config import TrainConfig
from nlm_core.hardware import autocast, pick_precision
from nlm_core.model import NLM
from nlm_core.optim import make_optimizers
from nlm_core.step import accumulate_gradients, update

SPEED, MEMORY = "training step", "peak memory of a training step"
GOALS = {SPEED: Goal(2, 3), MEMORY: Goal(0.7, 0.5, smaller=True)}
CPU = torch.device("cpu")
AGREEING_STEPS = 3
# Largest differences after the first steps: of the loss (as a share of it), and of the update of the weights (the L2
# norm, as a share of the update's). The second is coarse, since Adam's first update is almost the gradient's sign:
# where a gradient is 0 but for rounding (the keys' biases), the two sides may move in opposite directions.
TOLERANCES = {"float32": (1e-5, 0.01), "bfloat16": (5e-3, 0.5)}


@dataclass(frozen=True)
class PeerSettings:
    """How transformers trains.

    Attributes:
        precision: "float32" or "bfloat16" (autocast).
        attention: "sdpa" or "eager".
        compile: forward pass, loss and backward pass by torch.compile.
        micro_batch: windows per forward and backward pass; 0 means the whole batch.
        checkpointing: compute each block's activations anew in the backward pass.
    """

    precision: str = "float32"
    attention: str = "sdpa"
    compile: bool = False
    micro_batch: int = 0
    checkpointing: bool = False

    def shown(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value or key == "compile"}


class Batches:
    """The batches that both sides learn from, by number of the step."""

    def __init__(self, inputs: Inputs, batch_size: int, context: int):
        self.windows, self.batch_size = Windows(inputs.ids, context, seed=0), batch_size

    def __call__(self, step: int) -> Tensor:
        return torch.from_numpy(self.windows.batch(step, self.batch_size))  # (B, T + 1)


class OurTraining:
    """A model with its optimizer, as `nlm train` has them."""

    def __init__(
        self, inputs: Inputs, batch_size: int | None = None, context: int | None = None, precision: str = "auto"
    ):
        self.config = replace(inputs.train_config(batch_size), precision=pick_precision(precision, CPU))
        self.model = inputs.model().train()
        self.optimizers = make_optimizers(self.model, self.config)
        self.batches = Batches(inputs, self.config.batch_size, context or self.model.config.context_length)

    @property
    def side(self) -> Side:
        kept = ("precision", "compile", "micro_batch_size")
        return Side("nlm", {key.removesuffix("_size"): getattr(self.config, key) for key in kept})

    def step(self, number: int) -> float:
        """Do a step and return the batch's loss in nats per token."""
        parts = self.batches(number).split(self.config.micro_batch_size)
        after_warmup = self.config.warmup_steps + number  # so the learning rate is the plateau's
        loss = accumulate_gradients(self.model, parts, self.config, after_warmup)
        update(self.model, self.optimizers, self.config, after_warmup, None, loss)
        return loss

    def weights(self) -> dict[str, Tensor]:
        return {name: weight.detach().clone() for name, weight in self.model.named_parameters()}


class PeerTraining:
    """transformers' GPT-2 with torch's AdamW, trained in the usual way."""

    def __init__(self, inputs: Inputs, settings: PeerSettings):
        self.settings, self.config = settings, inputs.train_config()
        model = inputs.model()
        self.names = gpt2_names(model.config)
        self.gpt2 = gpt2_of(model, settings.attention).train()
        if settings.checkpointing:
            self.gpt2.activation_checkpointing_enable()
        self.optimizer = torch.optim.AdamW(
            decay_groups(self.gpt2, self.config),
            lr=self.config.lr,
            betas=(self.config.beta1, self.config.beta2),
            fused=True,
        )
        self.batches = Batches(inputs, self.config.batch_size, model.config.context_length)
        self.loss = compiled(self._loss) if settings.compile else self._loss

    def _loss(self, part: Tensor) -> Tensor:
        logits = self.gpt2(input_ids=part[:, :-1], use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), part[:, 1:].flatten())

    def step(self, number: int) -> float:
        parts = self.batches(number).split(self.settings.micro_batch or self.config.batch_size)
        loss_sum = 0.0
        for part in parts:
            with autocast(CPU, self.settings.precision):
                loss = self.loss(part) / len(parts)
            loss.backward()
            loss_sum += loss.item()
        torch.nn.utils.clip_grad_norm_(self.gpt2.parameters(), self.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss_sum

    def weights(self) -> dict[str, Tensor]:
        """Its weights by our names, the way round that ours are."""
        theirs = dict(self.gpt2.named_parameters())
        found = {ours: theirs[name].detach().clone() for ours, name in self.names.items()}
        return {ours: weight.T if is_transposed(ours, weight) else weight for ours, weight in found.items()}


def decay_groups(gpt2: nn.Module, config: TrainConfig) -> list[dict[str, Any]]:
    """As `make_optimizers` shares the parameters out: only the matrices of the blocks decay."""
    matrices, rest = [], []
    for name, param in gpt2.named_parameters():
        (matrices if name.startswith("transformer.h.") and param.ndim == 2 else rest).append(param)
    return [{"params": matrices, "weight_decay": config.weight_decay}, {"params": rest, "weight_decay": 0.0}]


def agreement(
    first: OurTraining | PeerTraining, second: OurTraining | PeerTraining, begin: NLM, precision: str, steps: int = 1
) -> dict[str, Any]:
    """Do the first steps on both sides and compare.

    Args:
        first, second: both fresh.
        begin: the weights that both began with.
        precision: the lower of the two sides'.
        steps: how many. Adam's first update depends neither on its betas nor on the gradients' scale, the next ones do.

    Raises:
        UserError: they don't agree.
    """
    losses = [[side.step(number) for number in range(steps)][-1] for side in (first, second)]
    before, (a, b) = dict(begin.named_parameters()), (side.weights() for side in (first, second))
    apart = sum((a[name] - b[name]).square().sum().item() for name in before) ** 0.5
    moved = sum((a[name] - before[name]).square().sum().item() for name in before) ** 0.5
    loss, weights = TOLERANCES[precision]
    found = {"loss": (abs(losses[1] / losses[0] - 1), loss), "update of the weights": (apart / moved, weights)}
    return {"steps": steps, "loss of the last of them": losses, **require_agreement("the training steps", found)}


def lower(*precisions: str) -> str:
    return "bfloat16" if "bfloat16" in precisions else "float32"


def candidates(
    inputs: Inputs, ours: OurTraining, agreements: dict[PeerSettings, dict[str, Any]]
) -> Iterator[Candidate]:
    """What the peer may choose from: precision, attention and compilation; last, the fastest of these in our parts."""

    def candidate(settings: PeerSettings) -> Candidate:
        def build() -> Callable[[], float]:
            peer, precision = PeerTraining(inputs, settings), lower(settings.precision, ours.config.precision)
            agreements[settings] = agreement(OurTraining(inputs), peer, inputs.model(), precision)
            return lambda: peer.step(1)

        return Candidate(settings.shown(), build)

    tried = []
    for compiling in [False, True] if inputs.compile else [False]:
        for attention in ATTENTION:
            for precision in ("float32", "bfloat16"):
                tried.append(candidate(PeerSettings(precision, attention, compiling)))
                yield tried[-1]
    worked = [one for one in tried if "seconds" in one.outcome]
    if worked and ours.config.micro_batch_size < inputs.batch_size:
        fastest = min(worked, key=lambda one: one.outcome["seconds"])
        yield candidate(PeerSettings(**fastest.settings, micro_batch=ours.config.micro_batch_size))


def measure(inputs: Inputs) -> list[dict[str, Any]]:
    speed = measure_speed(inputs)
    fastest = PeerSettings(**speed["peer"]["settings"])
    return [speed, measure_memory(inputs, OurTraining(inputs), fastest, speed["agreement"])]


def measure_speed(inputs: Inputs) -> dict[str, Any]:
    say(SPEED)
    in_float32 = OurTraining(inputs, precision="float32"), PeerTraining(inputs, PeerSettings())
    in_float32 = agreement(*in_float32, inputs.model(), "float32", AGREEING_STEPS)
    ours, agreements = OurTraining(inputs), {}
    context = ours.model.config.context_length
    best, tried = best_of(candidates(inputs, ours, agreements), inputs.trials)
    settings = PeerSettings(**best.settings)
    peer = PeerTraining(inputs, settings)
    for side in (ours, peer):
        side.step(0)
    say("    in turn")
    times = alternate(timed(lambda n: ours.step(n + 1)), timed(lambda n: peer.step(n + 1)), inputs.rounds)
    made = row(
        SPEED,
        GOALS[SPEED],
        (ours.side, times[0]),
        (Side("transformers", settings.shown()), times[1]),
        inputs.batch_size * context,
        "tokens/s",
        agreements[settings],
        agreement_in_float32=in_float32,
        batch_size=inputs.batch_size,
        context_length=context,
        peer_tried=tried,
    )
    made["profile"] = step_profile(lambda: ours.step(inputs.rounds + 1))
    return made


def measure_memory(inputs: Inputs, ours: OurTraining, fastest: PeerSettings, agreed: dict[str, Any]) -> dict[str, Any]:
    """The peak of three steps above what lay there after set-up, each side in fresh processes of its own.

    The peer runs as it is fastest; where that is compiled, the compiler takes memory of its own, so the same setting
    without compilation counts if it needs less. What the peer needs at its most frugal is reported beside it.
    """
    say(MEMORY)
    usual = {fastest, replace(fastest, compile=False)}
    ours_in_parts = 0 if ours.config.micro_batch_size == inputs.batch_size else ours.config.micro_batch_size
    frugal = {
        replace(fastest, compile=False, micro_batch=parts, checkpointing=checkpointing)
        for parts in (fastest.micro_batch, ours_in_parts, 1)
        for checkpointing in (False, True)
    }
    found = {}
    for settings in sorted(usual | frugal, key=str):
        say(f"    trying {Side('transformers', settings.shown())}")
        found[settings] = peak_in_fresh_process("peer", inputs, asdict(settings))
    peer = min(usual, key=lambda settings: found[settings]["peak"])
    most_frugal = min(found, key=lambda settings: found[settings]["peak"])
    say("    in turn")
    sides = alternate(
        lambda _: peak_in_fresh_process("ours", inputs)["peak"],
        lambda _: peak_in_fresh_process("peer", inputs, asdict(peer))["peak"],
        inputs.memory_rounds,
    )
    return row(
        MEMORY,
        GOALS[MEMORY],
        (ours.side, sides[0]),
        (Side("transformers", peer.shown()), sides[1]),
        1e6,
        "MB above set-up",
        agreed,
        peer_tried=[settings.shown() | result for settings, result in found.items()],
        peer_most_frugal=most_frugal.shown() | found[most_frugal],
    )
