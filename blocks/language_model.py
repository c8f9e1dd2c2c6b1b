"""A decoder-only language model from the parts it is given."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.auxiliary_loss import with_loss
from blocks.checks import (
    check_finite,
    check_not_negative,
    check_positive,
    check_sizes,
)
from blocks.keywords import with_keywords_of
from blocks.linear import Linear
from blocks.norms.looks import look_at_norm
from blocks.positions.place import Place
from blocks.reading import reading
from blocks.state import Running
from blocks.token_loss import chunked_losses, token_losses
from blocks.transformer import Transformer, component
from blocks.wide_gradient import wide_gradient


class LanguageModel(Transformer):
    """Token embedding, a stack of attention and feed-forward blocks, a head.

        x = embedding_norm(embedding_scale * table[tokens] + embedding_positions)
        x = close(blocks(open(x)))
        logits = logit_scale * final_norm(x) @ head     head: [d_model, vocab_size]
        logits = cap * tanh(logits / cap)               where logit_softcap is given

    Each norm exists where `placement` says. Activations are flat, [batch * seq, d_model],
    in `dtype`, and so are the logits; the loss is computed in float32 or wider.

    Args:
        vocab_size: rows of the table.
        d_model and what is not listed here: as in `blocks.transformer.Transformer`.
        embedding_positions: factory of positions that are added to the embedding.
        tied_head: the head is the transposed table.
        embedding_scale: fixed factor on the embedding: sqrt(d_model) in Gemma.
        embedding_scale_init: initial value of a learned factor on it, None for none.
        logit_scale, logit_softcap: of the logits. head_bias: the head learns an offset.
        z_loss: coefficient of mean(logsumexp(logits)^2), which is minimized beside the
            cross-entropy and not reported; 1e-4 in PaLM (arXiv 2204.02311). None: none.
        loss_chunk: tokens whose logits exist at a time while the loss is computed; None:
            all. Less memory where the vocabulary is large (`blocks.token_loss`).
    """

    traced = ("embedding_scale_init", "z_loss")
    says_tokens = True  # to parts that ask: `blocks.reading`

    @staticmethod
    @with_keywords_of(Transformer.check)
    def check(
        *,
        vocab_size: int | None = None,
        embedding_scale: float = 1.0,
        embedding_scale_init: float | None = None,
        logit_scale: float = 1.0,
        logit_softcap: float | None = None,
        z_loss: float | None = None,
        loss_chunk: int | None = None,
        tied_head: bool = False,
        head_bias: bool = False,
        **trunk,
    ) -> None:
        check_sizes(vocab_size=vocab_size, loss_chunk=loss_chunk)
        Transformer.check(**trunk)
        if embedding_scale_init is not None:
            check_finite(embedding_scale_init=embedding_scale_init)
        check_positive(embedding_scale=embedding_scale, logit_scale=logit_scale)
        if logit_softcap is not None:
            check_positive(logit_softcap=logit_softcap)
        if z_loss is not None:
            check_not_negative(z_loss=z_loss)
        if tied_head and head_bias:
            raise ValueError("head_bias needs a head of its own (tied_head is true)")

    @with_keywords_of(Transformer.__init__)
    def __init__(
        self,
        vocab_size: int | None = None,
        d_model: int = 64,
        *,
        n_layers: int = 4,
        init,
        embedding_positions: Callable | None = None,
        tied_head: bool = False,
        head_bias: bool = False,
        embedding_scale: float = 1.0,
        embedding_scale_init: float | None = None,
        logit_scale: float = 1.0,
        logit_softcap: float | None = None,
        z_loss: float | None = None,
        loss_chunk: int | None = None,
        rngs: nnx.Rngs,
        **trunk,
    ):
        if vocab_size is None:
            raise ValueError("vocab_size is needed to build a language model")
        key = rngs.params()
        super().__init__(key, d_model, n_layers=n_layers, init=init, **trunk)
        self.fixed_embedding_scale = embedding_scale
        self.logit_scale = logit_scale
        self.logit_softcap = logit_softcap
        self.loss_chunk = loss_chunk
        # Kept as state because members of a program may differ in it.
        self.z_loss = (
            None if z_loss is None else Running(jnp.full((), z_loss, jnp.float32))
        )
        self.table = nnx.Param(
            init.embedding(component(key, 0).params(), (vocab_size, d_model)),
            role="embedding",
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
            else embedding_positions(d_model, init=init, rngs=component(key, 6))
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
                rngs=component(key, 3),
            )
        )

    def embed(self, tokens: jax.Array, place: Place | None = None) -> jax.Array:
        """[batch, seq] integers -> [batch * seq, d_model], entering the first block.

        place: which positions the tokens have; None is from 0.
        """
        x = self.table[...][tokens.reshape(-1)].astype(self.dtype)
        if self.fixed_embedding_scale != 1.0:
            x = self.fixed_embedding_scale * x
        if self.embedding_scale is not None:
            x = x * self.embedding_scale[...].astype(x.dtype)
        if self.embedding_positions is not None:
            more = () if place is None else (place,)
            x = self.embedding_positions(x, tokens.shape, *more)
        return self.entering(x)

    def hidden(self, tokens: jax.Array, stream_taps: jax.Array | None = None):
        """The stream after the last block [batch * seq, d_model], and measurements."""
        with reading(tokens):
            return self.through_blocks(self.embed(tokens), tokens.shape, stream_taps)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """[tokens, d_model] -> [tokens, vocab_size], in the dtype of the activations."""
        return self._unembedded(self.leaving(hidden))

    def _unembedded(self, x: jax.Array) -> jax.Array:
        if self.head is None:
            logits = x @ wide_gradient(self.table[...].astype(x.dtype)).T
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
        x, targets = self.leaving(hidden), batch[:, 1:].reshape(-1)
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
