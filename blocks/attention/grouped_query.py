"""Multi-head, grouped-query and multi-query softmax attention."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.attention.attend import IMPLEMENTATIONS, attend
from blocks.attention.heads import check_heads, join_heads, split_heads, turned
from blocks.attention.weights import check_weights
from blocks.cache import Cache
from blocks.checks import check_choice, check_positive
from blocks.linear import Linear
from blocks.norms.at_site import make_norm
from blocks.positions.place import Place

QK_NORM_AT = ("head", "all_heads", "after_positions")


class GroupedQueryAttention(nnx.Module):
    """Softmax attention in which groups of query heads share keys and values.

        q, k, v = split into heads of (q(x), k(x), v(x))
        q, k    = positions(q_norm(q), k_norm(k))
        y       = o(inner_norm(gate(x, heads of softmax(scale q k^T [+ mask]) v)))

    Query head j reads key/value head j // (n_heads / n_kv_heads): n_kv_heads =
    n_heads is multi-head attention, 1 is multi-query. What a token sees, the soft-cap
    and the sinks: `blocks.attention.weights`.

    Linear maps and the product with v are in the dtype of `x`. Scores and softmax are
    in float32, or the dtype of `x` where that is wider; weights are rounded to the
    dtype of `x` before they meet v.

    Parameters (float32), role in brackets:
        sinks  [n_heads]  init N(0, 0.02^2)  [sink]   if asked for
        tau    [1]        init `tau_init`    [scale]  if given: replaces `scale`

    Sub-modules:
        q           Linear [d_model, n_heads * d_head]      use "query"
        k, v        Linear [d_model, n_kv_heads * d_head]   use "key", "value"
        o           Linear [n_heads * d_head, d_model]      use "output"
        q_norm, k_norm  qk_norm(width), or None
        positions   positions(d_head), or None
        gate        gate(d_model, n_heads, d_head), or None
        inner_norm  inner_norm(n_heads * d_head), or None

    Source: arXiv 1706.03762 section 3.2, arXiv 2305.13245; transformers 5.24.0
    modeling_llama.py, modeling_qwen3.py, modeling_olmo2.py, modeling_gemma2.py,
    modeling_gpt_oss.py (sinks and their initial values), modeling_llama4.py; tau:
    arXiv 2010.04245 equation 2.
    """

    traced = ("tau_init",)

    @staticmethod
    def check(
        *,
        d_model: int | None = None,
        n_heads: int | None = None,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        causal: bool = True,
        window: int | None = None,
        chunk: int | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        scale: float | None = None,
        tau_init: float | None = None,
        qk_norm_at: str = "head",
        implementation: str = "auto",
    ) -> None:
        """Raises ValueError for values that do not fit; None is not known yet."""
        check_heads(d_model, n_heads, n_kv_heads, d_head)
        check_weights(causal=causal, window=window, chunk=chunk, softcap=softcap)
        for name, factor in (("scale", scale), ("tau_init", tau_init)):
            if factor is not None:
                check_positive(**{name: factor})
        if scale is not None and tau_init is not None:
            raise ValueError(
                "tau_init replaces scale: expected one of them, "
                f"got scale={scale} and tau_init={tau_init}"
            )
        check_choice("qk_norm_at", qk_norm_at, QK_NORM_AT)
        check_choice("implementation", implementation, IMPLEMENTATIONS)
        lacks = {"chunk": chunk, "softcap": softcap, "sinks": sinks or None}
        lacks = [name for name, value in lacks.items() if value is not None]
        if implementation == "cudnn" and lacks:
            raise ValueError(f"implementation cudnn: the kernel has no {lacks[0]}")

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        causal: bool = True,
        window: int | None = None,
        chunk: int | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        scale: float | None = None,
        tau_init: float | None = None,
        positions: Callable | None = None,
        qk_norm: Callable | None = None,
        qk_norm_at: str = "head",
        gate: Callable | None = None,
        bias: bool = False,
        output_bias: bool | None = None,
        inner_norm: Callable | None = None,
        implementation: str = "auto",
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args:
            d_model: width of the residual stream.
            n_heads: query heads.
            n_kv_heads: key/value heads; None is n_heads.
            d_head: width of a head; None is d_model // n_heads.
            causal: a token sees no later token.
            window: a token sees this many tokens, itself the last of them.
            chunk: a token sees its own chunk of this many tokens only.
            softcap: scores stay within +- softcap.
            sinks: each head learns a logit that draws weight away from all keys.
            scale: factor on the scores; None is d_head**-0.5.
            tau_init: initial value of a learned factor on the scores, the place of
                `scale` when queries and keys are unit vectors; may be traced.
            positions: positions(d_head) maps (q, k) to (q, k), all
                [batch, heads, seq, d_head].
            qk_norm: qk_norm(width, rngs=rngs) makes a normalizer.
            qk_norm_at: "head": each head, before positions, gains shared by the heads
                (Qwen3, Gemma 3); "all_heads": all heads of a token as one vector,
                before positions (OLMo 2); "after_positions": each head (Llama 4).
            gate: gate(d_model, n_heads, d_head, linear=..., rngs=...) makes a gate.
            bias: q, k and v learn an offset.
            output_bias: so does o; None is as `bias`.
            inner_norm: inner_norm(n_heads * d_head, rngs=rngs) makes a normalizer.
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
            causal=causal,
            window=window,
            chunk=chunk,
            softcap=softcap,
            sinks=sinks,
            scale=scale,
            tau_init=None if tau_init is None else 1.0,  # its value may be a tracer
            qk_norm_at=qk_norm_at,
            implementation=implementation,
        )
        self.n_heads = n_heads
        self.n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        self.d_head = d_model // n_heads if d_head is None else d_head
        self.scale = 1.0 if tau_init is not None else scale
        self.causal, self.window, self.chunk = causal, window, chunk
        self.softcap = softcap
        self.implementation = implementation
        self.qk_norm_at = qk_norm_at
        d_q, d_kv = self.n_heads * self.d_head, self.n_kv_heads * self.d_head

        self.q = linear(d_model, d_q, use="query", bias=bias, rngs=rngs)
        self.k = linear(d_model, d_kv, use="key", bias=bias, rngs=rngs)
        self.v = linear(d_model, d_kv, use="value", bias=bias, rngs=rngs)
        output_bias = bias if output_bias is None else output_bias
        self.o = linear(d_q, d_model, use="output", bias=output_bias, rngs=rngs)
        widths = (d_q, d_kv) if qk_norm_at == "all_heads" else (self.d_head,) * 2
        self.q_norm, self.k_norm = (
            None if qk_norm is None else make_norm(qk_norm, width, "qk", rngs=rngs)
            for width in widths
        )
        self.positions = None if positions is None else positions(self.d_head)
        self.gate = (
            None
            if gate is None
            else gate(d_model, n_heads, self.d_head, linear=linear, rngs=rngs)
        )
        self.inner_norm = (
            None
            if inner_norm is None
            else make_norm(inner_norm, d_q, "inner", rngs=rngs)
        )
        f32 = jnp.float32
        self.tau = (
            None
            if tau_init is None
            else nnx.Param(jnp.full((1,), tau_init, f32), role="scale")
        )
        self.sinks = (
            nnx.Param(
                0.02 * jax.random.normal(rngs.params(), (n_heads,), f32), role="sink"
            )
            if sinks
            else None
        )

    def __call__(
        self, x: jax.Array, shape: tuple[int, int], cache: Cache | None = None
    ) -> jax.Array:
        """Maps [batch * seq, d_model] to the same shape in the dtype of `x`.

        Args:
            x: tokens, sequence after sequence.
            shape: (batch, seq).
            cache: keys and values of the tokens before, where there are some.

        Raises:
            ValueError: `shape` does not account for the tokens of `x`.
        """
        if cache is None:
            return self.output(x, *self.heads(x, shape))
        return self.output(x, *self.heads(x, shape, cache.place), cache)

    def heads(
        self, x: jax.Array, shape: tuple[int, int], place: Place | None = None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """What meets in the attention: q, k, v [batch, heads, seq, d_head]."""
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.qk_norm_at == "all_heads":
            q, k = self._normalized(q, k)
        q, k, v = (split_heads(y, self.d_head, shape) for y in (q, k, v))
        if self.qk_norm_at == "head":
            q, k = self._normalized(q, k)
        q, k = turned(self.positions, q, k, place)
        if self.qk_norm_at == "after_positions":
            q, k = self._normalized(q, k)
        return q, k, v

    def output(
        self,
        x: jax.Array,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        cache: Cache | None = None,
    ) -> jax.Array:
        """From heads to [tokens, d_model]; `x` are the tokens they came from."""
        start = None
        if cache is not None:
            k, v = cache.appended("k", k), cache.appended("v", v)
            start = cache.place.start
        if self.tau is not None:
            wide = jnp.promote_types(q.dtype, jnp.float32)
            q = (self.tau[...].astype(wide) * q.astype(wide)).astype(q.dtype)
        y = attend(
            q,
            k,
            v,
            causal=self.causal,
            window=self.window,
            chunk=self.chunk,
            softcap=self.softcap,
            sinks=None if self.sinks is None else self.sinks[...],
            scale=self.scale,
            start=start,
            implementation=self.implementation,
        )
        y = join_heads(y)
        if self.gate is not None:
            y = self.gate(x, y)
        if self.inner_norm is not None:
            y = self.inner_norm(y)
        return self.o(y)

    def _normalized(self, q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        return (q, k) if self.q_norm is None else (self.q_norm(q), self.k_norm(k))
