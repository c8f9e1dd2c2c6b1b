"""Gated DeltaNet: a matrix of memory per head in the place of all earlier keys."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.attention.heads import check_heads, join_heads, split_heads, turned
from blocks.attention.short_convolution import ShortConvolution
from blocks.cache import Cache
from blocks.checks import check_sizes
from blocks.linear import Linear
from blocks.norms.at_site import make_norm


class GatedDeltaNet(nnx.Module):
    """Linear attention that forgets, and corrects what it has stored under a key.

        q, k, v = silu(conv(q(x))), silu(conv(k(x))), silu(conv(v(x)))
        q, k    = positions(q_norm(q), k_norm(k)),    q = q / sqrt(d_key)
        b       = sigmoid(beta(x))                             how much is written
        a       = exp(-exp(log_rate) softplus(decay(x) + offset))   how much is kept
        S_t     = a_t S_{t-1} + k_t (b_t (v_t - (a_t S_{t-1})^T k_t))^T
        y       = o(inner_norm(head_norm(S_t^T q_t) * silu(gate(x))))

    S_0 = 0; conv is causal, per feature. b and a are numbers per value head; value head
    j reads key head j // (n_value_heads / n_key_heads). With unit keys (qk_norm) and
    b = 1 the state returns exactly v_t for k_t.

    Tokens are taken one after the other, so the cost grows with their number and not
    with its square, and a backward pass keeps one state a token. Maps are in the dtype
    of `x`; everything between them is in float32 or wider and rounded before `o`.

    Parameters (float32), role in brackets:
        log_rate  [n_value_heads]  init log U(0.01, 16)  [scale]
        offset    [n_value_heads]  init 1                [bias]

    Sub-modules:
        q, k         Linear [d_model, n_key_heads * d_key]      use "query", "key"
        v            Linear [d_model, n_value_heads * d_value]  use "value"
        gate         as v, use "hidden"
        beta, decay  Linear [d_model, n_value_heads]            use "hidden"
        o            Linear [n_value_heads * d_value, d_model]  use "output"
        q_conv, k_conv, v_conv  ShortConvolution
        q_norm, k_norm  qk_norm(d_key); head_norm  head_norm(d_value)
        positions    positions(d_key), or None as in Qwen3-Next

    Source: arXiv 2412.06464; transformers 5.24.0 modeling_qwen3_next.py
    (torch_recurrent_gated_delta_rule, Qwen3NextRMSNormGated, initial values).
    """

    traced = ()
    needs_qk_norm = True

    @staticmethod
    def check(
        *,
        d_model: int | None = None,
        n_heads: int | None = None,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        n_key_heads: int | None = None,
        n_value_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        kernel_size: int = 4,
    ) -> None:
        """Raises ValueError for values that do not fit; None is not known yet."""
        check_heads(d_model, n_heads, n_kv_heads, d_head)
        check_sizes(
            n_key_heads=n_key_heads,
            n_value_heads=n_value_heads,
            d_key=d_key,
            d_value=d_value,
        )
        if n_key_heads and n_value_heads and n_value_heads % n_key_heads:
            raise ValueError(
                "n_value_heads must be a multiple of n_key_heads, got "
                f"n_value_heads={n_value_heads} and n_key_heads={n_key_heads}"
            )
        ShortConvolution.check(kernel_size=kernel_size)

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        n_key_heads: int | None = None,
        n_value_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        kernel_size: int = 4,
        positions: Callable | None = None,
        qk_norm: Callable,
        head_norm: Callable,
        inner_norm: Callable | None = None,
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args:
            d_model: width of the residual stream.
            n_heads, n_kv_heads, d_head: of the model; None as in softmax attention.
            n_key_heads: heads of q and k; None is n_kv_heads.
            n_value_heads: heads of v, of the state and of the output; None is n_heads.
            d_key: width of a key; None is d_head.
            d_value: width of a value; None is d_head.
            kernel_size: tokens that a convolution sees, itself the last.
            positions: positions(d_key) maps (q, k) to (q, k).
            qk_norm, head_norm: make normalizers, norm(width, rngs=rngs).
            inner_norm: inner_norm(n_value_heads * d_value, rngs=rngs) makes one.
            linear: linear(d_in, d_out, use=..., bias=..., rngs=...) makes a map.
            rngs: gives the keys.

        Raises:
            ValueError: heads do not divide.
        """
        d_head = d_model // n_heads if d_head is None else d_head
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        self.n_key_heads = n_kv_heads if n_key_heads is None else n_key_heads
        self.n_heads = n_heads if n_value_heads is None else n_value_heads
        self.d_key = d_head if d_key is None else d_key
        self.d_value = d_head if d_value is None else d_value
        self.check(
            d_model=d_model,
            n_key_heads=self.n_key_heads,
            n_value_heads=self.n_heads,
            d_key=self.d_key,
            d_value=self.d_value,
            kernel_size=kernel_size,
        )
        d_keys, d_values = self.n_key_heads * self.d_key, self.n_heads * self.d_value

        def make(d_in, d_out, use):
            return linear(d_in, d_out, use=use, bias=False, rngs=rngs)

        self.q = make(d_model, d_keys, "query")
        self.k = make(d_model, d_keys, "key")
        self.v = make(d_model, d_values, "value")
        self.o = make(d_values, d_model, "output")
        self.gate = make(d_model, d_values, "hidden")
        self.beta = make(d_model, self.n_heads, "hidden")
        self.decay = make(d_model, self.n_heads, "hidden")
        self.q_conv, self.k_conv, self.v_conv = (
            ShortConvolution(width, kernel_size=kernel_size, rngs=rngs)
            for width in (d_keys, d_keys, d_values)
        )
        self.q_norm, self.k_norm = (
            make_norm(qk_norm, self.d_key, "qk", rngs=rngs) for _ in range(2)
        )
        self.positions = None if positions is None else positions(self.d_key)
        self.head_norm = make_norm(head_norm, self.d_value, "inner", rngs=rngs)
        self.inner_norm = (
            None
            if inner_norm is None
            else make_norm(inner_norm, d_values, "inner", rngs=rngs)
        )
        f32 = jnp.float32
        rate = jax.random.uniform(
            rngs.params(), (self.n_heads,), f32, minval=0.01, maxval=16.0
        )
        self.log_rate = nnx.Param(jnp.log(rate), role="scale")
        self.offset = nnx.Param(jnp.ones((self.n_heads,), f32), role="bias")

    def __call__(
        self, x: jax.Array, shape: tuple[int, int], cache: Cache | None = None
    ) -> jax.Array:
        """Maps [batch * seq, d_model] to the same shape in the dtype of `x`.

        Args:
            x: tokens, sequence after sequence.
            shape: (batch, seq).
            cache: state and last values after the tokens before, where there are some.

        Raises:
            ValueError: `shape` does not account for the tokens of `x`.
        """
        wide = jnp.promote_types(x.dtype, jnp.float32)
        q, k, v = (
            split_heads(self._convolved(name, x, shape, cache), width, shape)
            for name, width in (
                ("q", self.d_key),
                ("k", self.d_key),
                ("v", self.d_value),
            )
        )
        q, k = self.q_norm(q), self.k_norm(k)
        q, k = turned(self.positions, q, k, None if cache is None else cache.place)
        q, k = (jnp.repeat(y, self.n_heads // self.n_key_heads, axis=1) for y in (q, k))
        beta = jax.nn.sigmoid(self.beta(x).astype(wide))
        rate = jnp.exp(self.log_rate[...].astype(wide))
        drive = self.decay(x).astype(wide) + self.offset[...].astype(wide)
        kept = jnp.exp(-rate * jax.nn.softplus(drive))
        beta, kept = (split_heads(y, 1, shape)[..., 0] for y in (beta, kept))
        q = q * self.d_key**-0.5
        state = first_state(k, v)
        if cache is not None:
            state = cache.get("state", state)
        state, y = delta_steps(state, q, k, v, beta, kept)
        if cache is not None:
            cache.put("state", state)
        y = join_heads(self.head_norm(y))
        y = (y * jax.nn.silu(self.gate(x).astype(wide))).astype(x.dtype)
        return self.o(y if self.inner_norm is None else self.inner_norm(y))

    def _convolved(
        self, name: str, x: jax.Array, shape: tuple[int, int], cache: Cache | None
    ) -> jax.Array:
        """silu(conv(project(x))) of q, k or v, in float32 or wider."""
        project, conv = getattr(self, name), getattr(self, f"{name}_conv")
        y = project(x).astype(jnp.promote_types(x.dtype, jnp.float32))
        return jax.nn.silu(conv(y, shape, None if cache is None else cache.of(name)))


def delta_rule(
    q: jax.Array, k: jax.Array, v: jax.Array, beta: jax.Array, kept: jax.Array
) -> jax.Array:
    """S_t^T q_t,  S_t = kept_t S_{t-1} + k_t (beta_t (v_t - kept_t S_{t-1}^T k_t))^T.

    Args:
        q, k: [batch, heads, seq, d_key].
        v: [batch, heads, seq, d_value].
        beta, kept: [batch, heads, seq], from 0 to 1.

    Returns:
        [batch, heads, seq, d_value].
    """
    return delta_steps(first_state(k, v), q, k, v, beta, kept)[1]


def first_state(k: jax.Array, v: jax.Array) -> jax.Array:
    """S_0 [batch, heads, d_key, d_value]: zeros."""
    batch, heads, _, d_key = k.shape
    return jnp.zeros((batch, heads, d_key, v.shape[-1]), v.dtype)


def delta_steps(state: jax.Array, q, k, v, beta, kept) -> tuple[jax.Array, jax.Array]:
    """The state after the tokens, which start from `state`, and their `delta_rule`."""

    def step(state, token):
        q, k, v, beta, kept = token
        state = kept[..., None, None] * state
        wrong = v - jnp.einsum("bhkv,bhk->bhv", state, k)
        state += k[..., :, None] * (beta[..., None] * wrong)[..., None, :]
        return state, jnp.einsum("bhkv,bhk->bhv", state, q)

    tokens = tuple(jnp.moveaxis(y, 2, 0) for y in (q, k, v, beta, kept))
    state, y = jax.lax.scan(step, state, tokens)
    return state, jnp.moveaxis(y, 0, 2)
