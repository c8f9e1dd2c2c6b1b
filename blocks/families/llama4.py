"""Llama 4 (text): chunked layers that turn, full layers that do not, mixtures of one.

transformers 5.24.0 modeling_llama4.py. Every fourth layer sees everything and has no
positions but queries that grow; q and k of the others are normalized without a gain.
Experts are stored [experts, in, out], gate beside up. The mixtures of Maverick are every
other layer.
"""

from blocks.families.family import Family
from blocks.families.fields import Fields
from blocks.families.parts import layers, part, rope, sizes, values
from blocks.families.tensors import (
    LAYER,
    PRE,
    From,
    Names,
    decoder,
    gated,
    linear,
    share,
)


def overrides(fields: Fields) -> list[str]:
    fields.expect("hidden_act", "silu", default="silu")
    fields.expect("attention_bias", False, default=False)
    fields.skip("router_aux_loss_coef", "router_jitter_noise")  # of training
    fields.skip("for_llm_compressor", "cache_implementation")
    n = fields.size("num_hidden_layers")
    eps = fields.get("rms_norm_eps", 1e-5)
    turns = turning(fields, n)
    mixes = mixing(fields, n)

    def make(kind):
        attention, ffn = kind
        made = chunked(fields, eps) if attention == "chunked" else full(fields)
        return {
            "attention": made,
            "ffn": mixture(fields) if ffn == "mixture" else part("ffn", "swiglu"),
        }

    kinds = [
        ("chunked" if turn else "full", "mixture" if mix else "dense")
        for turn, mix in zip(turns, mixes, strict=True)
    ]
    return [
        *sizes(
            fields,
            d_head=fields.get("head_dim", None),
            n_kv_heads=fields.get("num_key_value_heads", 8),
            d_ff=fields.size("intermediate_size_mlp", 16384),
            tied_head=fields.get("tie_word_embeddings", False),
        ),
        *part("placement", "pre"),
        *part("norm", "rmsnorm_llama", eps=eps),
        *layers(kinds, make),
    ]


def turning(fields: Fields, n: int) -> list[bool]:
    """Whether each layer turns its queries and keys, and sees its chunk only."""
    interval = fields.size("no_rope_layer_interval", 4)
    implied = [int((i + 1) % interval != 0) for i in range(n)]
    given = fields.several("no_rope_layers") or implied
    kinds = ["chunked_attention" if turn else "full_attention" for turn in given]
    listed = fields.several("layer_types") or kinds
    if len(given) != n or listed != kinds:
        fields.refuse("layer_types", f"{n}, chunked where no_rope_layers is 1", listed)
    return [bool(turn) for turn in given]


def mixing(fields: Fields, n: int) -> list[bool]:
    """Whether each layer has a mixture."""
    step = fields.size("interleave_moe_layer_step", 1)
    given = fields.several("moe_layers")
    given = range(step - 1, n, step) if given is None else given
    return [i in given for i in range(n)]


def chunked(fields: Fields, eps: float) -> list[str]:
    chunk = fields.size("attention_chunk_size", 8192)
    positions = rope(fields, base=500000.0, layout="interleaved")
    if not fields.get("use_qk_norm", True):
        return [*part("attention", "gqa", chunk=chunk), *positions]
    return [
        *part("attention", "llama4", chunk=chunk),
        "norm@model.attention.qk_norm=rmsnorm_plain",
        *values("model.attention.qk_norm", eps=eps),
        *positions,
    ]


def full(fields: Fields) -> list[str]:
    strength = fields.number("attn_scale", 0.1)
    period = fields.number("floor_scale", 8192)
    if not fields.get("attn_temperature_tuning", True):
        return [*part("attention", "gqa"), "positions=none"]
    keywords = {"strength": float(strength), "period": int(period)}
    return [
        *part("attention", "gqa"),
        *part("positions", "query_temperature", **keywords),
    ]


def mixture(fields: Fields) -> list[str]:
    return part(
        "ffn",
        "moe_llama4",
        n_experts=fields.size("num_local_experts", 16),
        d_expert=fields.size("intermediate_size"),
        router__top_k=fields.size("num_experts_per_tok", 1),
    )


def names(fields: Fields) -> Names:
    ffn = f"{LAYER}.feed_forward"
    ours, theirs = "ffn/branch/experts", f"{ffn}.experts"
    table = decoder(PRE, ffn="feed_forward") | {
        "ffn/branch/router/kernel": linear(f"{ffn}.router.weight"),
        f"{ours}/gate/kernel": share(f"{theirs}.gate_up_proj", 0, 2),
        f"{ours}/up/kernel": share(f"{theirs}.gate_up_proj", 1, 2),
        f"{ours}/down/kernel": From(f"{theirs}.down_proj"),
    }
    return Names(table | gated("ffn/branch/shared", f"{ffn}.shared_expert"))


FAMILY = Family(("llama4_text",), overrides, names)
