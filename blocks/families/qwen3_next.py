"""Qwen3-Next: gated DeltaNet in most layers, gated attention in the rest, mixtures.

transformers 5.24.0 modeling_qwen3_next.py. Norms have 1 + gain but for the one behind
the state of a DeltaNet. The maps of queries and gates are one tensor, head by head, and
so are those of a DeltaNet, key head by key head. The layers of the published files that
predict further tokens are no part of this model.
"""

from blocks.families.family import Family
from blocks.families.fields import Fields
from blocks.families.parts import layers, part, rope, sizes, values
from blocks.families.qwen import ffn_kinds
from blocks.families.tensors import (
    LAYER,
    PRE,
    TIED,
    From,
    Names,
    PerLayer,
    decoder,
    fused_experts,
    gated,
    head_rows,
    linear,
    single_experts,
    taps,
)

LINEAR, FULL = "linear_attention", "full_attention"


def overrides(fields: Fields) -> list[str]:
    fields.expect("hidden_act", "silu", default="silu")
    fields.expect("attention_bias", False, default=False)
    fields.expect("use_sliding_window", False, default=False)
    attentions, ffns = attention_kinds(fields), ffn_kinds(fields)

    def make(kinds):
        attention, ffn = kinds
        return {
            "attention": full(fields) if attention == FULL else delta(fields),
            "ffn": mixture(fields) if ffn == "mixture" else part("ffn", "swiglu"),
        }

    return [
        *sizes(
            fields,
            d_head=fields.get("head_dim", 256),
            n_kv_heads=fields.get("num_key_value_heads", 2),
            d_ff=fields.get("intermediate_size", 5632),
            tied_head=fields.get("tie_word_embeddings", False),
        ),
        *part("placement", "pre"),
        *part("norm", "rmsnorm_zc", eps=eps(fields)),
        *layers(list(zip(attentions, ffns, strict=True)), make),
    ]


def eps(fields: Fields) -> float:
    return fields.get("rms_norm_eps", 1e-6)


def attention_kinds(fields: Fields) -> list[str]:
    """Of each layer, as the config lists it; before that the last of each four."""
    n = fields.size("num_hidden_layers")
    every = fields.size("full_attention_interval", 4)
    implied = [LINEAR if (i + 1) % every else FULL for i in range(n)]
    given = fields.several("layer_types") or implied
    if set(given) - {LINEAR, FULL} or len(given) != n:
        fields.refuse("layer_types", f"{n} times {LINEAR} or {FULL}", given)
    return given


def full(fields: Fields) -> list[str]:
    fraction = fields.number("partial_rotary_factor", 0.25)
    return [
        *part("attention", "gated"),
        "norm@model.attention.qk_norm=rmsnorm_zc",
        *values("model.attention.qk_norm", eps=eps(fields)),
        *rope(fields, base=10000.0, fraction=fraction),
    ]


def delta(fields: Fields) -> list[str]:
    n_keys, n_values = delta_heads(fields)
    return [
        *part(
            "attention",
            "gated_deltanet",
            n_key_heads=n_keys,
            n_value_heads=n_values,
            d_key=fields.size("linear_key_head_dim", 128),
            d_value=fields.size("linear_value_head_dim", 128),
            kernel_size=fields.size("linear_conv_kernel_dim", 4),
            head_norm__eps=eps(fields),
        ),
        "+model.attention.head_norm.cast_before_gain=true",
        "positions=none",
    ]


def delta_heads(fields: Fields) -> tuple[int, int]:
    """Of keys, and of values."""
    keys = fields.size("linear_num_key_heads", 16)
    return keys, fields.size("linear_num_value_heads", 32)


def mixture(fields: Fields) -> list[str]:
    return part(
        "ffn",
        "moe",
        n_experts=fields.size("num_experts", 512),
        d_expert=fields.size("moe_intermediate_size", 512),
        n_shared=1,
        d_shared=fields.size("shared_expert_intermediate_size", 512),
        shared_gate=True,
        router__top_k=fields.size("num_experts_per_tok", 10),
        router__renormalize=fields.get("norm_topk_prob", True),
    )


def names(fields: Fields) -> Names:
    ours, experts = "attn/branch", f"{LAYER}.mlp.experts"
    table = decoder(PRE)
    kinds = tuple(attention_kinds(fields))
    softmax, state = of_attention(fields), of_delta(fields)
    for path in softmax.keys() & state.keys():
        table[f"{ours}/{path}"] = PerLayer(
            kinds, {FULL: softmax.pop(path), LINEAR: state.pop(path)}
        )
    table |= {f"{ours}/{path}": entry for path, entry in (softmax | state).items()}
    mlp = f"{LAYER}.mlp"
    table |= {
        "ffn/branch/router/kernel": linear(f"{mlp}.gate.weight"),
        "ffn/branch/shared_gate": linear(f"{mlp}.shared_expert_gate.weight"),
    }
    table |= gated("ffn/branch/shared", f"{mlp}.shared_expert")
    return Names(
        table | fused_experts(experts),
        hub=table | single_experts(experts),
        ignored=(r"mtp\..*",),
        copies=TIED,
    )


def of_attention(fields: Fields) -> dict[str, From]:
    """Of a layer with softmax attention; queries and gates alternate head by head."""
    at, width = f"{LAYER}.self_attn", fields.get("head_dim", 256)
    both = f"{at}.q_proj.weight"
    return {
        "q/kernel": head_rows(both, 0, width, 2 * width),
        "gate/proj/kernel": head_rows(both, width, 2 * width, 2 * width),
        **{f"{x}/kernel": linear(f"{at}.{x}_proj.weight") for x in "kvo"},
    }


def of_delta(fields: Fields) -> dict[str, From]:
    """Of a layer with a DeltaNet."""
    at = f"{LAYER}.linear_attn"
    n_keys, n_values = delta_heads(fields)
    d_key = fields.size("linear_key_head_dim", 128)
    per_key = n_values // n_keys
    d_value = per_key * fields.size("linear_value_head_dim", 128)
    found = {
        "o/kernel": linear(f"{at}.out_proj.weight"),
        "log_rate": From(f"{at}.A_log"),
        "offset": From(f"{at}.dt_bias"),
        "head_norm/gain": From(f"{at}.norm.weight"),
    }
    for name, parts in {
        "in_proj_qkvz": {"q": d_key, "k": d_key, "v": d_value, "gate": d_value},
        "in_proj_ba": {"beta": per_key, "decay": per_key},
    }.items():
        start, of = 0, sum(parts.values())
        for part_, width in parts.items():
            stop = start + width
            entry = head_rows(f"{at}.{name}.weight", start, stop, of)
            found[f"{part_}/kernel"], start = entry, stop
    widths = {"q": n_keys * d_key, "k": n_keys * d_key, "v": n_keys * d_value}
    start, of = 0, sum(widths.values())
    for part_, width in widths.items():
        entry = taps(f"{at}.conv1d.weight", start, start + width, of)
        found[f"{part_}_conv/taps"] = entry
        start += width
    return found


FAMILY = Family(("qwen3_next",), overrides, names)
