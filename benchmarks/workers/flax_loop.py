"""Flax NNX used the way its guides do: its own layers, a list of blocks, `nnx.jit`.

Learned positions (its layers have no RoPE); batches come from the host at every step, and
the loss is read when the steps are over.
"""

import importlib.metadata

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from benchmarks import points
from benchmarks.points import Point
from benchmarks.text import Windows
from benchmarks.worker import Built


class Block(nnx.Module):
    def __init__(self, point: Point, rngs: nnx.Rngs):
        d = point.d_model
        self.attn_norm = nnx.LayerNorm(d, rngs=rngs)
        self.attn = nnx.MultiHeadAttention(
            point.n_heads, d, use_bias=False, decode=False, rngs=rngs
        )
        self.ffn_norm = nnx.LayerNorm(d, rngs=rngs)
        self.up = nnx.Linear(d, point.d_ff, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(point.d_ff, d, use_bias=False, rngs=rngs)

    def __call__(self, x, mask):
        x = x + self.attn(self.attn_norm(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.ffn_norm(x))))


class Decoder(nnx.Module):
    def __init__(self, point: Point, rngs: nnx.Rngs):
        init = nnx.initializers.normal(0.02)
        d = point.d_model
        self.table = nnx.Embed(point.vocab_size, d, embedding_init=init, rngs=rngs)
        self.positions = nnx.Embed(point.seq_len, d, embedding_init=init, rngs=rngs)
        self.blocks = nnx.List([Block(point, rngs) for _ in range(point.n_layers)])
        self.final_norm = nnx.LayerNorm(d, rngs=rngs)

    def __call__(self, tokens):
        x = self.table(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        mask = nnx.make_causal_mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.table.attend(self.final_norm(x))


@nnx.jit
def train_step(model, optimizer, batch):
    def loss_of(model):
        logits = model(batch[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(
            logits, batch[:, 1:]
        ).mean()

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def build(point: Point, text: str) -> Built:
    model = Decoder(point, nnx.Rngs(0))
    params = nnx.state(model, nnx.Param)
    leaves = jax.tree.leaves(params)
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
    optimizer = nnx.Optimizer(model, transform, wrt=nnx.Param)
    windows = Windows(text, point.batch_size, point.seq_len)

    def run(n):
        for _ in range(n):
            loss = train_step(model, optimizer, windows.next().astype("int32"))
        jax.block_until_ready((nnx.state(model), nnx.state(optimizer)))
        return {"loss": float(loss)}

    positions = point.seq_len * point.d_model
    return Built(
        {"run": run},
        {
            "n_params": sum(x.size for x in leaves),
            "matmul_params": sum(x.size for x in leaves if x.ndim > 1) - positions,
            "versions": {
                name: importlib.metadata.version(name) for name in ("jax", "flax")
            },
        },
    )
