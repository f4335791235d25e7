"""Head ablation: how much worse a model predicts a text without some of its attention heads.

"Head h of layer l" is what it adds to the residual stream. Attention ends with a sum over its heads,

    attention(x) = sum over h of z_h W_h + bias,

where z_h (T, D) is what head h gathered, the values weighted by its attention, and W_h are the D columns of the out
matrix that only they meet (Elhage et al. 2021). To ablate a head is to put another r_h in the place of its z_h:

    zero:      0. Simple, but the rest of the model never saw such a thing in training.
    mean:      the mean of z_h over all windows of the text, one for each position in the window.
    resample:  the z_h of another window, which shares no story with this one, at the same position.

The straight way runs the whole model once for each ablation. This one gives the same numbers with less work. Up to its
first layer l an ablated model equals the clean one, so each batch of windows runs through the clean model once, and the
ablations branch off. In layer l itself attention has still gathered the same, and for every set A of heads the residual
stream becomes

    x + attention(x) - sum over h in A of (z_h - r_h) W_h.

The summands are made once for all heads of the layer. From there on several ablations of a layer run as one larger
batch, through the MLP and then the later layers, where r_h takes the place of z_h before the out matrix. So the single
heads of all layers take about half the work of as many passes through the whole model. `make bench` (two cores, AVX2)
finds the sweep over all heads 3.3 times (2.9 to 3.6) as fast as a pass of `transformer-lens` with a hook for each head.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor
from tqdm import tqdm

from nlm_core.config import ModelConfig
from nlm_core.cross_entropy import token_nats
from nlm_core.errors import UserError
from nlm_core.hardware import autocast
from nlm_core.loss import require_scorable, stream_windows
from nlm_core.model import NLM, Block, evaluating, is_patched
from nlm_core.stats import sums_by
from nlm_core.workers import on_threads

MODES = ("zero", "mean", "resample")
AT_ONCE = 8  # ablations times windows that run as one batch: more would leave the processor's caches

Head = tuple[int, int]  # layer and head, both from 0


@dataclass(frozen=True)
class Losses:
    """Nats summed over groups of targets: over stories, unless other groups were asked for.

    The form is the one that `stats` takes: `ratio_interval(losses.deltas, losses.targets)` is, for each ablation, the
    interval of what it costs in nats per token, paired by story.

    Attributes:
        clean: (G,) of the whole model.
        ablated: (G, A) of each ablation.
        targets: (G,) how many targets there are; a group may have none.
    """

    clean: Float[np.ndarray, " G"]
    ablated: Float[np.ndarray, "G A"]
    targets: Float[np.ndarray, " G"]

    @property
    def deltas(self) -> Float[np.ndarray, "G A"]:
        """What each ablation costs: ablated minus clean."""
        return self.ablated - self.clean[:, None]


def single_heads(config: ModelConfig) -> list[set[Head]]:
    """Every head on its own, layer by layer: their A deltas reshape to (L, H)."""
    return [{(layer, head)} for layer in range(config.n_layers) for head in range(config.n_heads)]


def gather(block: Block, x: Float[Tensor, "B T C"]) -> Float[Tensor, "B T H D"]:
    """z: what each head of a block gathers from the residual stream before it."""
    H = block.attn.n_heads
    return block.attn.gather(block.attn_norm(x)).unflatten(-1, (H, -1))


def contributions(block: Block, z: Float[Tensor, "B T H D"]) -> Float[Tensor, "H B T C"]:
    """z_h W_h: what each head adds to the residual stream; all of them and the bias make up what attention adds."""
    B, T, H, D = z.shape
    W = block.attn.out.weight.view(-1, H, D).permute(1, 2, 0)  # (H, D, C)
    return (z.permute(2, 0, 1, 3).reshape(H, B * T, D) @ W).view(H, B, T, -1)


def donors(stories: Integer[np.ndarray, " N"], context_length: int, seed: int = 0) -> Int[np.ndarray, " W"]:
    """Draw for each window of a text the window whose z it gets in resample mode.

    A donor reads no story that the receiver reads or predicts. It is drawn evenly among all such windows of full
    length. The last window may be shorter: it gets its donor's first positions, and is nobody's donor.

    Args:
        stories: the story of each token, in order.
        context_length: T, the length of a window.
        seed: of the draw.

    Raises:
        UserError: a window has no donor, or the stories are not in order.
    """
    if (stories[1:] < stories[:-1]).any():
        raise UserError("the stories of a text's tokens must be numbered in order, as by `tokens_of`")
    T, whole = context_length, (len(stories) - 1) // context_length
    starts = np.arange(0, len(stories) - 1, T)
    first, last = stories[starts], stories[np.minimum(starts + T, len(stories) - 1)]
    last_read = stories[starts[:whole] + T - 1]
    rng = np.random.default_rng(seed)
    drawn = np.empty(len(starts), dtype=np.int64)
    for window in range(len(starts)):
        able = np.flatnonzero((last_read < first[window]) | (first[:whole] > last[window]))
        if not len(able):
            raise UserError(
                f"resample mode finds no donor for window {window}: no other full window of {T} tokens is free of its "
                f"stories ({first[window]} to {last[window]}); give more text, or choose another mode"
            )
        drawn[window] = rng.choice(able)
    return drawn


@torch.inference_mode()
def ablate(
    model: NLM,
    ids: Integer[np.ndarray, " N"],
    ablations: Sequence[Collection[Head]],
    mode: str = "zero",
    stories: Integer[np.ndarray, " _"] | None = None,
    groups: Integer[np.ndarray, " _"] | None = None,
    seed: int = 0,
    batch_size: int = 1,
    precision: str = "float32",
    progress: bool = False,
) -> Losses:
    """Score a stream of tokens, as `stream_nats` does, with the clean model and with each ablation of it.

        losses = ablate(model, tokens.ids, single_heads(model.config), "mean", tokens.stories)

    Args:
        model: in training or evaluation mode; dropout is off while this runs.
        ids: the stream.
        ablations: A sets of heads, of any size and over any layers.
        mode: "zero", "mean" (over all of `ids`) or "resample".
        stories: the story of each token, from 0; resample mode needs it.
        groups: the group of each token, from 0, for sums over others than stories: over halves of the text, or over
            story and class of token at once. With neither, all targets are one group.
        seed: of the donors.
        batch_size: windows at a time, for each thread.
        precision: "float32" or "bfloat16", as for `stream_nats`.
        progress: show a bar while standard error is a terminal.

    Raises:
        UserError: the text, the mode or a head doesn't fit, mean mode has a single window, or resample mode lacks the
            stories or a donor.
    """
    config, device = model.config, model.token_emb.device
    require_scorable(ids, config.vocab_size)
    if any(map(is_patched, (model, *model.blocks, *(block.attn for block in model.blocks)))):
        raise UserError("hooks on a block or its attention would have no effect here, where those are taken apart")
    if mode not in MODES:
        raise UserError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    if mode == "resample" and stories is None:
        raise UserError("resample mode must know the story of each token: give `stories`, as `tokens_of` returns them")
    if mode == "mean" and (len(ids) - 1) // config.context_length < 2:
        raise UserError(
            f"mean mode needs two full windows of {config.context_length} tokens: the mean over one is the head's own "
            "output; give more text, or choose another mode"
        )
    if batch_size < 1:
        raise UserError(f"batch_size must be 1 or more windows, not {batch_size}")
    for name, array in (("stories", stories), ("groups", groups)):
        if array is not None and (array.dtype.kind not in "iu" or array.min(initial=0) < 0):
            raise UserError(f"`{name}` must be whole numbers from 0")
        if array is not None and len(array) != len(ids):
            raise UserError(
                f"`{name}` must have one number for each of the {len(ids)} tokens, not {len(array)} numbers"
            )
    if groups is None:
        groups = np.zeros(len(ids), dtype=np.int64) if stories is None else stories
    swapped = _swapped(config, ablations)
    branches = _branches(swapped, max(1, AT_ONCE // batch_size))
    batches = stream_windows(ids, config.context_length, batch_size)
    batches_groups = stream_windows(groups, config.context_length, batch_size)
    drawn = donors(stories, config.context_length, seed) if mode == "resample" else None
    count = int(groups[1:].max()) + 1
    clean, ablated = np.zeros(count), np.zeros((len(ablations), count))

    def score(number: int) -> tuple[np.ndarray, np.ndarray]:
        """The sums of one batch of windows: clean (G,), ablated (A, G)."""
        tokens, of = batches[number], batches_groups[number][:, 1:].flatten().numpy()
        inputs, targets = tokens[:, :-1].to(device), tokens[:, 1:].to(device)  # (B, T)
        sums = np.zeros((len(ablations), count))
        with autocast(device, precision):
            rs = [r[:, : inputs.shape[1]] for r in replacement(number)]  # the last window may be shorter
            middles, zs, x = _clean(model, inputs)
            clean_sums = sums_by(of, _nats(model, x[None], targets)[0], count)
            for layer, chunks in branches:
                lost = contributions(model.blocks[layer], zs[layer] - rs[layer])  # (H, B, T, C)
                for chunk in chunks:
                    mask = swapped[chunk]  # (K, L, H)
                    x = middles[layer] - torch.tensordot(mask[:, layer].to(lost), lost, dims=1)  # (K, B, T, C)
                    nats = _nats(model, _run_on(model, x, layer, mask, rs), targets)
                    for ablation, values in zip(chunk, nats, strict=True):
                        sums[ablation] = sums_by(of, values, count)
        return clean_sums, sums

    with evaluating(model):
        replacement = _replacement(model, batches, mode, drawn, precision, progress)
        scored = on_threads(score, range(len(batches)), device)
        for more_clean, more in tqdm(scored, "ablating", len(batches), leave=False, disable=None if progress else True):
            clean += more_clean
            ablated += more
    ablated[[not heads for heads in ablations]] = clean  # these never branched off
    return Losses(clean, ablated.T, sums_by(groups[1:], np.ones(len(ids) - 1), count))


def _swapped(config: ModelConfig, ablations: Sequence[Collection[Head]]) -> Bool[Tensor, "A L H"]:
    """Which heads each ablation swaps."""
    swapped = torch.zeros(len(ablations), config.n_layers, config.n_heads, dtype=torch.bool)
    for number, heads in enumerate(ablations):
        for layer, head in heads:
            if not (0 <= layer < config.n_layers and 0 <= head < config.n_heads):
                raise UserError(
                    f"there is no head {head} in layer {layer}: this model's layers are 0 to {config.n_layers - 1}, "
                    f"their heads 0 to {config.n_heads - 1}"
                )
            swapped[number, layer, head] = True
    return swapped


def _branches(swapped: Bool[Tensor, "A L H"], size: int) -> list[tuple[int, list[list[int]]]]:
    """Each layer in which ablations branch off, and their numbers, `size` at a time."""
    branches = []
    for layer in range(swapped.shape[1]):
        here = swapped[:, layer].any(1) & ~swapped[:, :layer].flatten(1).any(1)
        if here.any():
            branches.append((layer, [chunk.tolist() for chunk in here.nonzero()[:, 0].split(size)]))
    return branches


def _clean(
    model: NLM, ids: Int[Tensor, "B T"]
) -> tuple[list[Float[Tensor, "B T C"]], list[Float[Tensor, "B T H D"]], Float[Tensor, "B T C"]]:
    """Run the clean model; return for each layer the residual stream after its attention and z, and the last stream."""
    x = model.embed(ids)
    middles, zs = [], []
    for block in model.blocks:
        zs.append(gather(block, x))
        middles.append(x + block.attn.out(zs[-1].flatten(2)))
        x = block.add_mlp(middles[-1])
    return middles, zs, x


def _run_on(
    model: NLM, x: Float[Tensor, "K B T C"], layer: int, mask: Bool[Tensor, "K L H"], rs: Sequence[Tensor]
) -> Float[Tensor, "K B T C"]:
    """Run K ablations on, from after the attention of their first layer to the end of the residual stream."""
    K, B = x.shape[:2]
    x = x.flatten(0, 1)
    for later, block in enumerate(model.blocks):
        if later > layer:
            z = gather(block, x).unflatten(0, (K, B))  # (K, B, T, H, D)
            if mask[:, later].any():
                z = torch.where(mask[:, later, None, None, :, None].to(x.device), rs[later], z)
            x = x + block.attn.out(z.flatten(0, 1).flatten(2))
        if later >= layer:
            x = block.add_mlp(x)
    return x.unflatten(0, (K, B))


def _replacement(
    model: NLM, batches: list[Tensor], mode: str, drawn: np.ndarray | None, precision: str, progress: bool
) -> Callable[[int], Sequence[Float[Tensor, "_ _ _ _"]]]:
    """Return a function: from the number of a batch to each layer's r, of full context length, broadcastable to z."""
    device, config = model.token_emb.device, model.config
    if mode == "zero":
        nothing = [model.token_emb.new_zeros(1, 1, 1, 1)] * config.n_layers
        return lambda number: nothing
    if mode == "resample":
        full = torch.cat([tokens for tokens in batches if tokens.shape[1] == config.context_length + 1])[:, :-1]
        own = torch.from_numpy(drawn).split([len(tokens) for tokens in batches])
        return lambda number: _clean(model, full[own[number]].to(device))[1]

    def sums_of(tokens: Tensor) -> Float[Tensor, "L T H D"]:
        with autocast(device, precision):
            return torch.stack([z.cpu().double().sum(0) for z in _clean(model, tokens[:, :-1].to(device))[1]])

    shape = (config.n_layers, config.context_length, config.n_heads, config.head_size)
    sums, windows = torch.zeros(shape, dtype=torch.float64), torch.zeros(config.context_length, 1, 1)
    summed = on_threads(sums_of, batches, device)
    bar = tqdm(summed, "averaging", len(batches), leave=False, disable=None if progress else True)
    for tokens, part in zip(batches, bar, strict=True):
        sums[:, : part.shape[1]] += part
        windows[: part.shape[1]] += len(tokens)
    means = (sums / windows).to(model.token_emb)[:, None].unbind()
    return lambda number: means


def _nats(model: NLM, x: Float[Tensor, "K B T C"], targets: Int[Tensor, "B T"]) -> Float[np.ndarray, "K _"]:
    """Nats of each target under K models, from their last residual streams."""
    K = len(x)
    nats = token_nats(model.final_norm(x).flatten(0, 2), model.token_emb, targets.flatten().repeat(K))
    return nats.view(K, -1).cpu().numpy()
