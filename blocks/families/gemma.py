"""Gemma 1, 2 and 3 (text): norms with 1 + gain, GeGLU, scaled embedding, tied head.

transformers 5.24.0 modeling_gemma.py, modeling_gemma2.py, modeling_gemma3.py. From
Gemma 2 on norms sit on both sides of every sub-layer and some layers see a window;
Gemma 2 caps its scores and logits, Gemma 3 normalizes every head of q and k and turns
windowed layers by a base of their own.
"""

from blocks.families.family import Family
from blocks.families.fields import Fields
from blocks.families.parts import layers, part, rope, sizes, turning, values
from blocks.families.tensors import PRE, TIED, Names, decoder

GELU = "gelu_pytorch_tanh"
WINDOWED, FULL = "sliding_attention", "full_attention"
SANDWICH = {
    "attn/in_norm": "input_layernorm",
    "attn/out_norm": "post_attention_layernorm",
    "ffn/in_norm": "pre_feedforward_layernorm",
    "ffn/out_norm": "post_feedforward_layernorm",
}


def common(fields: Fields, *, d_head: int, softcap: float | None = None) -> list[str]:
    """Sizes and norms."""
    fields.expect("use_bidirectional_attention", False, None, default=None)
    return [
        *sizes(
            fields,
            d_head=fields.get("head_dim", d_head),
            n_kv_heads=fields.get("num_key_value_heads", None),
            d_ff=fields.size("intermediate_size"),
            tied_head=fields.get("tie_word_embeddings", True),
            embedding_scale=fields.size("hidden_size") ** 0.5,
            logit_softcap=softcap,
        ),
        *part("norm", "rmsnorm_zc", eps=fields.get("rms_norm_eps", 1e-6)),
        *part("ffn", "geglu"),
    ]


def gemma1(fields: Fields) -> list[str]:
    # Configs before the fix of the activation say gelu beside a newer field.
    newer = fields.get("hidden_activation", None)
    if newer is None:
        fields.expect("hidden_act", GELU, default=GELU)
    else:
        fields.expect("hidden_activation", GELU)
        fields.skip("hidden_act")
    return [
        *common(fields, d_head=256),
        *part("placement", "pre"),
        *part("attention", "gqa", bias=fields.get("attention_bias", False)),
        *rope(fields, base=10000.0),
    ]


def gemma2(fields: Fields) -> list[str]:
    fields.expect("hidden_activation", GELU, default=GELU)
    fields.skip("hidden_act", "cache_implementation")
    window = fields.get("sliding_window", 4096)
    keywords = {
        "softcap": fields.get("attn_logit_softcapping", 50.0),
        "scale": fields.number("query_pre_attn_scalar", 256) ** -0.5,
        "bias": fields.get("attention_bias", False),
    }

    def make(kind):
        limit = window if kind == WINDOWED else None
        attention = part("attention", "gemma2", **keywords, window=limit)
        return {"attention": [*attention, *rope(fields, base=10000.0)]}

    return [
        *common(
            fields, d_head=256, softcap=fields.get("final_logit_softcapping", 30.0)
        ),
        *part("placement", "sandwich"),
        *layers(attention_kinds(fields, every=2), make),
    ]


def gemma3(fields: Fields) -> list[str]:
    fields.expect("hidden_activation", GELU, default=GELU)
    fields.skip("hidden_act", "cache_implementation")
    window = fields.get("sliding_window", 4096)
    every = fields.get("sliding_window_pattern", None)
    every = fields.get("_sliding_window_pattern", None) or every or 6
    local = fields.number("rope_local_base_freq", 10000.0)
    has_both = fields.get("rope_parameters", None) is not None
    keywords = {
        "softcap": fields.get("attn_logit_softcapping", None),
        "scale": fields.number("query_pre_attn_scalar", 256) ** -0.5,
        "bias": fields.get("attention_bias", False),
    }

    def make(kind):
        # Older configs scale the rotations of full layers only.
        if kind == WINDOWED and not has_both:
            positions = turning(local)
        else:
            positions = rope(fields, kind, base=1e6 if kind == FULL else local)
        return {
            "attention": [
                *part("attention", "qwen3", **keywords),
                *values("model.attention", window=window if kind == WINDOWED else None),
                "norm@model.attention.qk_norm=rmsnorm_zc",
                *values(
                    "model.attention.qk_norm", eps=fields.get("rms_norm_eps", 1e-6)
                ),
                *positions,
            ]
        }

    return [
        *common(
            fields, d_head=256, softcap=fields.get("final_logit_softcapping", None)
        ),
        *part("placement", "sandwich"),
        *layers(attention_kinds(fields, every=every), make),
    ]


def attention_kinds(fields: Fields, *, every: int) -> list[str]:
    """Of each layer, as the config lists it; before that the last of each `every`."""
    n = fields.size("num_hidden_layers")
    implied = [WINDOWED if (i + 1) % every else FULL for i in range(n)]
    given = fields.several("layer_types") or implied
    if set(given) - {FULL, WINDOWED} or len(given) != n:
        fields.refuse("layer_types", f"{n} times {FULL} or {WINDOWED}", given)
    return given


def overrides(fields: Fields) -> list[str]:
    made = {"gemma": gemma1, "gemma2": gemma2, "gemma3_text": gemma3}
    return made[fields.get("model_type")](fields)


def names(fields: Fields) -> Names:
    is_first = fields.get("model_type") == "gemma"
    return Names(decoder(PRE if is_first else SANDWICH), copies=TIED)


FAMILY = Family(("gemma", "gemma2", "gemma3_text"), overrides, names)
