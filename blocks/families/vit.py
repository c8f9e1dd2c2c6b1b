"""ViT with a classifier: patches, a summary token, learned positions, LayerNorm.

transformers 5.24.0 modeling_vit.py. The kernel of the patches is stored as that of a
convolution. Published files have the names of transformers 4.
"""

from blocks.families.family import Family
from blocks.families.fields import Fields
from blocks.families.parts import part, values
from blocks.families.tensors import From, Names, linear

ACTIVATIONS = {"gelu": "gelu_erf", "gelu_new": "gelu", "relu": "relu"}
# Part of a layer -> its name in transformers 5, and in published files.
MAPS = {
    "attn/branch/q": ("attention.q_proj", "attention.attention.query"),
    "attn/branch/k": ("attention.k_proj", "attention.attention.key"),
    "attn/branch/v": ("attention.v_proj", "attention.attention.value"),
    "attn/branch/o": ("attention.o_proj", "attention.output.dense"),
    "ffn/branch/up": ("mlp.fc1", "intermediate.dense"),
    "ffn/branch/down": ("mlp.fc2", "output.dense"),
}
NORMS = {"attn/in_norm": "layernorm_before", "ffn/in_norm": "layernorm_after"}


def overrides(fields: Fields) -> list[str]:
    fields.skip("attention_probs_dropout_prob", "hidden_dropout_prob")  # of training
    fields.skip("encoder_stride", "pooler_act", "pooler_output_size")  # of other heads
    name = fields.expect("hidden_act", *ACTIVATIONS, default="gelu")
    bias = fields.get("qkv_bias", True)
    return [
        "model=vit_b16",
        *values(
            "model",
            d_model=fields.size("hidden_size", 768),
            n_layers=fields.size("num_hidden_layers", 12),
            n_heads=fields.size("num_attention_heads", 12),
            d_ff=fields.size("intermediate_size", 3072),
            image_size=fields.size("image_size", 224),
            patch_size=fields.size("patch_size", 16),
            n_channels=fields.size("num_channels", 3),
            n_classes=n_classes(fields),
            pool="token",
        ),
        *part("placement", "pre"),
        *part("norm", "layernorm", eps=fields.get("layer_norm_eps", 1e-12)),
        *part("attention", "gqa", causal=False, bias=bias, output_bias=True),
        "positions=none",
        *part("ffn", "mlp", activation=ACTIVATIONS[name], bias=True),
    ]


def n_classes(fields: Fields) -> int:
    """As the names of the classes say, or their number; two without either."""
    names = fields.get("id2label", None)
    return len(names) if names else fields.size("num_labels", 2)


def names(fields: Fields) -> Names:
    channels, size = fields.size("num_channels", 3), fields.size("patch_size", 16)
    embeddings = "vit.embeddings"
    patches = f"{embeddings}.patch_embeddings.projection"
    common = {
        "patches/kernel": From(
            f"{patches}.weight",
            lambda w: w.reshape(len(w), -1).T,
            lambda s: (s[1], channels, size, size),
        ),
        "patches/bias": From(f"{patches}.bias"),
        "summary": From(
            f"{embeddings}.cls_token", lambda w: w[0, 0], lambda s: (1, 1, *s)
        ),
        "positions": From(
            f"{embeddings}.position_embeddings", lambda w: w[0], lambda s: (1, *s)
        ),
        "head/kernel": linear("classifier.weight"),
        "head/bias": From("classifier.bias"),
        "final_norm/gain": From("vit.layernorm.weight"),
        "final_norm/bias": From("vit.layernorm.bias"),
    }
    styles = []
    for style, layer in enumerate(("vit.layers.{i}", "vit.encoder.layer.{i}")):
        table = dict(common)
        for ours, theirs in MAPS.items():
            table[f"{ours}/kernel"] = linear(f"{layer}.{theirs[style]}.weight")
            table[f"{ours}/bias"] = From(f"{layer}.{theirs[style]}.bias")
        for ours, theirs in NORMS.items():
            table[f"{ours}/gain"] = From(f"{layer}.{theirs}.weight")
            table[f"{ours}/bias"] = From(f"{layer}.{theirs}.bias")
        styles.append(table)
    return Names(styles[0], hub=styles[1])


FAMILY = Family(("vit",), overrides, names)
