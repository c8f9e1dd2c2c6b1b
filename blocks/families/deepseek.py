"""DeepSeek-V2, V3 and Kimi K2: latent attention, dense layers first, then mixtures.

transformers 5.24.0 modeling_deepseek_v2.py, modeling_deepseek_v3.py. The norms of the
latents have an eps of 1e-6 whatever the config says. The checkpoints of V3 end in layers
that predict further tokens, which are no part of this model.
"""

import math

from blocks.families.family import Family
from blocks.families.fields import Fields
from blocks.families.parts import layers, part, rope, rope_parameters, sizes
from blocks.families.tensors import (
    LAYER,
    PRE,
    From,
    Names,
    decoder,
    fused_experts,
    gated,
    head_rows,
    linear,
    rows,
    single_experts,
)


def overrides(fields: Fields) -> list[str]:
    fields.expect("hidden_act", "silu", default="silu")
    fields.expect("attention_bias", False, default=False)
    fields.expect("mlp_bias", False, default=False)
    fields.expect("moe_layer_freq", 1, default=1)
    fields.skip("head_dim", "qk_head_dim", "num_key_value_heads")  # follow from others
    fields.skip("aux_loss_alpha", "seq_aux", "router_aux_loss_coef")  # of training
    fields.skip("ep_size", "num_nextn_predict_layers")
    is_second = fields.get("model_type") == "deepseek_v2"
    nope, turning = (
        fields.size("qk_nope_head_dim", 128),
        fields.size("qk_rope_head_dim", 64),
    )
    # In place or split in halves, the scores are the same: q and k move alike.
    interleaved = is_second or fields.get("rope_interleave", True)
    layout = "interleaved" if interleaved else "half"
    positions = rope(fields, base=10000.0, layout=layout)
    attention = [
        *part(
            "attention",
            "mla",
            q_rank=fields.get("q_lora_rank", 1536),
            kv_rank=fields.size("kv_lora_rank", 512),
            d_rope=turning,
            d_value=fields.size("v_head_dim", 128),
            scale=scale(fields, nope + turning),
            latent_norm__eps=1e-6,
        ),
        "+model.attention.latent_norm.cast_before_gain=true",
        *positions,
    ]
    n, dense = (
        fields.size("num_hidden_layers"),
        fields.get("first_k_dense_replace", 0) or 0,
    )

    def make(kind):
        ffn = (mixture_v2 if is_second else mixture_v3)(fields)
        return {
            "attention": attention,
            "ffn": part("ffn", "swiglu") if kind == "dense" else ffn,
        }

    return [
        *sizes(
            fields,
            d_head=nope,
            d_ff=fields.size("intermediate_size"),
            tied_head=fields.get("tie_word_embeddings", False),
        ),
        *part("placement", "pre"),
        *part("norm", "rmsnorm_llama", eps=fields.get("rms_norm_eps", 1e-6)),
        *layers(["dense" if i < dense else "mixture" for i in range(n)], make),
    ]


def scale(fields: Fields, d_key: int) -> float | None:
    """The factor on the scores, where slowed rotations change it."""
    given = rope_parameters(fields, None, base=10000.0)
    if given["rope_type"] == "default" or not given.get("mscale_all_dim"):
        return None
    magnitude = 0.1 * given["mscale_all_dim"] * math.log(given["factor"]) + 1
    return d_key**-0.5 * (magnitude if given["factor"] > 1 else 1.0) ** 2


def mixture_v2(fields: Fields) -> list[str]:
    fields.expect("norm_topk_prob", False, default=False)
    fields.expect("scoring_func", "softmax", default="softmax")
    method = fields.expect(
        "topk_method", "greedy", "group_limited_greedy", default="greedy"
    )
    n_groups, top_groups = fields.get("n_group", None), fields.get("topk_group", None)
    is_limited = method == "group_limited_greedy"
    return part(
        "ffn",
        "moe_deepseek_v2",
        n_experts=fields.size("n_routed_experts", 64),
        d_expert=fields.size("moe_intermediate_size"),
        n_shared=fields.get("n_shared_experts", 2) or 0,
        router__top_k=fields.size("num_experts_per_tok", 2),
        router__scale=float(fields.number("routed_scaling_factor", 1.0)),
        router__n_groups=n_groups if is_limited else 1,
        router__top_groups=top_groups if is_limited else 1,
    )


def mixture_v3(fields: Fields) -> list[str]:
    fields.expect("scoring_func", "sigmoid", default="sigmoid")
    fields.expect("topk_method", "noaux_tc", default="noaux_tc")
    return part(
        "ffn",
        "moe_deepseek",
        n_experts=fields.size("n_routed_experts", 256),
        d_expert=fields.size("moe_intermediate_size"),
        n_shared=fields.get("n_shared_experts", 1) or 0,
        router__top_k=fields.size("num_experts_per_tok", 8),
        router__scale=float(fields.number("routed_scaling_factor", 2.5)),
        router__renormalize=fields.get("norm_topk_prob", True),
        router__n_groups=fields.size("n_group", 8),
        router__top_groups=fields.size("topk_group", 4),
    )


def names(fields: Fields) -> Names:
    latent = fields.size("kv_lora_rank", 512)
    nope, turning = (
        fields.size("qk_nope_head_dim", 128),
        fields.size("qk_rope_head_dim", 64),
    )
    value = fields.size("v_head_dim", 128)
    down, up = latent + turning, nope + value
    at, mlp = f"{LAYER}.self_attn", f"{LAYER}.mlp"
    kv_down, kv_up = f"{at}.kv_a_proj_with_mqa.weight", f"{at}.kv_b_proj.weight"
    balance = From(f"{mlp}.gate.e_score_correction_bias")
    table = decoder(PRE) | {
        "attn/branch/q_down/kernel": linear(f"{at}.q_a_proj.weight"),
        "attn/branch/q_norm/gain": From(f"{at}.q_a_layernorm.weight"),
        "attn/branch/q_up/kernel": linear(f"{at}.q_b_proj.weight"),
        "attn/branch/kv_down/kernel": rows(kv_down, 0, latent, down),
        "attn/branch/k_rope/kernel": rows(kv_down, latent, down, down),
        "attn/branch/kv_norm/gain": From(f"{at}.kv_a_layernorm.weight"),
        "attn/branch/k_up/kernel": head_rows(kv_up, 0, nope, up),
        "attn/branch/v_up/kernel": head_rows(kv_up, nope, up, up),
        "ffn/branch/router/kernel": linear(f"{mlp}.gate.weight"),
        "ffn/branch/router/balance_bias": balance,
    }
    table |= gated("ffn/branch/shared", f"{mlp}.shared_experts")
    experts = f"{mlp}.experts"
    return Names(
        table | fused_experts(experts),
        hub=table | single_experts(experts),
        ignored=(rf"model\.layers\.{fields.size('num_hidden_layers')}\..*",),
    )


FAMILY = Family(("deepseek_v2", "deepseek_v3", "kimi_k2"), overrides, names)
