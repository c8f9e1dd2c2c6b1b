"""OLMo 2 and 3: norms on the outputs of sub-layers, and on q and k as whole vectors.

transformers 5.24.0 modeling_olmo2.py, modeling_olmo3.py. OLMo 3 sees a window in three
of four layers, and slows its rotations in the fourth only.
"""

from blocks.families.family import Family
from blocks.families.fields import Fields
from blocks.families.gemma import FULL, WINDOWED, attention_kinds
from blocks.families.parts import layers, part, rope, sizes, turning, values
from blocks.families.tensors import TIED, Names, decoder

OUT = {
    "attn/out_norm": "post_attention_layernorm",
    "ffn/out_norm": "post_feedforward_layernorm",
}


def overrides(fields: Fields) -> list[str]:
    fields.expect("hidden_act", "silu", default="silu")
    is_third = fields.get("model_type") == "olmo3"
    eps = fields.get("rms_norm_eps", 1e-5)
    n = fields.size("num_hidden_layers")
    kinds = attention_kinds(fields, every=4) if is_third else [FULL] * n
    window = fields.get("sliding_window", 4096) if is_third else None
    theta = 5e5 if is_third else 1e4
    has_both = fields.get("rope_parameters", None) is not None

    def make(kind):
        attention = [
            *part("attention", "olmo2", bias=fields.get("attention_bias", False)),
            *values(
                "model.attention",
                window=window if kind == WINDOWED else None,
                qk_norm__eps=eps,
            ),
        ]
        # Older configs scale the rotations of full layers only.
        if kind == WINDOWED and not has_both:
            positions = turning(fields.number("rope_theta", theta))
            return {"attention": [*attention, *positions]}
        told_apart = kind if is_third and has_both else None
        return {"attention": [*attention, *rope(fields, told_apart, base=theta)]}

    return [
        *sizes(
            fields,
            n_kv_heads=fields.get("num_key_value_heads", None),
            d_ff=fields.size("intermediate_size"),
            tied_head=fields.get("tie_word_embeddings", False),
        ),
        *part("placement", "out"),
        *part("norm", "rmsnorm", eps=eps),
        *part("ffn", "swiglu"),
        *layers(kinds, make),
    ]


def names(fields: Fields) -> Names:
    return Names(decoder(OUT), copies=TIED)


FAMILY = Family(("olmo2", "olmo3"), overrides, names)
