"""google-deepmind/nanodo from a checkout: its model, its kind of step, no metrics.

Learned positions, LayerNorm without bias. Its own loop computes metrics per tensor at
every step and fetches them; without them it is the faster, and the fairer, side.
"""

import sys

import jax
import jax.numpy as jnp
import optax

from benchmarks import points
from benchmarks.points import Point
from benchmarks.text import Windows
from benchmarks.worker import Built


def build(point: Point, text: str, *, checkout: str) -> Built:
    """checkout: folder that has `nanodo/model.py`."""
    sys.path.insert(0, checkout)
    from nanodo import model as nanodo

    config = nanodo.DoConfig(
        D=point.d_model,
        H=point.n_heads,
        L=point.seq_len,
        N=point.n_layers,
        V=point.vocab_size,
        F=point.d_ff,
        fsdp_enabled=False,
    )
    model = nanodo.TransformerDo(config)
    windows = Windows(text, point.batch_size, point.seq_len)
    tokens = jnp.zeros((point.batch_size, point.seq_len), jnp.int32)
    params = jax.jit(model.init)(jax.random.key(0), tokens)
    transform = optax.chain(
        optax.clip_by_global_norm(points.CLIP_NORM),
        optax.adamw(
            points.LEARNING_RATE,
            points.B1,
            points.B2,
            points.EPS,
            weight_decay=points.WEIGHT_DECAY,
            mask=lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree),
        ),
    )
    state = (params, transform.init(params))

    def step(state, batch):
        params, opt = state

        def loss_of(params):
            logits = model.apply(params, batch[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(
                logits, batch[:, 1:]
            ).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, opt = transform.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), loss

    train_step = jax.jit(step, donate_argnums=0)
    leaves = jax.tree.leaves(params)
    positions = point.seq_len * point.d_model
    info = {
        "n_params": sum(x.size for x in leaves),
        "matmul_params": sum(x.size for x in leaves if x.ndim > 1) - positions,
        "versions": {"jax": jax.__version__},
    }

    def run(n):
        nonlocal state
        for _ in range(n):
            state, loss = train_step(state, windows.next().astype("int32"))
        jax.block_until_ready(state)
        return {"loss": float(loss)}

    return Built({"run": run}, info)
