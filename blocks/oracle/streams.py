"""Residual schemes of several streams in float64 NumPy, one scheme per section.

How the oracle of a residual scheme is written, here and in `blocks.oracle.residual`.
A scheme NAME (stem of its YAML, or the module of its class: the first that is found)
is up to four functions:

    NAME_open(x, params, **keywords) -> state                        default: x
    NAME_read(state, params, i, **keywords) -> u, kept               default: state, None
    NAME_write(state, branch, kept, params, i, **keywords) -> state  must exist
    NAME_close(state, params, **keywords) -> x                       default: state

x, u, branch: [tokens, d_model]; `state`: any pytree of arrays (here
[n_streams, tokens, d_model]); i: number of the sub-layer in the model, from 0, an int.
`params`: of the ends for open and close, of joint i for read and write:
{"phi": array, "post_norm/gain": array, ...}, the paths inside that module. Where
"post_norm/gain" is there, the joint was made with a post_norm, and what
normalizes is `rmsnorm(x, gain)` below (eps 1e-6). `keywords`: those of the YAML, and
n_layers, per_block (sub-layers of a block) and n_sublayers; functions end in `**_`.

`kept` is whatever `write` wants to find again. Nothing imports from outside NumPy.
"""

import itertools

import numpy as np


def rmsnorm(x, gain=1.0, eps=1e-6):
    """gain * x / sqrt(mean(x^2) + eps) over the last axis."""
    return gain * x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


# -- ends ------------------------------------------------------------------------------


def copies_open(x, params, *, n_streams=4, expand="copy", **_):
    """Every stream begins as the embedding, or the first one only."""
    state = np.zeros((n_streams, *x.shape))
    state[0 if expand == "first" else slice(None)] = x
    return state


def streams_close(state, params, *, reduce="mean", eps=1e-6, coefficient_eps=0.0, **_):
    """mean_s x[s], sum_s x[s], or sum_s w[s] x[s] with w from all streams."""
    if reduce == "sum":
        return state.sum(axis=0)
    if reduce == "mean":
        return state.mean(axis=0)
    n, tokens, width = state.shape
    y = np.zeros((tokens, width))
    for t in range(tokens):
        v = rmsnorm(state[:, t].reshape(n * width), eps=eps)
        logits = params["alpha"] * (v @ params["phi"].reshape(n * width, n))
        y[t] = (sigmoid(logits + params["bias"]) + coefficient_eps) @ state[:, t]
    return y


# -- hyper-connections, arXiv 2409.19606 ------------------------------------------------


def hyper_connections_read(state, params, i, *, has_tanh=True, **_):
    """h0 = A_m^T H; A_m, A_r, B = static + scale * tanh(norm(H) W)."""
    n, tokens, width = state.shape
    u, kept = np.zeros((tokens, width)), []
    for t in range(tokens):
        h = state[:, t]
        a_m, a_r = params["read_weights"], params["mixing"]
        b = params["write_weights"]
        if "dynamic/weight" in params:
            said = rmsnorm(h) @ params["dynamic/weight"]  # [n, n + 2]
            said = np.tanh(said) if has_tanh else said
            s_alpha, s_beta = params["dynamic/scale"]
            a_m = a_m + s_alpha * said[:, 0]
            a_r = a_r + s_alpha * said[:, 1 : n + 1]
            b = b + s_beta * said[:, n + 1]
        u[t] = a_m @ h
        kept.append((a_r, b))
    return u, kept


def hyper_connections_write(state, branch, kept, params, i, **_):
    """H_new = B^T F(h0) + A_r^T H."""
    new = np.zeros_like(state)
    for t, (a_r, b) in enumerate(kept):
        new[:, t] = np.outer(b, branch[t]) + a_r.T @ state[:, t]
    return new


hyper_connections_open, hyper_connections_close = copies_open, streams_close


# -- frac-connections, arXiv 2503.14125 -------------------------------------------------


