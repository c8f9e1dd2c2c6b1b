"""A transformer that reads a text from both sides, from the parts it is given."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.attention.bidirectional import adding_to_scores
from blocks.checks import check_choice, check_sizes
from blocks.ffn.activations import ACTIVATIONS, activation_of
from blocks.keywords import with_keywords_of
from blocks.linear import Linear
from blocks.norms.at_site import make_norm
from blocks.patches import positions_of
from blocks.positions.relative_bias import RelativeBias
from blocks.token_loss import token_losses
from blocks.transformer import Transformer, component
from blocks.wide_gradient import wide_gradient

IGNORED = -100  # the label of a token that is not to be predicted


class TokenEncoder(Transformer):
    """Token embedding, blocks that see both ways, a head for masked tokens.

        x = embedding_norm(table[tokens] + segments[segment] + positions)
        x = final_norm(close(blocks(open(x))))       scores + relative_bias + padding
        logits = norm(activation(dense(x))) @ table^T + bias

    Each of segments, positions, relative_bias and the head exists where it is asked for,
    norms where `placement` says. BERT is placement=post with embedding_norm and without
    final_norm; the encoder of T5 is Pre-LN with a relative bias and no head.

    Args:
        vocab_size: rows of the table.
        d_model and what is not listed here: as in `blocks.transformer.Transformer`;
            attention is a `blocks.attention.bidirectional`.
        max_len: most tokens of a text, each place with a learned vector; None for none.
        n_segments: kinds of segments with a learned vector each; None for none.
        n_buckets, max_distance: of `blocks.positions.relative_bias`; None for none.
        head_activation: of the head; None for no head.

    Source: arXiv 1810.04805, arXiv 1910.10683; transformers 5.24.0 modeling_bert.py,
    modeling_t5.py.
    """

    traced = ()
    reads = "masked texts"

    @staticmethod
    @with_keywords_of(Transformer.check)
    def check(
        *,
        vocab_size: int | None = None,
        max_len: int | None = None,
        n_segments: int | None = None,
        n_buckets: int | None = None,
        max_distance: int = 128,
        head_activation: str | None = "gelu_erf",
        **trunk,
    ) -> None:
        check_sizes(vocab_size=vocab_size, max_len=max_len, n_segments=n_segments)
        Transformer.check(**trunk)
        if n_buckets is not None:
            RelativeBias.check(n_buckets=n_buckets, max_distance=max_distance)
        check_choice("head_activation", head_activation, (None, *ACTIVATIONS))

    @with_keywords_of(Transformer.__init__)
    def __init__(
        self,
        vocab_size: int | None = None,
        d_model: int = 64,
        *,
        n_heads: int = 4,
        norm: Callable,
        init,
        max_len: int | None = None,
        n_segments: int | None = None,
        n_buckets: int | None = None,
        max_distance: int = 128,
        head_activation: str | None = "gelu_erf",
        rngs: nnx.Rngs,
        **trunk,
    ):
        if vocab_size is None:
            raise ValueError("vocab_size is needed to build an encoder of tokens")
        key = rngs.params()
        super().__init__(key, d_model, n_heads=n_heads, norm=norm, init=init, **trunk)

        def rows(n, i):
            return init.embedding(component(key, i).params(), (n, d_model))

        self.table = nnx.Param(rows(vocab_size, 0), role="embedding")
        self.segments = (
            None
            if n_segments is None
            else nnx.Param(rows(n_segments, 6), role="embedding")
        )
        self.positions = (
            None
            if max_len is None
            else positions_of(max_len, d_model, init=init, rngs=component(key, 7))
        )
        self.relative_bias = (
            None
            if n_buckets is None
            else RelativeBias(
                n_heads,
                n_buckets=n_buckets,
                max_distance=max_distance,
                init=init,
                rngs=component(key, 8),
            )
        )
        self.head = (
            None
            if head_activation is None
            else MaskedHead(
                vocab_size,
                d_model,
                activation=head_activation,
                norm=norm,
                init=init,
                rngs=component(key, 3),
            )
        )

    def embed(self, tokens: jax.Array, segments: jax.Array | None = None) -> jax.Array:
        """[batch, seq] integers -> [batch * seq, d_model], entering the first block.

        Raises:
            ValueError: the text is longer than max_len, or segments are missing.
        """
        batch, seq = tokens.shape
        x = self.table[...][tokens].astype(self.dtype)
        if self.segments is not None:
            if segments is None:
                raise ValueError("the model needs the segment of every token")
            x = x + self.segments[...][segments].astype(self.dtype)
        if self.positions is not None:
            if seq > len(self.positions):
                raise ValueError(
                    f"expected at most max_len={len(self.positions)} tokens, got {seq}"
                )
            x = x + self.positions[...][:seq].astype(self.dtype)
        return self.entering(x.reshape(batch * seq, -1))

    def added_to_scores(self, seq: int, mask: jax.Array | None) -> jax.Array | None:
        """Relative bias, and the lowest number for keys where `mask` [batch, seq] is 0."""
        added = None if self.relative_bias is None else self.relative_bias(seq)
        if mask is None:
            return added
        lowest = jnp.finfo(jnp.float32).min
        padding = jnp.where(mask[:, None, None, :] != 0, 0.0, lowest)
        return padding if added is None else added + padding

    def hidden(
        self,
        tokens: jax.Array,
        mask: jax.Array | None = None,
        segments: jax.Array | None = None,
        stream_taps: jax.Array | None = None,
    ):
        """The stream behind the last norm [batch * seq, d_model], and measurements."""
        x = self.embed(tokens, segments)
        with adding_to_scores(self.added_to_scores(tokens.shape[1], mask)):
            hidden, measured = self.through_blocks(x, tokens.shape, stream_taps)
        return self.leaving(hidden), measured

    def __call__(self, tokens, mask=None, segments=None) -> jax.Array:
        """Logits [batch, seq, vocab_size]; without a head [batch, seq, d_model]."""
        out, _ = self.hidden(tokens, mask, segments)
        if self.head is not None:
            out = self.head(out, self.table[...])
        return out.reshape(*tokens.shape, -1)

    def loss(self, batch: dict, stream_taps: jax.Array | None = None):
        """Mean cross-entropy in nats of the tokens whose label is not -100.

        Args:
            batch: `tokens`, `labels` [batch, seq]; `mask`, `segments` where there are.
            stream_taps: zeros [n_layers, 2] to measure the stream, or None.

        Raises:
            ValueError: the batch is of another kind, or the model has no head.
        """
        if not isinstance(batch, dict) or not {"tokens", "labels"} <= set(batch):
            raise ValueError("an encoder needs masked texts: tokens and labels")
        if self.head is None:
            raise ValueError("head_activation=null: there is no head to predict tokens")
        out, measured = self.hidden(
            batch["tokens"], batch.get("mask"), batch.get("segments"), stream_taps
        )
        logits = self.head(out, self.table[...])
        labels = batch["labels"].reshape(-1)
        asked = labels != IGNORED
        losses, _ = token_losses(logits, jnp.where(asked, labels, 0))
        return jnp.sum(jnp.where(asked, losses, 0)) / jnp.sum(asked), measured


class MaskedHead(nnx.Module):
    """logits = norm(activation(dense(x))) @ table^T + bias.

    Parameters (float32), role in brackets:
        bias  [vocab_size]  init 0  [bias]
    Sub-modules:
        dense  Linear [d_model, d_model] with an offset, use "head"
        norm   norm(d_model)
    """

    def __init__(
        self, vocab_size: int, d_model: int, *, activation: str, norm, init, rngs
    ):
        self.activation = activation_of(activation)
        self.dense = Linear(
            d_model, d_model, use="head", init=init, bias=True, rngs=rngs
        )
        self.norm = make_norm(norm, d_model, "final", rngs=rngs)
        self.bias = nnx.Param(jnp.zeros((vocab_size,), jnp.float32), role="bias")

    def __call__(self, x: jax.Array, table: jax.Array) -> jax.Array:
        """[tokens, d_model] -> [tokens, vocab_size]."""
        x = self.norm(self.activation(self.dense(x)))
        table = wide_gradient(table.astype(x.dtype))
        return x @ table.T + self.bias[...].astype(x.dtype)
