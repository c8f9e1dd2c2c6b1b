"""The language model in float64 NumPy, one sub-layer after the other.

Parameters are a flat dict {path: array} with the paths of the modules; those below
blocks/layers have a leading layer axis. The parts are functions of the other files here
with their settings filled in:

    norm(x, **parameters of the norm)                           per site
    attention(x, q=, k=, v=, o=[, q_norm=, k_norm=, inner_norm=])
    ffn(x, up=, down=[, gate=, inner_norm=])       maps are (kernel, bias or None)

`placement` has one yes or no per site, as in blocks.placement.
"""

import functools

import numpy as np


def language_model(
    tokens,
    params,
    *,
    placement,
    norm,
    attention,
    ffn,
    attn_norm=None,
    ffn_norm=None,
    final_norm=None,
    qk_norm=None,
    skip=1.0,
    branch_scale=1.0,
):
    """One sequence of tokens [seq].

    Returns:
        streams: list of [seq, d_model], before the first block and after each block.
        logits: [seq, vocab_size].
    """
    attn_norm, ffn_norm = attn_norm or norm, ffn_norm or norm
    sublayer = functools.partial(
        residual_sublayer, placement=placement, skip=skip, branch_scale=branch_scale
    )
    x = params["table"][tokens]
    if "embedding_scale" in params:
        x = params["embedding_scale"] * x
    if placement.embedding_norm:
        x = norm(x, **below(params, "embedding_norm"))
    streams = [x]
    for layer in layers(params):
        x = sublayer(x, layer, "attn", F=attention, norm=attn_norm, qk_norm=qk_norm)
        x = sublayer(x, layer, "ffn", F=ffn, norm=ffn_norm)
        streams.append(x)
    if placement.final_norm:
        x = (final_norm or norm)(x, **below(params, "final_norm"))
    head = params["head/kernel"] if "head/kernel" in params else params["table"].T
    logits = x @ head
    if "head/bias" in params:
        logits = logits + params["head/bias"]
    return streams, logits


def cross_entropy(logits, targets):
    """Mean over tokens of -log softmax(logits)[target], in nats."""
    losses = []
    for row, target in zip(logits, targets, strict=True):
        shifted = row - row.max()
        losses.append(np.log(np.exp(shifted).sum()) - shifted[target])
    return np.mean(losses)


def residual_sublayer(
    x, layer, name, *, F, norm, placement, skip, branch_scale, qk_norm=None
):
    """y = post_norm(skip * x + branch_scale * out_norm(F(in_norm(x)))).

    `layer` holds the parameters of one block, `name` is that of the sub-layer.
    """
    u = norm(x, **below(layer, f"{name}/in_norm")) if placement.in_norm else x
    inside = {k: norm for k in ("inner_norm",) if placement.inner_norm}
    if qk_norm is not None:
        inside |= {"q_norm": qk_norm, "k_norm": qk_norm}
    branch = F(
        u,
        **linear_maps(below(layer, f"{name}/branch")),
        **{
            k: functools.partial(f, **below(layer, f"{name}/branch/{k}"))
            for k, f in inside.items()
        },
    )
    if placement.out_norm:
        branch = norm(branch, **below(layer, f"{name}/out_norm"))
    y = skip * x + branch_scale * branch
    if placement.post_norm:
        y = norm(y, **below(layer, f"{name}_joint/post_norm"))
    return y


def layers(params):
    """Yields the parameters of one block after the other, without the layer axis."""
    stacked = below(params, "blocks/layers")
    for i in range(len(next(iter(stacked.values())))):
        yield {path: array[i] for path, array in stacked.items()}


def below(params, prefix):
    """{"a/b/c": x, "d": y} below "a" is {"b/c": x}."""
    prefix += "/"
    return {
        k.removeprefix(prefix): v for k, v in params.items() if k.startswith(prefix)
    }


def linear_maps(params):
    """{"up/kernel": k, "up/bias": b} as {"up": (k, b)}, without bias (k, None)."""
    names = [k.removesuffix("/kernel") for k in params if k.endswith("/kernel")]
    return {
        name: (params[f"{name}/kernel"], params.get(f"{name}/bias")) for name in names
    }
