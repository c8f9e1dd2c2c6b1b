"""BERT with its head for masked tokens: norms behind every sum, sees both ways.

transformers 5.24.0 modeling_bert.py. The decoder of the head is the table of words.
Files of the time of TensorFlow call the numbers of a norm gamma and beta.
"""

from blocks.families.family import Family
from blocks.families.fields import Fields
from blocks.families.parts import part, values
from blocks.families.tensors import From, Names, linear

ACTIVATIONS = {"gelu": "gelu_erf", "gelu_new": "gelu", "relu": "relu", "silu": "silu"}
WORDS = "bert.embeddings.word_embeddings.weight"
HEAD = "cls.predictions"
LAYER = "bert.encoder.layer.{i}"
MAPS = {
    "attn/branch/q": f"{LAYER}.attention.self.query",
    "attn/branch/k": f"{LAYER}.attention.self.key",
    "attn/branch/v": f"{LAYER}.attention.self.value",
    "attn/branch/o": f"{LAYER}.attention.output.dense",
    "ffn/branch/up": f"{LAYER}.intermediate.dense",
    "ffn/branch/down": f"{LAYER}.output.dense",
    "head/dense": f"{HEAD}.transform.dense",
}
NORMS = {
    "embedding_norm": "bert.embeddings.LayerNorm",
    "attn_joint/post_norm": f"{LAYER}.attention.output.LayerNorm",
    "ffn_joint/post_norm": f"{LAYER}.output.LayerNorm",
    "head/norm": f"{HEAD}.transform.LayerNorm",
}


def overrides(fields: Fields) -> list[str]:
    fields.skip("attention_probs_dropout_prob", "hidden_dropout_prob")  # of training
    fields.skip("classifier_dropout", "gradient_checkpointing")
    fields.expect("add_cross_attention", False, default=False)
    fields.expect("is_decoder", False, default=False)
    fields.expect("position_embedding_type", "absolute", default="absolute")
    fields.expect("tie_word_embeddings", True, default=True)
    name = fields.expect("hidden_act", *ACTIVATIONS, default="gelu")
    return [
        "model=bert_base",
        *values(
            "model",
            vocab_size=fields.size("vocab_size", 30522),
            d_model=fields.size("hidden_size", 768),
            n_layers=fields.size("num_hidden_layers", 12),
            n_heads=fields.size("num_attention_heads", 12),
            d_ff=fields.size("intermediate_size", 3072),
            max_len=fields.size("max_position_embeddings", 512),
            n_segments=fields.size("type_vocab_size", 2),
            head_activation=ACTIVATIONS[name],
        ),
        *part("norm", "layernorm", eps=fields.get("layer_norm_eps", 1e-12)),
        *part("ffn", "mlp", activation=ACTIVATIONS[name], bias=True),
    ]


def names(fields: Fields) -> Names:
    del fields
    embeddings = "bert.embeddings"
    table = {
        "table": From(WORDS),
        "segments": From(f"{embeddings}.token_type_embeddings.weight"),
        "positions": From(f"{embeddings}.position_embeddings.weight"),
        "head/bias": From(f"{HEAD}.bias"),
    }
    for ours, theirs in MAPS.items():
        table[f"{ours}/kernel"] = linear(f"{theirs}.weight")
        table[f"{ours}/bias"] = From(f"{theirs}.bias")
    styles = []
    for gain, bias in (("weight", "bias"), ("gamma", "beta")):
        norms = {}
        for ours, theirs in NORMS.items():
            norms[f"{ours}/gain"] = From(f"{theirs}.{gain}")
            norms[f"{ours}/bias"] = From(f"{theirs}.{bias}")
        styles.append(table | norms)
    return Names(
        styles[0],
        hub=styles[1],
        # What a head for pairs of sentences has is no part of this model.
        ignored=(
            r"bert\.pooler\..*",
            r"cls\.seq_relationship\..*",
            r"bert\.embeddings\.position_ids",
        ),
        copies={
            f"{HEAD}.decoder.weight": WORDS,
            f"{HEAD}.decoder.bias": f"{HEAD}.bias",
        },
    )


FAMILY = Family(("bert",), overrides, names)
