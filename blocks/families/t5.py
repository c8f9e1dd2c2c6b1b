"""The encoder of T5 and T5 v1.1: relative positions from one table, scores not scaled.

transformers 5.24.0 modeling_t5.py, T5EncoderModel. The table of the first layer serves
all. A config with a decoder is refused: there is none here.
"""

from blocks.families.family import Family
from blocks.families.fields import Fields
from blocks.families.parts import part, values
from blocks.families.tensors import From, Names, linear

SHARED = "shared.weight"
LAYER = "encoder.block.{i}.layer"
PLAIN, GATED = ("relu",), ("gated-gelu",)


def overrides(fields: Fields) -> list[str]:
    fields.skip("dropout_rate", "classifier_dropout", "initializer_factor")
    fields.skip("num_decoder_layers", "decoder_start_token_id", "task_specific_params")
    fields.skip("is_gated_act", "dense_act_fn", "n_positions", "output_past")
    fields.skip("tie_word_embeddings", "scale_decoder_outputs")  # of the head
    fields.expect("is_decoder", False, default=False)
    kind = fields.expect("feed_forward_proj", *PLAIN, *GATED, default="relu")
    return [
        "model=t5_base_encoder",
        *values(
            "model",
            vocab_size=fields.size("vocab_size", 32128),
            d_model=fields.size("d_model", 512),
            n_layers=fields.size("num_layers", 6),
            n_heads=fields.size("num_heads", 8),
            d_head=fields.size("d_kv", 64),
            d_ff=fields.size("d_ff", 2048),
            n_buckets=fields.size("relative_attention_num_buckets", 32),
            max_distance=fields.size("relative_attention_max_distance", 128),
        ),
        *part("norm", "rmsnorm_llama", eps=fields.get("layer_norm_epsilon", 1e-6)),
        *(
            part("ffn", "geglu", activation="gelu")
            if kind in GATED
            else part("ffn", "mlp", activation="relu")
        ),
    ]


def names(fields: Fields) -> Names:
    attention, ffn = f"{LAYER}.0.SelfAttention", f"{LAYER}.1.DenseReluDense"
    first = attention.format(i=0)
    table = {
        "table": From(SHARED),
        "relative_bias/table": From(f"{first}.relative_attention_bias.weight"),
        "final_norm/gain": From("encoder.final_layer_norm.weight"),
        "attn/in_norm/gain": From(f"{LAYER}.0.layer_norm.weight"),
        "ffn/in_norm/gain": From(f"{LAYER}.1.layer_norm.weight"),
        "ffn/branch/down/kernel": linear(f"{ffn}.wo.weight"),
        "ffn/branch/gate/kernel": linear(f"{ffn}.wi_0.weight"),
    }
    is_gated = fields.get("feed_forward_proj", "relu") in GATED
    table["ffn/branch/up/kernel"] = linear(
        f"{ffn}.wi_1.weight" if is_gated else f"{ffn}.wi.weight"
    )
    for part_ in "qkvo":
        kernel = linear(f"{attention}.{part_}.weight")
        table[f"attn/branch/{part_}/kernel"] = kernel
    return Names(table, copies={"encoder.embed_tokens.weight": SHARED})


FAMILY = Family(("t5",), overrides, names)
