"""Qwen2, 2.5, 3 and the mixtures of Qwen3; MiniMind 3 is published as one of them.

transformers 5.24.0 modeling_qwen2.py, modeling_qwen3.py, modeling_qwen3_moe.py. Llama's
block with biases on q, k and v (Qwen2), or with a norm on every head of q and k (Qwen3).
Layers from `max_window_layers` on see a window, if any do.
"""

from blocks.families.family import Family
from blocks.families.fields import Fields
from blocks.families.parts import layers, part, rope, sizes, values
from blocks.families.tensors import (
    LAYER,
    PRE,
    TIED,
    Names,
    decoder,
    fused_experts,
    linear,
    single_experts,
)

WINDOWED, FULL = "sliding_attention", "full_attention"


def overrides(fields: Fields) -> list[str]:
    fields.expect("hidden_act", "silu", default="silu")
    kind = fields.get("model_type")
    is_mixture = kind == "qwen3_moe"
    eps = fields.get("rms_norm_eps", 1e-6)
    window = fields.get("sliding_window", 4096)
    # A mixture looks at the window alone, in all layers.
    attentions = _all(fields, FULL) if is_mixture else attention_kinds(fields)
    if is_mixture:
        fields.expect("use_sliding_window", False, default=False)
        fields.skip("max_window_layers", "layer_types")
    ffns = ffn_kinds(fields) if is_mixture else _all(fields, "dense")

    def make(kinds):
        attention, ffn = kinds
        return {
            "attention": [
                *(qwen2() if kind == "qwen2" else qwen3(fields, eps)),
                *values(
                    "model.attention", window=window if attention == WINDOWED else None
                ),
                *rope(fields, base=10000.0),
            ],
            "ffn": mixture(fields) if ffn == "mixture" else part("ffn", "swiglu"),
        }

    return [
        *sizes(
            fields,
            d_head=None if kind == "qwen2" else fields.get("head_dim", 128),
            n_kv_heads=fields.get("num_key_value_heads", None),
            d_ff=fields.get("intermediate_size", None),
            tied_head=fields.get("tie_word_embeddings", False),
        ),
        *part("placement", "pre"),
        *part("norm", "rmsnorm_llama", eps=eps),
        *layers(list(zip(attentions, ffns, strict=True)), make),
    ]


def qwen2() -> list[str]:
    return part("attention", "qwen2")


def qwen3(fields: Fields, eps: float) -> list[str]:
    return [
        *part("attention", "qwen3", bias=fields.get("attention_bias", False)),
        "norm@model.attention.qk_norm=rmsnorm_llama",
        *values("model.attention.qk_norm", eps=eps),
    ]


def mixture(fields: Fields) -> list[str]:
    # Mixtures of the class renormalize only if told to; the published ones do.
    experts = fields.get("num_experts", None) or fields.size("num_local_experts", 128)
    return part(
        "ffn",
        "moe",
        n_experts=experts,
        d_expert=fields.size("moe_intermediate_size", 768),
        router__top_k=fields.size("num_experts_per_tok", 8),
        router__renormalize=fields.get("norm_topk_prob", False),
    )


def attention_kinds(fields: Fields) -> list[str]:
    """Of each layer, as the config lists it or as older configs imply it."""
    n = fields.size("num_hidden_layers")
    first = fields.get("max_window_layers", 28)
    if not fields.get("use_sliding_window", False):
        first = n
    implied = [FULL if i < first else WINDOWED for i in range(n)]
    given = fields.several("layer_types") or implied
    if set(given) - {FULL, WINDOWED} or len(given) != n:
        fields.refuse("layer_types", f"{n} times {FULL} or {WINDOWED}", given)
    if given != implied and not fields.get("use_sliding_window", False):
        fields.refuse("layer_types", f"{FULL} without use_sliding_window", given)
    return given


def ffn_kinds(fields: Fields) -> list[str]:
    n = fields.size("num_hidden_layers")
    fields.skip("router_aux_loss_coef")  # of training
    step = fields.size("decoder_sparse_step", 1)
    dense = fields.several("mlp_only_layers") or []
    return [
        "mixture" if i not in dense and (i + 1) % step == 0 else "dense"
        for i in range(n)
    ]


def _all(fields: Fields, kind: str) -> list[str]:
    return [kind] * fields.size("num_hidden_layers")


def names(fields: Fields) -> Names:
    router = {"ffn/branch/router/kernel": linear(f"{LAYER}.mlp.gate.weight")}
    experts = f"{LAYER}.mlp.experts"
    table = decoder(PRE) | router
    return Names(
        table | fused_experts(experts),
        hub=table | single_experts(experts),
        copies=TIED,
    )


FAMILY = Family(("qwen2", "qwen3", "qwen3_moe"), overrides, names)
