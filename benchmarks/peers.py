"""The same weights in the peers: `transformers`' GPT-2 and `transformer-lens`' HookedTransformer."""

import importlib
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from nlm_core.config import ModelConfig
from nlm_core.errors import UserError
from nlm_core.model import NLM

ATTENTION = ("sdpa", "eager")  # what transformers offers on a CPU


def require(name: str) -> ModuleType:
    """Import a peer.

    Raises:
        UserError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed; get the peers with: pip install -e '.[bench]'") from None


def forbid_silence() -> None:
    """Where torch.compile would give up in silence and go on without compiling, let it raise an error."""
    import torch._dynamo  # takes seconds, so only where something is compiled

    torch._dynamo.config.fail_on_recompile_limit_hit = True


def compiled(work: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile for exactly the shapes that come."""
    forbid_silence()
    return torch.compile(work, dynamic=False)


def gpt2_names(config: ModelConfig) -> dict[str, str]:
    """For each parameter of ours the name of the one in transformers' GPT-2 that holds the same numbers."""
    names = {"token_emb": "transformer.wte.weight", "pos_emb": "transformer.wpe.weight"}
    parts = {"attn_norm": "ln_1", "attn.qkv": "attn.c_attn", "attn.out": "attn.c_proj", "mlp_norm": "ln_2"}
    parts |= {"mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}
    for kind in ("weight", "bias"):
        names[f"final_norm.{kind}"] = f"transformer.ln_f.{kind}"
        for layer in range(config.n_layers):
            for ours, theirs in parts.items():
                names[f"blocks.{layer}.{ours}.{kind}"] = f"transformer.h.{layer}.{theirs}.{kind}"
    return names


def is_transposed(name: str, weight: Tensor) -> bool:
    """Whether GPT-2 keeps a parameter of ours the other way round: the matrices of its blocks are (in, out)."""
    return name.startswith("blocks.") and weight.ndim == 2


@torch.no_grad()
def gpt2_of(model: NLM, attention: str = "eager") -> nn.Module:
    """The same weights, in the same precision, in transformers' GPT-2, ready for use.

    Args:
        model: with learned positions; its dropout is used throughout.
        attention: "eager" (written out) or "sdpa" (torch's fused attention).
    """
    transformers = require("transformers")
    config = model.config
    gpt2 = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=config.vocab_size,
            n_positions=config.context_length,
            n_embd=config.d_model,
            n_layer=config.n_layers,
            n_head=config.n_heads,
            activation_function="gelu_new",
            layer_norm_epsilon=1e-5,
            attn_implementation=attention,
            resid_pdrop=model.dropout.p,
            embd_pdrop=model.dropout.p,
            attn_pdrop=0.0,
            bos_token_id=None,
            eos_token_id=None,
        )
    ).to(model.token_emb.dtype)
    own = model.state_dict()
    weights = {
        theirs: own[ours].T if is_transposed(ours, own[ours]) else own[ours]
        for ours, theirs in gpt2_names(config).items()
    }
    gpt2.load_state_dict(weights | {"lm_head.weight": own["token_emb"]})
    return gpt2.eval()


def hooked_of(model: NLM) -> Any:
    """The same weights in transformer-lens' HookedTransformer, by its own conversion from transformers' GPT-2.

    Of its ways to simplify the weights only the folding of the norms' factors is used: it saves work and changes
    nothing but rounding. Folding the value biases would change what it means to zero a head.
    """
    lens = require("transformer_lens")
    convert = require("transformer_lens.pretrained.weight_conversions.gpt2").convert_gpt2_weights
    config = model.config
    settings = lens.HookedTransformerConfig(
        n_layers=config.n_layers,
        d_model=config.d_model,
        n_ctx=config.context_length,
        d_head=config.head_size,
        n_heads=config.n_heads,
        d_mlp=4 * config.d_model,
        d_vocab=config.vocab_size,
        act_fn="gelu_new",
        eps=1e-5,
        normalization_type="LN",
        device="cpu",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its notice that version 4 leaves this class out
        hooked = lens.HookedTransformer(settings)
        hooked.load_and_process_state_dict(
            convert(gpt2_of(model), settings),
            fold_ln=True,
            center_writing_weights=False,
            center_unembed=False,
            fold_value_biases=False,
        )
    return hooked.eval()
