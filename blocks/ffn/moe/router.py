"""What routers of a mixture of experts share."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.auxiliary_loss import with_loss
from blocks.checks import check_not_negative, check_positive, check_sizes
from blocks.state import Running


class Router(nnx.Module):
    """Base of routers: logits, the load of the experts and the balancing loss.

        logits = x @ kernel + bias                        [tokens, n_experts]
        load_e = share of the (token, choice) pairs that went to e; 1 / n_experts each
                 when balanced
        balancing loss = aux_coefficient * n_experts * sum_e load_e * mean_tokens(p_e)

    All in float32, or in the dtype of `x` where that is wider, with products of full
    precision on every device: an expert chosen by rounding is another network.
    p are the router's probabilities; the loss is 1 * aux_coefficient when balanced and
    has a gradient through p only. It is Switch's for one expert per token, over all
    tokens of the call. It is added to the gradient, not to the value of the loss
    (`with_loss`), and only in training.

    Parameters (float32), role in brackets:
        kernel  [d_model, n_experts]  of a "hidden" linear map   [router]
        bias    [n_experts]           likewise, only if asked for [bias]
    State:
        load             [n_experts]  of the last training call
        aux_coefficient  []           kept here because members may differ in it

    Source: arXiv 2101.03961 equations 4 to 6.
    """

    def __init__(
        self,
        d_model: int,
        n_experts: int,
        *,
        top_k: int,
        bias: bool,
        aux_coefficient,
        linear: Callable,
        rngs: nnx.Rngs,
    ):
        if top_k > n_experts:
            raise ValueError(f"top_k={top_k} is more than n_experts={n_experts}")
        self.d_model = d_model
        self.n_experts = n_experts
        self.top_k = top_k
        self.is_training = True
        made = linear(d_model, n_experts, use="hidden", bias=bias, rngs=rngs)
        self.kernel = nnx.Param(made.kernel[...], role="router")
        self.bias = nnx.Param(made.bias[...], role="bias") if bias else None
        even = jnp.full((n_experts,), 1 / n_experts, jnp.float32)
        self.load = Running(even, probe=True)
        self.aux_coefficient = Running(jnp.full((), aux_coefficient, jnp.float32))

    def logits(self, x: jax.Array) -> jax.Array:
        """[tokens, d_model] -> [tokens, n_experts], float32 or wider.

        Raises:
            ValueError: `x` is not [tokens, d_model].
        """
        if x.ndim != 2 or x.shape[-1] != self.d_model:
            raise ValueError(f"expected [tokens, {self.d_model}], got shape {x.shape}")
        wide = jnp.promote_types(x.dtype, jnp.float32)
        kernel = self.kernel[...].astype(wide)
        y = jnp.dot(x.astype(wide), kernel, precision=jax.lax.Precision.HIGHEST)
        return y if self.bias is None else y + self.bias[...].astype(wide)

    def balance(
        self, weights: jax.Array, chosen: jax.Array, p: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Records the load and attaches the balancing loss.

        Args:
            weights, chosen: [tokens, top_k].
            p: probabilities [tokens, n_experts].

        Returns:
            The same weights, and the load [n_experts].
        """
        load = load_of(chosen, self.n_experts, p.dtype)
        if self.is_training:
            loss = self.n_experts * jnp.sum(load * jnp.mean(p, axis=0))
            coefficient = self.aux_coefficient[...].astype(p.dtype)
            weights = with_loss(weights, coefficient * loss)
            self.load[...] = load.astype(jnp.float32)
        return weights, load


def load_of(chosen: jax.Array, n_experts: int, dtype) -> jax.Array:
    """Share of the entries of `chosen` that name each expert, [n_experts]."""
    counts = jnp.zeros((n_experts,), dtype).at[chosen.reshape(-1)].add(1)
    return counts / chosen.size


def best_groups(
    scores: jax.Array, n_groups: int, top_groups: int, summed: int
) -> jax.Array:
    """`scores` [tokens, n_experts] with -inf outside each token's best groups.

    Experts form n_groups equal groups in order; a group is worth the sum of its
    `summed` best scores, and the `top_groups` best groups of a token are kept.
    """
    if top_groups == n_groups:
        return scores
    tokens, n_experts = scores.shape
    grouped = scores.reshape(tokens, n_groups, -1)
    worth = jnp.sum(jax.lax.top_k(grouped, min(summed, grouped.shape[-1]))[0], -1)
    _, kept = jax.lax.top_k(worth, top_groups)
    is_kept = jnp.any(kept[:, :, None] == jnp.arange(n_groups), axis=1)
    masked = jnp.where(is_kept[:, :, None], grouped, -jnp.inf)
    return masked.reshape(tokens, n_experts)


def check_router(
    *,
    top_k: int,
    n_groups: int,
    top_groups: int,
    scale: float,
    aux_coefficient: float,
) -> None:
    """Raises ValueError for numbers that make no router."""
    check_sizes(top_k=top_k, n_groups=n_groups)
    if not 1 <= top_groups <= n_groups:
        raise ValueError(
            f"top_groups must be between 1 and n_groups={n_groups}, got {top_groups}"
        )
    check_positive(scale=scale)
    check_not_negative(aux_coefficient=aux_coefficient)


def check_groups(n_experts: int, top_k: int, n_groups: int, top_groups: int) -> None:
    """Raises ValueError where the groups do not divide, or cannot fill, a choice."""
    if n_experts % n_groups:
        raise ValueError(
            f"n_experts={n_experts} is not divisible by n_groups={n_groups}"
        )
    available = top_groups * (n_experts // n_groups)
    if top_k > available:
        raise ValueError(
            f"top_k={top_k} is more than the {available} experts of "
            f"top_groups={top_groups} groups"
        )
