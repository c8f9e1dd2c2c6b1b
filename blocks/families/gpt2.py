"""GPT-2: LayerNorm, learned positions, biases everywhere, tanh-GELU, tied head.

transformers 5.24.0 modeling_gpt2.py. Kernels are stored [in, out]; those of q, k and v
side by side. Published files lack the prefix and hold the causal masks.
"""

from blocks.families.family import Family
from blocks.families.fields import Fields
from blocks.families.parts import model, part
from blocks.families.tensors import From, Names, linear, share

ACTIVATIONS = {"gelu_new": "gelu", "gelu": "gelu_erf", "relu": "relu"}
PREFIX = "transformer."


def overrides(fields: Fields) -> list[str]:
    fields.skip("attn_pdrop", "embd_pdrop", "resid_pdrop", "n_ctx")
    fields.skip("summary_activation", "summary_first_dropout", "summary_type")
    fields.skip("summary_proj_to_labels", "summary_use_proj", "task_specific_params")
    fields.skip("reorder_and_upcast_attn")  # only how scores are rounded
    fields.expect("add_cross_attention", False, default=False)
    fields.expect("scale_attn_by_inverse_layer_idx", False, default=False)
    fields.expect("scale_attn_weights", True, default=True)
    name = fields.expect("activation_function", *ACTIVATIONS, default="gelu_new")
    width = fields.size("n_embd")
    return [
        *model(
            vocab_size=fields.size("vocab_size"),
            d_model=width,
            n_layers=fields.size("n_layer"),
            n_heads=fields.size("n_head"),
            d_ff=fields.get("n_inner", None) or 4 * width,
            tied_head=fields.get("tie_word_embeddings", True),
        ),
        *part("embedding_positions", "learned", max_len=fields.size("n_positions")),
        *part("placement", "pre"),
        *part("norm", "layernorm", eps=fields.get("layer_norm_epsilon", 1e-5)),
        *part("attention", "gqa", bias=True),
        "positions=none",
        *part("ffn", "mlp", activation=ACTIVATIONS[name], bias=True),
    ]


def names(fields: Fields) -> Names:
    layer = f"{PREFIX}h.{{i}}"
    table = {
        "table": From(f"{PREFIX}wte.weight"),
        "embedding_positions/table": From(f"{PREFIX}wpe.weight"),
        "head/kernel": linear("lm_head.weight"),
        "attn/branch/o/kernel": From(f"{layer}.attn.c_proj.weight"),
        "attn/branch/o/bias": From(f"{layer}.attn.c_proj.bias"),
        "ffn/branch/up/kernel": From(f"{layer}.mlp.c_fc.weight"),
        "ffn/branch/up/bias": From(f"{layer}.mlp.c_fc.bias"),
        "ffn/branch/down/kernel": From(f"{layer}.mlp.c_proj.weight"),
        "ffn/branch/down/bias": From(f"{layer}.mlp.c_proj.bias"),
    }
    for site, norm in {
        "final_norm": f"{PREFIX}ln_f",
        "attn/in_norm": f"{layer}.ln_1",
        "ffn/in_norm": f"{layer}.ln_2",
    }.items():
        table[f"{site}/gain"] = From(f"{norm}.weight")
        table[f"{site}/bias"] = From(f"{norm}.bias")
    for number, role in enumerate("qkv"):
        at = f"{layer}.attn.c_attn"
        table[f"attn/branch/{role}/kernel"] = share(f"{at}.weight", number, 3)
        table[f"attn/branch/{role}/bias"] = share(f"{at}.bias", number, 3)
    return Names(
        table,
        hub={path: entry.without(PREFIX) for path, entry in table.items()},
        ignored=(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",),
        copies={
            "lm_head.weight": f"{PREFIX}wte.weight",
        },
    )


FAMILY = Family(("gpt2",), overrides, names)
