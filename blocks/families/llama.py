"""Llama 2, 3, 3.1, 3.2 and Mistral: RMSNorm, rotations, SwiGLU, no biases.

transformers 5.24.0 modeling_llama.py, modeling_mistral.py. Mistral 0.1 sees a window in
all layers.
"""

from blocks.families.family import Family
from blocks.families.fields import Fields
from blocks.families.parts import part, rope, sizes
from blocks.families.tensors import PRE, TIED, Names, decoder


def overrides(fields: Fields) -> list[str]:
    fields.expect("hidden_act", "silu", default="silu")
    is_mistral = fields.get("model_type") == "mistral"
    return [
        *sizes(
            fields,
            d_head=fields.get("head_dim", None),
            n_kv_heads=fields.get("num_key_value_heads", 8 if is_mistral else None),
            d_ff=fields.size("intermediate_size"),
            tied_head=fields.get("tie_word_embeddings", False),
        ),
        *part("placement", "pre"),
        *part("norm", "rmsnorm_llama", eps=fields.get("rms_norm_eps", 1e-6)),
        *part(
            "attention",
            "gqa",
            bias=False if is_mistral else fields.get("attention_bias", False),
            window=fields.get("sliding_window", 4096) if is_mistral else None,
        ),
        *rope(fields, base=10000.0),
        *part(
            "ffn", "swiglu", bias=False if is_mistral else fields.get("mlp_bias", False)
        ),
    ]


def names(fields: Fields) -> Names:
    return Names(
        decoder(PRE),
        ignored=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
        copies=TIED,
    )


FAMILY = Family(("llama", "mistral"), overrides, names)
