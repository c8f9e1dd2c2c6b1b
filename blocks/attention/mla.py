"""Multi-head latent attention."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.attention.attend import IMPLEMENTATIONS, attend
from blocks.attention.heads import check_heads, join_heads, split_heads, turned
from blocks.attention.weights import check_weights
from blocks.cache import Cache
from blocks.checks import check_choice, check_positive, check_sizes
from blocks.linear import Linear
from blocks.norms.at_site import make_norm


class LatentAttention(nnx.Module):
    """Softmax attention whose keys and values are raised from one narrow latent.

        q       = q_up(q_norm(q_down(x)))       per head [d_head | d_rope]
        latent  = kv_norm(kv_down(x))           [kv_rank]
        k       = [k_up(latent) | k_rope(x)]    per head [d_head], one [d_rope] for all
        v       = v_up(latent)                  per head [d_value]
        q, k    = positions on the d_rope features alone
        y       = o(inner_norm(heads of softmax(scale q k^T [+ mask]) v))

    A cache keeps the latent and the shared rope key of a token only: with it, queries
    and outputs are taken to the latent (q k_up^T, v_up after the weights) instead. With
    q_rank null the query is one map, q(x) (DeepSeek-V2-Lite).

    The dtypes are those of `GroupedQueryAttention`.

    Sub-modules:
        q            Linear [d_model, n_heads * (d_head + d_rope)]  use "query"  or
        q_down       Linear [d_model, q_rank]                       use "query"
        q_norm       latent_norm(q_rank)
        q_up         Linear [q_rank, n_heads * (d_head + d_rope)]   use "query"
        kv_down      Linear [d_model, kv_rank]                      use "key"
        kv_norm      latent_norm(kv_rank)
        k_rope       Linear [d_model, d_rope]                       use "key"
        k_up         Linear [kv_rank, n_heads * d_head]             use "key"
        v_up         Linear [kv_rank, n_heads * d_value]            use "value"
        o            Linear [n_heads * d_value, d_model]            use "output"
        positions    positions(d_rope), or None
        inner_norm   inner_norm(n_heads * d_value), or None
    No biases.

    Source: arXiv 2405.04434 section 2.1, arXiv 2412.19437; transformers 5.24.0
    modeling_deepseek_v2.py and modeling_deepseek_v3.py.
    Departure: the checkpoints hold kv_down and k_rope as one matrix
    (kv_a_proj_with_mqa), and k_up and v_up as one (kv_b_proj, per head key before
    value); here each map is a matrix of its own for optimizers that orthogonalize.
    """

    traced = ()
    shares_kv_heads = False  # every head raises its own from the latent

    @staticmethod
    def check(
        *,
        d_model: int | None = None,
        n_heads: int | None = None,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        q_rank: int | None = 1536,
        kv_rank: int = 512,
        d_rope: int = 64,
        d_value: int | None = None,
        causal: bool = True,
        window: int | None = None,
        scale: float | None = None,
        implementation: str = "auto",
    ) -> None:
        """Raises ValueError for values that do not fit; None is not known yet."""
        check_heads(d_model, n_heads, n_kv_heads, d_head)
        if n_kv_heads is not None and n_heads is not None and n_kv_heads != n_heads:
            raise ValueError(
                "n_kv_heads: every head of latent attention has its own keys, "
                f"got n_heads={n_heads} and n_kv_heads={n_kv_heads}"
            )
        check_sizes(q_rank=q_rank, kv_rank=kv_rank, d_rope=d_rope, d_value=d_value)
        check_weights(causal=causal, window=window)
        if scale is not None:
            check_positive(scale=scale)
        check_choice("implementation", implementation, IMPLEMENTATIONS)

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        q_rank: int | None = 1536,
        kv_rank: int = 512,
        d_rope: int = 64,
        d_value: int | None = None,
        causal: bool = True,
        window: int | None = None,
        scale: float | None = None,
        latent_norm: Callable,
        positions: Callable | None = None,
        inner_norm: Callable | None = None,
        implementation: str = "auto",
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args:
            d_model: width of the residual stream.
            n_heads: heads.
            n_kv_heads: None or n_heads.
            d_head: features of a key that come from the latent; None is
                d_model // n_heads.
            q_rank: width of the query's latent; None for a query without one.
            kv_rank: width of the latent of keys and values.
            d_rope: features of a key that know the position.
            d_value: width of a value; None is d_head.
            causal: a token sees no later token.
            window: a token sees this many tokens, itself the last of them.
            scale: factor on the scores; None is (d_head + d_rope)**-0.5. DeepSeek
                multiplies that by `Yarn.mscale` squared.
            latent_norm: latent_norm(width, rngs=rngs) makes a normalizer.
            positions: positions(d_rope) maps (q, k) to (q, k).
            inner_norm: inner_norm(n_heads * d_value, rngs=rngs) makes a normalizer.
            implementation: see `blocks.attention.attend`.
            linear: linear(d_in, d_out, use=..., bias=..., rngs=...) makes a map.
            rngs: gives the keys.

        Raises:
            ValueError: heads do not divide, or a keyword has no meaning.
        """
        self.check(
            d_model=d_model,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            d_head=d_head,
            q_rank=q_rank,
            kv_rank=kv_rank,
            d_rope=d_rope,
            d_value=d_value,
            causal=causal,
            window=window,
            scale=scale,
            implementation=implementation,
        )
        self.n_heads, self.d_rope, self.kv_rank = n_heads, d_rope, kv_rank
        self.d_head = d_model // n_heads if d_head is None else d_head
        self.d_value = self.d_head if d_value is None else d_value
        self.causal, self.window, self.scale = causal, window, scale
        self.implementation = implementation
        d_query = n_heads * (self.d_head + d_rope)

        def maps(d_in, d_out, use):
            return linear(d_in, d_out, use=use, bias=False, rngs=rngs)

        if q_rank is None:
            self.q = maps(d_model, d_query, "query")
        else:
            self.q_down = maps(d_model, q_rank, "query")
            self.q_norm = make_norm(latent_norm, q_rank, "qk", rngs=rngs)
            self.q_up = maps(q_rank, d_query, "query")
        self.q_rank = q_rank
        self.kv_down = maps(d_model, kv_rank, "key")
        self.kv_norm = make_norm(latent_norm, kv_rank, "qk", rngs=rngs)
        self.k_rope = maps(d_model, d_rope, "key")
        self.k_up = maps(kv_rank, n_heads * self.d_head, "key")
        self.v_up = maps(kv_rank, n_heads * self.d_value, "value")
        self.o = maps(n_heads * self.d_value, d_model, "output")
        self.positions = None if positions is None else positions(d_rope)
        self.inner_norm = (
            None
            if inner_norm is None
            else make_norm(inner_norm, n_heads * self.d_value, "inner", rngs=rngs)
        )

    def __call__(
        self, x: jax.Array, shape: tuple[int, int], cache: Cache | None = None
    ) -> jax.Array:
        """Maps [batch * seq, d_model] to the same shape in the dtype of `x`.

        Args:
            x: tokens, sequence after sequence.
            shape: (batch, seq).
            cache: latents and rope keys of the tokens before, where there are some.

        Raises:
            ValueError: `shape` does not account for the tokens of `x`.
        """
        if cache is not None:
            return self._continued(x, shape, cache)
        return self.output(x, *self.heads(x, shape))

    def heads(
        self, x: jax.Array, shape: tuple[int, int]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """What meets in the attention: q, k [batch, n_heads, seq, d_head + d_rope], v."""
        latent = self.kv_norm(self.kv_down(x))
        q = split_heads(self._queries(x), self.d_head + self.d_rope, shape)
        k = split_heads(self.k_up(latent), self.d_head, shape)
        v = split_heads(self.v_up(latent), self.d_value, shape)
        q, q_rope = q[..., : self.d_head], q[..., self.d_head :]
        k_rope = split_heads(self.k_rope(x), self.d_rope, shape)  # one head
        q_rope, k_rope = turned(self.positions, q_rope, k_rope, None)
        k_rope = jnp.broadcast_to(k_rope, q_rope.shape)
        q = jnp.concatenate([q, q_rope], axis=-1)
        return q, jnp.concatenate([k, k_rope], axis=-1), v

    def output(
        self, x: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array
    ) -> jax.Array:
        """From heads to [tokens, d_model]; `x` are the tokens they came from."""
        del x
        y = attend(
            q,
            k,
            v,
            causal=self.causal,
            window=self.window,
            scale=self.scale,
            implementation=self.implementation,
        )
        return self._projected(y)

    def _continued(
        self, x: jax.Array, shape: tuple[int, int], cache: Cache
    ) -> jax.Array:
        """As `__call__`; latents of earlier tokens are met as they are, not raised."""
        latent = split_heads(self.kv_norm(self.kv_down(x)), self.kv_rank, shape)
        q = split_heads(self._queries(x), self.d_head + self.d_rope, shape)
        q, q_rope = q[..., : self.d_head], q[..., self.d_head :]
        k_rope = split_heads(self.k_rope(x), self.d_rope, shape)
        q_rope, k_rope = turned(self.positions, q_rope, k_rope, cache.place)
        k_up, v_up = (
            up.kernel[...].astype(x.dtype).reshape(self.kv_rank, self.n_heads, -1)
            for up in (self.k_up, self.v_up)
        )
        q = jnp.einsum("bhqd,rhd->bhqr", q, k_up)
        latent = cache.appended("latent", latent)
        k_rope = cache.appended("k_rope", k_rope)
        y = attend(
            jnp.concatenate([q, q_rope], axis=-1),
            jnp.concatenate([latent, k_rope], axis=-1),
            latent,
            causal=self.causal,
            window=self.window,
            scale=self.scale or (self.d_head + self.d_rope) ** -0.5,
            start=cache.place.start,
            implementation=self.implementation,
        )
        return self._projected(jnp.einsum("bhqr,rhd->bhqd", y, v_up))

    def _projected(self, y: jax.Array) -> jax.Array:
        """From heads [batch, n_heads, seq, d_value] to [tokens, d_model]."""
        y = join_heads(y)
        return self.o(y if self.inner_norm is None else self.inner_norm(y))

    def _queries(self, x: jax.Array) -> jax.Array:
        if self.q_rank is None:
            return self.q(x)
        return self.q_up(self.q_norm(self.q_down(x)))
