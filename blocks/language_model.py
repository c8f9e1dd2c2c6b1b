"""A decoder-only language model from the parts it is given."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.attention_stack import attention_stack
from blocks.auxiliary_loss import with_loss
from blocks.linear import Linear
from blocks.norms.at_site import make_norm
from blocks.norms.looks import look_at_norm
from blocks.stack import REMAT, Stack
from blocks.state import Running
from blocks.taps import mean_square
from blocks.token_loss import chunked_losses, token_losses

DTYPES = ("float32", "bfloat16", "float64")


def check_dtype(dtype: str) -> None:
    """Raises ValueError for what a model cannot compute in."""
    if dtype == "float16":
        raise ValueError(
            "dtype float16: gradients below 6e-8 vanish and activations above 65504 "
            "overflow, and there is no loss scaling here; take bfloat16"
        )
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")


class LanguageModel(nnx.Module):
    """Token embedding, a stack of attention and feed-forward blocks, a head.

        x = embedding_norm(embedding_scale * table[tokens] + embedding_positions)
        x = close(blocks(open(x)))
        logits = logit_scale * final_norm(x) @ head     head: [d_model, vocab_size]
        logits = cap * tanh(logits / cap)               where logit_softcap is given

    Each norm exists where `placement` says. Activations are flat, [batch * seq, d_model],
    in `dtype`, and so are the logits; the loss is computed in float32 or wider.

    Args:
        vocab_size: rows of the table.
        d_model, n_layers, n_heads, n_kv_heads, d_head, d_ff: sizes; n_kv_heads defaults
            to n_heads, d_head to d_model / n_heads, d_ff to the width rule of `ffn`.
        norm: factory `norm(width, rngs=rngs)` of every norm; `attn_norm`, `ffn_norm`,
            `final_norm` replace it at their site (the embedding norm uses `norm`).
        attention, ffn: factories of the branches.
        embedding_positions: factory of positions that are added to the embedding.
        pattern: layers with other parts (`blocks.pattern`), or None.
        residual: the residual scheme. placement: where norms sit. init: initial values.
        tied_head: the head is the transposed table.
        embedding_scale: fixed factor on the embedding: sqrt(d_model) in Gemma.
        embedding_scale_init: initial value of a learned factor on it, None for none.
        logit_scale, logit_softcap: of the logits. head_bias: the head learns an offset.
        z_loss: coefficient of mean(logsumexp(logits)^2), which is minimized beside the
            cross-entropy and not reported; 1e-4 in PaLM (arXiv 2204.02311). None: none.
        loss_chunk: tokens whose logits exist at a time while the loss is computed; None:
            all. Less memory where the vocabulary is large (`blocks.token_loss`).
        dtype: of the activations. remat: see `blocks.stack`.
        stack: how the blocks are held and run.
    """

    traced = ("embedding_scale_init", "z_loss")

    @staticmethod
    def check(
        *,
        d_model: int,
        n_layers: int,
        n_heads: int,
        d_ff: int | None,
        vocab_size: int | None = None,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        embedding_scale: float = 1.0,
        embedding_scale_init: float | None = None,
        logit_scale: float = 1.0,
        logit_softcap: float | None = None,
        z_loss: float | None = None,
        loss_chunk: int | None = None,
        tied_head: bool = False,
        head_bias: bool = False,
        dtype: str = "float32",
        remat: str = "auto",
        **_,
    ) -> None:
        sizes = dict(d_model=d_model, n_layers=n_layers, n_heads=n_heads)
        optional = dict(
            vocab_size=vocab_size, n_kv_heads=n_kv_heads, d_head=d_head, d_ff=d_ff
        )
        sizes |= {k: v for k, v in optional.items() if v is not None}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        if d_head is None and d_model % n_heads:
            raise ValueError(
                f"d_model={d_model} is not divisible by n_heads={n_heads} "
                "(choose another width, or set d_head)"
            )
        if n_kv_heads is not None and n_heads % n_kv_heads:
            raise ValueError(
                f"n_heads={n_heads} is not divisible by n_kv_heads={n_kv_heads}"
            )
        if not (math.isfinite(embedding_scale) and embedding_scale > 0):
            raise ValueError(f"embedding_scale must be positive, got {embedding_scale}")
        if embedding_scale_init is not None and not math.isfinite(embedding_scale_init):
            raise ValueError(
                f"embedding_scale_init must be finite, got {embedding_scale_init}"
            )
        if not (math.isfinite(logit_scale) and logit_scale > 0):
            raise ValueError(f"logit_scale must be positive, got {logit_scale}")
        if logit_softcap is not None and not logit_softcap > 0:
            raise ValueError(f"logit_softcap must be positive, got {logit_softcap}")
        if z_loss is not None and not (math.isfinite(z_loss) and z_loss >= 0):
            raise ValueError(f"z_loss must not be negative, got {z_loss}")
        if loss_chunk is not None and loss_chunk < 1:
            raise ValueError(f"loss_chunk must be at least 1, got {loss_chunk}")
        if tied_head and head_bias:
            raise ValueError("head_bias needs a head of its own (tied_head is true)")
        check_dtype(dtype)
        if remat not in REMAT:
            raise ValueError(f"remat must be one of {', '.join(REMAT)}, got {remat!r}")

    def __init__(
        self,
        vocab_size: int | None = None,
        d_model: int = 64,
        *,
        n_layers: int = 4,
        n_heads: int = 4,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        d_ff: int | None = 256,
        norm: Callable,
        attn_norm: Callable | None = None,
        ffn_norm: Callable | None = None,
        final_norm: Callable | None = None,
        attention: Callable,
        ffn: Callable,
        residual,
        placement,
        init,
        embedding_positions: Callable | None = None,
        pattern: Callable | None = None,
        tied_head: bool = False,
        head_bias: bool = False,
        embedding_scale: float = 1.0,
        embedding_scale_init: float | None = None,
        logit_scale: float = 1.0,
        logit_softcap: float | None = None,
        z_loss: float | None = None,
        loss_chunk: int | None = None,
        dtype: str = "float32",
        remat: str = "auto",
        stack: Callable = Stack,
        rngs: nnx.Rngs,
    ):
        if vocab_size is None:
            raise ValueError("vocab_size is needed to build a language model")
        self.dtype = dtype
        self.looks = ()  # what it measures beside the stream: `blocks.looking`
        self.fixed_embedding_scale = embedding_scale
        self.logit_scale = logit_scale
        self.logit_softcap = logit_softcap
        self.loss_chunk = loss_chunk
        # Kept as state because members of a program may differ in it.
        self.z_loss = (
            None if z_loss is None else Running(jnp.full((), z_loss, jnp.float32))
        )
        key = rngs.params()
        # One key per component: what one of them draws never shifts another.
        at = [nnx.Rngs(params=jax.random.fold_in(key, i)) for i in range(7)]
        self.table = nnx.Param(
            init.embedding(at[0].params(), (vocab_size, d_model)), role="embedding"
        )
        self.embedding_scale = (
            None
            if embedding_scale_init is None
            else nnx.Param(
                jnp.full((1,), embedding_scale_init, jnp.float32), role="scale"
            )
        )
        self.embedding_positions = (
            None
            if embedding_positions is None
            else embedding_positions(d_model, init=init, rngs=at[6])
        )
        self.embedding_norm = (
            make_norm(norm, d_model, "embedding", rngs=at[1])
            if placement.embedding_norm
            else None
        )
        self.ends = residual.make_ends(
            d_model, n_layers=n_layers, norm=norm, rngs=at[4]
        )
        self.blocks = attention_stack(
            d_model,
            n_heads,
            d_ff,
            n_layers=n_layers,
            norm=norm,
            attn_norm=attn_norm,
            ffn_norm=ffn_norm,
            attention=attention,
            ffn=ffn,
            residual=residual,
            placement=placement,
            init=init,
            pattern=pattern,
            remat=remat,
            sizes={"n_kv_heads": n_kv_heads, "d_head": d_head},
            stack=stack,
            rngs=at[2],
        )
        self.final_norm = (
            make_norm(final_norm or norm, d_model, "final", rngs=at[5])
            if placement.final_norm
            else None
        )
        self.head = (
            None
            if tied_head
            else Linear(
                d_model,
                vocab_size,
                use="head",
                init=init,
                n_sublayers=2 * n_layers,
                bias=head_bias,
                rngs=at[3],
            )
        )

    def embed(self, tokens: jax.Array) -> jax.Array:
        """[batch, seq] integers -> [batch * seq, d_model], entering the first block."""
        x = self.table[...][tokens.reshape(-1)].astype(self.dtype)
        if self.fixed_embedding_scale != 1.0:
            x = self.fixed_embedding_scale * x
        if self.embedding_scale is not None:
            x = x * self.embedding_scale[...].astype(x.dtype)
        if self.embedding_positions is not None:
            x = self.embedding_positions(x, tokens.shape)
        return x if self.embedding_norm is None else self.embedding_norm(x)

    def hidden(self, tokens: jax.Array, stream_taps: jax.Array | None = None):
        """The stream after the last block [batch * seq, d_model], and measurements."""
        x = self.embed(tokens)
        state, measured = self.blocks(
            self.ends.open(x), tokens.shape, stream_taps=stream_taps
        )
        if stream_taps is not None:
            measured = {**measured, "input_mean_square": mean_square(x)}
        return self.ends.close(state), measured

    def logits(self, hidden: jax.Array) -> jax.Array:
        """[tokens, d_model] -> [tokens, vocab_size], in the dtype of the activations."""
        return self._unembedded(self._normalized(hidden))

    def _normalized(self, hidden: jax.Array) -> jax.Array:
        return hidden if self.final_norm is None else self.final_norm(hidden)

    def _unembedded(self, x: jax.Array) -> jax.Array:
        if self.head is None:
            logits = x @ self.table[...].astype(x.dtype).T
        else:
            logits = self.head(x)
        if self.logit_scale != 1.0:
            logits = self.logit_scale * logits
        if self.logit_softcap is None:
            return logits
        wide = jnp.promote_types(logits.dtype, jnp.float32)
        cap = self.logit_softcap
        return (cap * jnp.tanh(logits.astype(wide) / cap)).astype(logits.dtype)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """[batch, seq] integers -> logits [batch, seq, vocab_size]."""
        hidden, _ = self.hidden(tokens)
        return self.logits(hidden).reshape(*tokens.shape, -1)

    def loss(self, batch: jax.Array, stream_taps: jax.Array | None = None):
        """Mean cross-entropy in nats per token of predicting each next token.

        Args:
            batch: tokens [batch, seq + 1].
            stream_taps: zeros [n_layers, 2] to measure the stream, or None.

        Returns:
            loss (float32 or wider), measurements (empty if not asked for, by taps or
            by `blocks.looking.set_looking`).
        """
        hidden, measured = self.hidden(batch[:, :-1], stream_taps)
        if "norms" in self.looks and self.final_norm is not None:
            seen = look_at_norm(self.final_norm, hidden)
            measured |= {f"final/{name}": value for name, value in seen.items()}
        x, targets = self._normalized(hidden), batch[:, 1:].reshape(-1)
        if self.loss_chunk is None:
            losses, totals = token_losses(self._unembedded(x), targets)
            loss, z = jnp.mean(losses), jnp.mean(jnp.square(totals))
        else:
            loss, z = chunked_losses(self._unembedded, x, targets, self.loss_chunk)
        if self.z_loss is not None:
            loss = with_loss(loss, self.z_loss[...].astype(z.dtype) * z)
        return loss, measured


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """mean(logsumexp(logits) - logits[target]), in float32 or wider.

    logits [tokens, vocab], targets [tokens] integers; nats per token.
    """
    return jnp.mean(token_losses(logits, targets)[0])
