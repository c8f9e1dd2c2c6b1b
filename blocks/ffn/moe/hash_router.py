"""Router that looks at the token and not at the stream: the first layers of DeepSeek-V4."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_sizes
from blocks.ffn.moe.scoring import ScoringRouter, check_scoring
from blocks.linear import Linear
from blocks.reading import tokens_read
from blocks.state import Running


class HashRouter(ScoringRouter):
    """Every token has its experts, in a table that is never changed:

        chosen = table[token mod n_rows]

    They are weighed by s = score(logits) as `ScoringRouter` says, which has a gradient.
    There is nothing to balance but by another table. The model has to say which tokens
    it reads (`blocks.reading`).

    State beside that of `Router`:
        table  [n_rows, top_k]  uint32, rows of different experts; starts at random

    Source: arXiv 2106.04426; DeepSeek-V4: sqrtsoftplus, top_k 6, renormalize, scale
    1.5, a row for each token; transformers 5.24.0 modeling_deepseek_v4.py.
    """

    traced = ("aux_coefficient",)
    needs_tokens = True

    @staticmethod
    def check(
        *,
        n_rows: int = 1024,
        score: str = "sqrtsoftplus",
        top_k: int = 2,
        renormalize: bool = True,
        scale: float = 1.0,
        aux_coefficient: float = 0.0,
    ) -> None:
        """Raises ValueError for values that make no router."""
        check_sizes(n_rows=n_rows)
        check_scoring(
            score=score, top_k=top_k, scale=scale, aux_coefficient=aux_coefficient
        )

    def __init__(
        self,
        d_model: int,
        n_experts: int,
        *,
        n_rows: int = 1024,
        score: str = "sqrtsoftplus",
        top_k: int = 2,
        renormalize: bool = True,
        scale: float = 1.0,
        aux_coefficient: float = 0.0,
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: width of the tokens.
        n_experts: experts to choose from.
        n_rows: of the table; with as many as tokens each has a choice of its own.
        score: sigmoid, or sqrtsoftplus, sqrt(log(1 + e^z)).
        top_k: experts per token.
        renormalize: the weights of a token sum to `scale`.
        scale: factor on every weight.
        aux_coefficient: of the balancing loss; a number or a traced scalar.
        linear: makes the map whose kernel becomes the router's.
        rngs: gives the keys.
        """
        super().__init__(
            d_model,
            n_experts,
            score=score,
            top_k=top_k,
            renormalize=renormalize,
            scale=scale,
            aux_coefficient=aux_coefficient,
            linear=linear,
            rngs=rngs,
        )
        drawn = jax.random.uniform(rngs.params(), (n_rows, n_experts))
        table = jnp.argsort(drawn, axis=-1)[:, :top_k]
        self.table = Running(table.astype(jnp.uint32))

    def tokens_of(self, x: jax.Array) -> jax.Array:
        """Which tokens the rows of `x` are, [tokens] integers.

        Raises:
            ValueError: the model does not say, or says others than these.
        """
        tokens = tokens_read()
        if tokens.shape != x.shape[:1]:
            raise ValueError(
                f"expected the model to read {len(x)} tokens, got {len(tokens)}"
            )
        return tokens

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Weights (float32 or wider) and experts, [tokens, top_k]; see `tokens_of`."""
        table = self.table[...].astype(jnp.int32)
        chosen = table[self.tokens_of(x) % len(table)]
        weights, _ = self.weigh(self.scores(x), chosen)
        return weights, chosen
