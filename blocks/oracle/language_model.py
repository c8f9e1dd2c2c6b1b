"""The language model in float64 NumPy, one sub-layer after the other.

Parameters are a flat dict {path: array} with the paths of the modules; those below
blocks/layers have a leading layer axis. The parts are functions of the other files here
with their settings filled in:

    norm(x, **parameters of the norm)                           per site
    attention(x, q=, k=, v=, o=[, q_norm=, k_norm=, inner_norm=])
    ffn(x, up=, down=[, gate=, inner_norm=])       maps are (kernel, bias or None)

`placement` has one yes or no per site, as in blocks.placement, and says of each
sub-layer which it has (`at`). `scheme` is a residual scheme as in blocks.oracle.residual.
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
    scheme=None,
):
    """One sequence of tokens [seq].

    Without a scheme: y = post_norm(skip * x + branch_scale * branch).

    Returns:
        streams: list of [seq, d_model], before the first block and after each block
            (after it the state of the scheme, where there is one).
        logits: [seq, vocab_size].
    """
    norms = {"attn": attn_norm or norm, "ffn": ffn_norm or norm}
    branches = {"attn": attention, "ffn": ffn}
    x = params["table"][tokens]
    if "embedding_scale" in params:
        x = params["embedding_scale"] * x
    if placement.embedding_norm:
        x = norm(x, **below(params, "embedding_norm"))
    ends = below(params, "ends")
    state = scheme.open(x, ends) if scheme else x
    streams = [x]
    blocks = list(layers(params))
    for number, layer in enumerate(blocks):
        if placement.parallel:
            parallel = functools.partial(parallel_branch, branches, layer)
            u = norms["attn"](state, **below(layer, "both/in_norm"))
            state = state + parallel(u)
            streams.append(state)
            continue
        for index, (name, F) in enumerate(branches.items()):
            joint = below(layer, f"{name}_joint")
            i = number * len(branches) + index
            u, kept = scheme.read(state, joint, i) if scheme else (state, None)
            branch = branch_of(
                u,
                layer,
                name,
                F=F,
                norm=norms[name],
                placement=placement.at(name, number, len(blocks)),
                qk_norm=qk_norm if name == "attn" else None,
            )
            if scheme:
                state = scheme.write(state, branch, kept, joint, i)
            else:
                state = skip * state + branch_scale * branch
                if placement.at(name, number, len(blocks)).post_norm:
                    state = norms[name](state, **below(joint, "post_norm"))
        streams.append(state)
    x = scheme.close(state, ends) if scheme else state
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
    """y = post_norm(skip * x + branch_scale * branch)."""
    branch = branch_of(
        x, layer, name, F=F, norm=norm, placement=placement, qk_norm=qk_norm
    )
    y = skip * x + branch_scale * branch
    if placement.post_norm:
        y = norm(y, **below(layer, f"{name}_joint/post_norm"))
    return y


def branch_of(x, layer, name, *, F, norm, placement, qk_norm=None):
    """out_norm(F(in_norm(x))).

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
    return branch


def parallel_branch(branches, layer, u):
    """The sum of all branches of the same input."""
    return sum(
        F(u, **linear_maps(below(layer, f"both/branch/{name}")))
        for name, F in branches.items()
    )


def layers(params):
    """Yields the parameters of one block after the other, without the layer axis.

    They are in blocks/layers, or, where layers differ, in blocks/layers_s_p: position p
    of segment s, which repeats its positions as often as the layer axis is long.
    """
    blocks = below(params, "blocks")
    places = sorted({path.split("/")[0] for path in blocks}, key=numbers_in)
    for segment in sorted({numbers_in(place)[:1] for place in places}):
        mine = [below(blocks, p) for p in places if numbers_in(p)[:1] == segment]
        for i in range(len(next(iter(mine[0].values())))):
            for position in mine:
                yield {path: array[i] for path, array in position.items()}


def numbers_in(place):
    """ "layers_1_0" -> (1, 0), "layers" -> ()."""
    return tuple(int(n) for n in place.split("_")[1:])


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