def frac_connections_open(x, params, *, n_streams=4, **_):
    """H = reshape(h, (m, d / m))."""
    tokens, width = x.shape
    return x.reshape(tokens, n_streams, width // n_streams).transpose(1, 0, 2)


def frac_connections_close(state, params, **_):
    m, tokens, width = state.shape
    return state.transpose(1, 0, 2).reshape(tokens, m * width)


def frac_connections_read(state, params, i, *, has_tanh=True, **_):
    """h0 = reshape(Y^T H, (d,))."""
    m, tokens, width = state.shape
    u, kept = np.zeros((tokens, m * width)), []
    for t in range(tokens):
        h = state[:, t]
        y, a, b = params["reading"], params["mixing"], params["write_weights"]
        if "dynamic/weight" in params:
            said = rmsnorm(h) @ params["dynamic/weight"]  # [m, 2 m + 1]
            said = np.tanh(said) if has_tanh else said
            s_alpha, s_beta = params["dynamic/scale"]
            y = y + s_alpha * said[:, :m]
            a = a + s_alpha * said[:, m : 2 * m]
            b = b + s_beta * said[:, 2 * m]
        u[t] = (y.T @ h).reshape(-1)
        kept.append((a, b))
    return u, kept


def frac_connections_write(state, branch, kept, params, i, **_):
    """H_new = diag(B) reshape(F(h0), (m, d / m)) + A^T H."""
    new = np.zeros_like(state)
    for t, (a, b) in enumerate(kept):
        cut = branch[t].reshape(state.shape[0], -1)
        new[:, t] = np.diag(b) @ cut + a.T @ state[:, t]
    return new


# -- schemes with generated coefficients, arXiv 2512.24880 ------------------------------


def generated_read(state, params, mixing_of, *, eps, coefficient_eps, post_eps=0.0):
    """u = H_pre x; H_pre, H_post, H_res from the RMS-normalized flattened streams."""
    n, tokens, width = state.shape
    alpha, bias = params["alpha"], params["bias"]
    phi = params["phi"].reshape(n * width, -1)
    u, kept = np.zeros((tokens, width)), []
    for t in range(tokens):
        v = rmsnorm(state[:, t].reshape(n * width), eps=eps)
        raw_pre = alpha[0] * (v @ phi[:, :n]) + bias[:n]
        raw_post = alpha[1] * (v @ phi[:, n : 2 * n]) + bias[n : 2 * n]
        raw_res = None
        if len(alpha) == 3:
            raw_res = alpha[2] * (v @ phi[:, 2 * n :]) + bias[2 * n :]
        h_post = 2 * sigmoid(raw_post) + post_eps
        u[t] = (sigmoid(raw_pre) + coefficient_eps) @ state[:, t]
        kept.append((mixing_of(raw_res), h_post))
    return u, kept


def generated_write(state, branch, kept, params, i, **_):
    """x_new = H_res x + H_post^T F(u)."""
    new = np.zeros_like(state)
    for t, (h_res, h_post) in enumerate(kept):
        new[:, t] = h_res @ state[:, t] + np.outer(h_post, branch[t])
    return new


def plain_if_single(function, plain):
    """The scheme with n_streams = 1 is the plain residual: see the functions below."""

    def either(*args, n_streams=4, **keywords):
        chosen = plain if n_streams == 1 else function
        return chosen(*args, n_streams=n_streams, **keywords)

    return either


generated_open = plain_if_single(copies_open, lambda x, params, **_: x)
generated_close = plain_if_single(streams_close, lambda x, params, **_: x)


def sinkhorn(logits, iterations, eps=0.0):
    """Columns, then rows divided by their sums; eps > 0 as in DeepSeek-V4."""
    m = np.exp(logits - logits.max(axis=0))
    m = m / m.sum(axis=0) + eps
    m = m / (m.sum(axis=1, keepdims=True) + eps)
    for _ in range(iterations - 1):
        m = m / (m.sum(axis=0) + eps)
        m = m / (m.sum(axis=1, keepdims=True) + eps)
    return m


def mhc_read(
    state, params, i, *, n_streams=4, iterations=20, eps=1e-6, coefficient_eps=0.0, **_
):
    """H_res = Sinkhorn(mat(raw_res)), mat row by row."""

    def mixing_of(raw):
        logits = raw.reshape(n_streams, n_streams)
        return sinkhorn(logits, iterations, coefficient_eps)

    return generated_read(
        state, params, mixing_of, eps=eps, coefficient_eps=coefficient_eps
    )


mhc_open, mhc_write, mhc_close = generated_open, generated_write, generated_close


# -- H_res = I: huggingface/transformers models/hy_v4 -----------------------------------


def identity_hc_read(
    state, params, i, *, n_streams=4, eps=1e-6, coefficient_eps=0.0, **_
):
    return generated_read(
        state,
        params,
        lambda raw: np.eye(n_streams),
        eps=eps,
        coefficient_eps=coefficient_eps,
        post_eps=coefficient_eps,
    )


identity_hc_open, identity_hc_close = generated_open, generated_close
identity_hc_write = generated_write


# -- a convex combination of permutations, arXiv 2601.05732 -----------------------------


def permutation_mixture(raw, n):
    """sum_k softmax(raw)_k P_k, permutations in lexicographic order."""
    weights = np.exp(raw - raw.max())
    weights = weights / weights.sum()
    h = np.zeros((n, n))
    for weight, order in zip(weights, itertools.permutations(range(n)), strict=True):
        for i, j in enumerate(order):
            h[i, j] += weight
    return h


def mhc_lite_read(state, params, i, *, n_streams=4, eps=1e-6, **_):
    return generated_read(
        state,
        params,
        lambda raw: permutation_mixture(raw, n_streams),
        eps=eps,
        coefficient_eps=0.0,
    )


mhc_lite_open, mhc_lite_close = generated_open, generated_close
mhc_lite_write = generated_write


# -- rotations: arXiv 2602.18308; their squared blocks: arXiv 2604.02309 ----------------


def rotation(raw, n):
    """(I + A)^-1 (I - A), A skew-symmetric with `raw` above its diagonal, row by row."""
    a = np.zeros((n, n))
    a[np.triu_indices(n, 1)] = raw
    a = a - a.T
    return np.linalg.solve(np.eye(n) + a, np.eye(n) - a)


def squared_blocks(q, s):
    """H[i, j] = |block (i, j) of Q|^2 / s, blocks [s, s]."""
    n = len(q) // s
    h = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            block = q[i * s : (i + 1) * s, j * s : (j + 1) * s]
            h[i, j] = np.sum(block**2) / s
    return h


def orthogonal_read(state, params, i, *, n_streams=4, eps=1e-6, **_):
    return generated_read(
        state,
        params,
        lambda raw: rotation(raw, n_streams),
        eps=eps,
        coefficient_eps=0.0,
    )


def go_mhc_read(state, params, i, *, n_streams=4, block_size=2, eps=1e-6, **_):
    def mixing_of(raw):
        return squared_blocks(rotation(raw, n_streams * block_size), block_size)

    return generated_read(state, params, mixing_of, eps=eps, coefficient_eps=0.0)


orthogonal_open = go_mhc_open = generated_open
orthogonal_write = go_mhc_write = generated_write
orthogonal_close = go_mhc_close = generated_close


# -- gains of products of mixing matrices, arXiv 2512.24880 figures 3 and 7 -------------


def composite_gain(mixings, at, direction):
    """(max |sum|, min |sum|, max sum of |entries|) at a sub-layer, from 1.

    forward: row sums of H_at ... H_1; backward: column sums of H_L ... H_at.
    """
    chosen = mixings[:at] if direction == "forward" else mixings[at - 1 :]
    product = np.eye(mixings.shape[-1])
    for h in chosen:
        product = h @ product
    axis = 1 if direction == "forward" else 0
    sums = np.abs(product.sum(axis=axis))
    return sums.max(), sums.min(), np.abs(product).sum(axis=axis).max()


# -- the single-stream chain of 36 random maps ------------------------------------------


def random_chain(kind, steps=36, width=256, seed=5):
    """RMS of the stream after every step of a chain of random linear branches.

    h: standard normal, drawn first; W: all maps, standard normal / sqrt(width), drawn
    next. none: h + W h; pre: h + W U(h); post: U(h + W h), U(h) = h / RMS(h).
    """
    rng = np.random.default_rng(seed)
    h = rng.standard_normal(width)
    maps = rng.standard_normal((steps, width, width)) / np.sqrt(width)

    def rms(h):
        return np.sqrt(np.mean(h**2))

    sizes = []
    for w in maps:
        if kind == "none":
            h = h + w @ h
        elif kind == "pre":
            h = h + w @ (h / rms(h))
        else:
            h = h + w @ h
            h = h / rms(h)
        sizes.append(rms(h))
    return np.array(sizes)
