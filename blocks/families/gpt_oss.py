"""gpt-oss: a mixture of clamped experts, sinks, YaRN, windows in every other layer.

transformers 5.24.0 modeling_gpt_oss.py. Experts are stored [experts, in, out], gate and
up interleaved; published files hold them as blocks of 4-bit numbers, where each expert
by itself is a tensor here (blocks/families/mxfp4.py).
"""

from blocks.families.family import Family
from blocks.families.fields import Fields
from blocks.families.gemma import WINDOWED, attention_kinds
from blocks.families.parts import layers, part, rope, sizes
from blocks.families.tensors import LAYER, PRE, From, Names, decoder, every, linear


def overrides(fields: Fields) -> list[str]:
    fields.expect("hidden_act", "silu", default="silu")
    fields.skip("router_aux_loss_coef")  # of training
    fields.skip("experts_per_token", "initial_context_length")  # said twice
    window = fields.get("sliding_window", 128)
    bias = fields.get("attention_bias", True)

    def make(kind):
        attention = part(
            "attention",
            "gpt_oss",
            bias=bias,
            output_bias=bias,
            window=window if kind == WINDOWED else None,
        )
        return {"attention": [*attention, *rope(fields, base=150000.0)]}

    return [
        *sizes(
            fields,
            d_head=fields.get("head_dim", 64),
            n_kv_heads=fields.get("num_key_value_heads", 8),
            d_ff=fields.size("intermediate_size"),
            tied_head=fields.get("tie_word_embeddings", False),
        ),
        *part("placement", "pre"),
        *part("norm", "rmsnorm", eps=fields.get("rms_norm_eps", 1e-5)),
        *part(
            "ffn",
            "moe_gpt_oss",
            n_experts=fields.size("num_local_experts"),
            router__top_k=fields.size("num_experts_per_tok", 4),
            expert__limit=fields.get("swiglu_limit", 7.0),
            expert__alpha=fields.get("swiglu_alpha", 1.702),
        ),
        *layers(attention_kinds(fields, every=2), make),
    ]


def names(fields: Fields) -> Names:
    table = decoder(PRE) | {
        "attn/branch/sinks": From(f"{LAYER}.self_attn.sinks"),
        "ffn/branch/router/kernel": linear(f"{LAYER}.mlp.router.weight"),
        "ffn/branch/router/bias": From(f"{LAYER}.mlp.router.bias"),
    }
    return Names(
        table | experts(""),
        hub=table | experts(".{e}"),
    )


def experts(each: str) -> dict[str, From]:
    """Of all experts together, or of each by itself where kernels have `each`."""
    ours, theirs = "ffn/branch/experts", f"{LAYER}.mlp.experts"
    table = {
        f"{ours}/down/kernel": From(f"{theirs}.down_proj{each}"),
        f"{ours}/down/bias": From(f"{theirs}.down_proj_bias"),
    }
    for number, half in enumerate(("gate", "up")):
        kernel = every(f"{theirs}.gate_up_proj{each}", number, 2)
        table[f"{ours}/{half}/kernel"] = kernel
        table[f"{ours}/{half}/bias"] = every(f"{theirs}.gate_up_proj_bias", number, 2)
    return table


FAMILY = Family(("gpt_oss",), overrides, names)
