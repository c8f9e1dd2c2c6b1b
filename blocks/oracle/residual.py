"""Residual schemes of one stream in float64 NumPy, one scheme per section.

How the functions are called, and what they may leave out, is said in
`blocks.oracle.streams`. Everything a scheme keeps from one sub-layer to the next is in
its state, written out as a dict where it is more than the stream.
"""

import collections
import functools
import math

import numpy as np

from blocks.oracle.streams import rmsnorm

Scheme = collections.namedtuple("Scheme", ["open", "read", "write", "close"])


def scheme(name, **keywords):
    """The functions of a scheme of this file, with what it leaves out filled in."""
    default = Scheme(
        open=lambda x, params, **_: x,
        read=lambda state, params, i, **_: (state, None),
        write=None,
        close=lambda state, params, **_: state,
    )
    found = [
        globals().get(f"{name}_{what}", f) for what, f in default._asdict().items()
    ]
    return Scheme(*(functools.partial(f, **keywords) for f in found))


def post_norm(y, params):
    """The norm of a joint, where it has one."""
    return rmsnorm(y, params["post_norm/gain"]) if "post_norm/gain" in params else y


def is_first(i, per_block):
    return i % per_block == 0


def is_last(i, per_block):
    return i % per_block == per_block - 1


# -- one stream and its factors --------------------------------------------------------


def add_write(x, branch, kept, params, i, *, skip=1.0, branch_scale=1.0, **_):
    return post_norm(skip * x + branch_scale * branch, params)


def layerscale_write(x, branch, kept, params, i, **_):
    return post_norm(x + params["branch_scale"] * branch, params)


skipinit_write = layerscale_write


def resscale_write(x, branch, kept, params, i, **_):
    return post_norm(params.get("skip", 1.0) * x + branch, params)


def admin_write(x, branch, kept, params, i, **_):
    return post_norm(params["skip"] * x + branch, params)


def deepnorm_write(
    x, branch, kept, params, i, *, n_layers, side="only", n_other_layers=None, **_
):
    alpha, _ = deepnorm_constants(side, n_layers, n_other_layers or n_layers)
    return post_norm(alpha * x + branch, params)


def sub_ln_write(x, branch, kept, params, i, **_):
    return post_norm(x + branch, params)


def t_fixup_read(x, params, i, **_):
    return x, None


t_fixup_write = sub_ln_write


def keel_write(x, branch, kept, params, i, *, n_sublayers, alpha=None, **_):
    return post_norm((n_sublayers if alpha is None else alpha) * x + branch, params)


def depth_mup_write(
    x,
    branch,
    kept,
    params,
    i,
    *,
    n_layers,
    power=0.5,
    base_layers=1,
    branch_scale=1.0,
    **_,
):
    factor = branch_scale / (n_layers / base_layers) ** power
    return post_norm(x + factor * branch, params)


# -- constants of initial values -------------------------------------------------------


def deepnorm_constants(side, n, m):
    """alpha, beta for `n` blocks here and `m` on the other side."""
    return {
        "only": ((2 * n) ** (1 / 4), (8 * n) ** (-1 / 4)),
        "encoder": (0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)),
        "decoder": ((3 * n) ** (1 / 4), (12 * n) ** (-1 / 4)),
    }[side]


def sub_ln_gamma(side, n, m):
    return {
        "only": math.sqrt(math.log(2 * n)),
        "encoder": math.sqrt(math.log(3 * m) * math.log(2 * n) / 3),
        "decoder": math.sqrt(math.log(3 * n)),
    }[side]


# -- schemes that hand something on inside a block -------------------------------------


class Stream(np.ndarray):
    """[tokens, d_model], and `beside` it what the next sub-layer of the block needs."""


def with_beside(x, beside):
    stream = x.view(Stream)
    stream.beside = beside
    return stream


def rezero_write(state, branch, kept, params, i, *, per_block, **_):
    """One factor for all sub-layers of a block; the first has it."""
    factor = params["branch_scale"] if is_first(i, per_block) else state.beside
    return with_beside(post_norm(np.array(state) + factor * branch, params), factor)


