"""The least that trains the same model: plain jax, no framework, one short file.

Same parameters, same arithmetic as the framework's model at a point (LayerNorm with gain
and bias, RoPE, tied head, AdamW with clipping and decay of the matrices), laid out the
way that is fastest on a CPU: layers stacked under one scan, a checkpoint that keeps the
products, flat [tokens, d_model] activations, explicit [batch, head, token, feature]
attention, many steps in one call. It measures no gradient norm beyond the clip, checks
nothing and offers nothing.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import points
from benchmarks.points import Point
from benchmarks.text import TRAIN_FRACTION
from benchmarks.worker import Built

STEPS = 50  # in one call
DECAYED = ("q", "k", "v", "o", "up", "down")


def init(point: Point, seed: int = 0) -> dict:
    """Flat dict; every leaf but `table` and `final_*` has a leading layer axis."""
    d, f, n = point.d_model, point.d_ff, point.n_layers
    shapes = {
        "table": (point.vocab_size, d),
        **{name: (n, d, d) for name in ("q", "k", "v", "o")},
        "up": (n, d, f),
        "down": (n, f, d),
    }
    sizes = [int(np.prod(s)) for s in shapes.values()]
    flat = 0.02 * jax.random.normal(jax.random.key(seed), (sum(sizes),))
    parts = jnp.split(flat, np.cumsum(sizes)[:-1])
    params = {k: p.reshape(shapes[k]) for k, p in zip(shapes, parts, strict=True)}
    for site, shape in (("attn", (n, d)), ("ffn", (n, d)), ("final", (d,))):
        params[f"{site}_gain"] = jnp.ones(shape)
        params[f"{site}_bias"] = jnp.zeros(shape)
    return params


def layernorm(x, gain, bias):
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    return gain * (centred * jax.lax.rsqrt(variance + 1e-5)) + bias


def rope(x):
    """Turns the pairs (i, i + d / 2) of [batch, head, token, d]."""
    seq, half = x.shape[-2], x.shape[-1] // 2
    angle = jnp.arange(seq)[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def block(point: Point, x, p):
    batch, seq = x.shape[0] // point.seq_len, point.seq_len
    d_head = point.d_model // point.n_heads

    def heads(y):
        return y.reshape(batch, seq, point.n_heads, d_head).transpose(0, 2, 1, 3)

    h = layernorm(x, p["attn_gain"], p["attn_bias"])
    q, k, v = (heads(h @ p[name]) for name in ("q", "k", "v"))
    scores = rope(q) @ rope(k).swapaxes(-1, -2) * d_head**-0.5
    seen = jnp.tril(jnp.ones((seq, seq), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, jnp.finfo(x.dtype).min), axis=-1)
    y = (weights @ v).transpose(0, 2, 1, 3).reshape(batch * seq, point.d_model)
    x = x + y @ p["o"]
    h = layernorm(x, p["ffn_gain"], p["ffn_bias"])
    return x + jax.nn.gelu(h @ p["up"]) @ p["down"]


def loss(point: Point, params: dict, batch) -> jax.Array:
    """Mean nats per token of [batch, seq + 1] tokens."""
    outer = ("table", "final_gain", "final_bias")
    layers = {k: v for k, v in params.items() if k not in outer}
    body = jax.checkpoint(
        lambda x, p: (block(point, x, p), None),
        policy=jax.checkpoint_policies.dots_saveable,
        prevent_cse=False,
    )
    x, _ = jax.lax.scan(body, params["table"][batch[:, :-1].reshape(-1)], layers)
    x = layernorm(x, params["final_gain"], params["final_bias"])
    logits = x @ params["table"].T
    targets = batch[:, 1:].reshape(-1)
    picked = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def step(point: Point, text, key, carry, _):
    params, m, v, t = carry
    starts = jax.random.randint(
        jax.random.fold_in(key, t), (point.batch_size,), 0, text.size - point.seq_len
    )
    cut = functools.partial(
        jax.lax.dynamic_slice, text, slice_sizes=(point.seq_len + 1,)
    )
    batch = jax.vmap(lambda i: cut((i,)))(starts).astype(jnp.int32)
    value, grads = jax.value_and_grad(lambda p: loss(point, p, batch))(params)
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in grads.values()))
    grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, points.CLIP_NORM / norm), grads)
    t = t + 1
    m = jax.tree.map(lambda m, g: points.B1 * m + (1 - points.B1) * g, m, grads)
    v = jax.tree.map(lambda v, g: points.B2 * v + (1 - points.B2) * g * g, v, grads)
    new = {}
    for k, p in params.items():
        u = (
            m[k]
            / (1 - points.B1**t)
            / (jnp.sqrt(v[k] / (1 - points.B2**t)) + points.EPS)
        )
        if k in DECAYED:
            u = u + points.WEIGHT_DECAY * p
        new[k] = p - points.LEARNING_RATE * u
    return (new, m, v, t), value


def build(point: Point, text: str) -> Built:
    data = np.fromfile(text, np.uint8)
    data = jax.device_put(data[: int(data.size * TRAIN_FRACTION)])
    key = jax.random.key(0)

    @functools.partial(jax.jit, donate_argnums=0)
    def steps(carry, data, n):
        def body(i, both):
            carry, losses = both
            carry, value = step(point, data, key, carry, None)
            return carry, losses.at[i].set(value)

        return jax.lax.fori_loop(0, n, body, (carry, jnp.zeros(STEPS)))

    params = jax.jit(functools.partial(init, point))()
    zeros = jax.tree.map(jnp.zeros_like, params)
    carry = (params, zeros, jax.tree.map(jnp.copy, zeros), jnp.int32(0))
    n_params = sum(p.size for p in params.values())
    products = ("table", *DECAYED)
    matmul_params = sum(params[k].size for k in products)

    def run(n):
        nonlocal carry
        done = 0
        while done < n:
            now = min(STEPS, n - done)
            carry, losses = steps(carry, data, jnp.int32(now))
            last = jax.device_get(losses)[now - 1]
            done += now
        return {"loss": float(last)}

    return Built(
        {"run": run},
        {
            "n_params": n_params,
            "matmul_params": matmul_params,
            "versions": {"jax": jax.__version__},
        },
    )