def b2t_write(state, branch, kept, params, i, *, per_block, **_):
    """The input of the block is added once more at its end."""
    x = np.array(state)
    bottom = x if is_first(i, per_block) else state.beside
    y = x + branch
    if is_last(i, per_block) and per_block > 1:
        y = y + bottom
    return with_beside(post_norm(y, params), bottom)


# -- LayerNorm-Scaling: the norm of the joint stands where the branch reads ------------


def layernorm_scaling_read(x, params, i, *, per_block, power=0.5, **_):
    block = i // per_block + 1
    return post_norm(x, params) / block**power, None


def layernorm_scaling_write(x, branch, kept, params, i, **_):
    return x + branch


# -- ResiDual: a Post-LN stream x and a Pre-LN stream z --------------------------------


def residual_dual_open(x, params, *, normalize_input=False, **_):
    start = rmsnorm(x, params["input_norm/gain"]) if normalize_input else x
    return {"x": start, "z": x}


def residual_dual_read(state, params, i, **_):
    return state["x"], None


def residual_dual_write(state, branch, kept, params, i, **_):
    return {"x": post_norm(state["x"] + branch, params), "z": state["z"] + branch}


def residual_dual_close(state, params, **_):
    return state["x"] + rmsnorm(state["z"], params["norm/gain"])


# -- Fixup: three scalars per branch ---------------------------------------------------


def fixup_read(x, params, i, **_):
    return x + params["shift"], None


def fixup_write(x, branch, kept, params, i, **_):
    return post_norm(x + params["branch_scale"] * branch + params["bias"], params)


# -- DenseFormer: weighted sums of the outputs of all blocks ---------------------------


def denseformer_open(x, params, *, n_layers, **_):
    return {"x": x, "sources": history(x, 1 + n_layers)}


def history(x, n):
    """Room for n arrays like x, which is the first of them."""
    return np.stack([x] + (n - 1) * [np.zeros_like(x)])


def denseformer_read(state, params, i, **_):
    return state["x"], None


def denseformer_write(
    state, branch, kept, params, i, *, per_block, dilation=1, period=1, **_
):
    x = post_norm(state["x"] + branch, params)
    if not is_last(i, per_block):
        return {**state, "x": x}
    newest = (i + 1) // per_block
    outputs = state["sources"].copy()
    outputs[newest] = x
    if newest % period == 0:
        used = range(newest, -1, -dilation)
        x = sum(params["weights"][j] * outputs[j] for j in used)
    return {"x": x, "sources": outputs}


def denseformer_close(state, params, **_):
    return state["x"]


# -- attention residuals: softmax over the sources, token by token ---------------------
#
# The parameters of joint i are those of the read that follows it.


def attention_residuals_open(x, params, *, n_layers, n_groups=None, **_):
    return {"h": x, "sources": history(x, 1 + (n_groups or 2 * n_layers))}


def attention_residuals_read(state, params, i, **_):
    return state["h"], None


def attention_residuals_write(
    state, branch, kept, params, i, *, n_sublayers, n_groups=None, eps=1e-6, **_
):
    per_group = math.ceil(n_sublayers / min(n_groups or n_sublayers, n_sublayers))
    newest = 1 + i // per_group
    sources = state["sources"].copy()
    sources[newest] += branch
    h = np.empty_like(branch)
    for t in range(len(h)):
        values = sources[: newest + 1, t]
        scores = rmsnorm(values, params["key_norm/gain"], eps) @ params["query"]
        weights = np.exp(scores - scores.max())
        h[t] = weights / weights.sum() @ values
    return {"h": h, "sources": sources}


def attention_residuals_close(state, params, **_):
    return state["h"]


# -- value residual --------------------------------------------------------------------


def mixed_values(values, first=0.5, own=0.5):
    """Values of every block [n_layers][tokens, width] as its attention uses them."""
    return [values[0], *(first * values[0] + own * v for v in values[1:])]
