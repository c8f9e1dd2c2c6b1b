"""Mixture of experts."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_choice, check_sizes
from blocks.dropout import Dropout
from blocks.ffn.moe.compute import COMPUTE
from blocks.linear import Linear


class MoE(nnx.Module):
    """y = dropout(sum over the chosen e of weight_e * expert_e(x) + g * shared(x))

    The router gives every token its top_k experts and their weights; no token is
    dropped, whatever the load. With weigh_input (Llama 4) a term is
    expert_e(weight_e * x). The shared expert sees every token; g is 1, or
    sigmoid(x @ shared_gate) (Qwen3-Next).

    Terms are weighted and summed in float32 or wider and rounded to the dtype of `x`
    once; the experts compute in the dtype of `x`, the router in float32 or wider.

    Sub-modules:
        router   router(d_model, n_experts)
        experts  expert(d_model, d_expert), n_experts of them stacked: parameters have
                 a leading expert axis, counted in `n_stacked`
        shared   expert(d_model, d_shared), or None
    Parameters (float32), role in brackets:
        shared_gate  [d_model, 1]  of a "hidden" linear map   [router]   if asked for

    compute: "blocks" sorts tokens by expert, top_k experts' work per token; "dense" has
    every expert see every token. Same numbers up to rounding. "blocks" cannot run
    experts with state (dropout, running statistics). jax.lax.ragged_dot is not
    used: on CPU it multiplies every token with every expert (jax 0.10.2: 196 ms against
    51 ms in blocks, 170 ms dense, for 1024 tokens to 2 of 8 experts, forward and
    backward), and its gradient has no vmap rule.

    Source: arXiv 2101.03961, arXiv 2401.06066 (shared experts); transformers 5.24.0
    Qwen3MoeSparseMoeBlock, DeepseekV3MoE, Llama4TextMoe, GptOssMLP.
    """

    traced = ()

    @staticmethod
    def takes_state_inside(*, compute: str = "blocks", **_) -> bool:
        """Whether the inner norm of experts may have state (running statistics)."""
        return compute != "blocks"

    @staticmethod
    def check(
        *,
        n_experts: int = 8,
        d_expert: int | None = None,
        n_shared: int = 0,
        d_shared: int | None = None,
        shared_gate: bool = False,
        weigh_input: bool = False,
        compute: str = "blocks",
        dropout: float = 0.0,
    ) -> None:
        """Raises ValueError for values that make no mixture."""
        check_sizes(n_experts=n_experts, d_expert=d_expert, d_shared=d_shared)
        if n_shared < 0:
            raise ValueError(f"n_shared must be at least 0, got {n_shared}")
        if n_shared == 0 and (shared_gate or d_shared is not None):
            raise ValueError(
                f"n_shared=0 means no shared expert, got shared_gate={shared_gate} "
                f"and d_shared={d_shared}"
            )
        check_choice("compute", compute, COMPUTE)
        Dropout.check(rate=dropout)

    def __init__(
        self,
        d_model: int,
        d_ff: int | None,
        *,
        expert: Callable,
        router: Callable,
        n_experts: int = 8,
        d_expert: int | None = None,
        n_shared: int = 0,
        d_shared: int | None = None,
        shared_gate: bool = False,
        weigh_input: bool = False,
        compute: str = "blocks",
        dropout: float = 0.0,
        inner_norm: Callable | None = None,
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: width of the residual stream.
        d_ff: inner width of one expert; None for the expert's own rule.
        expert: expert(d_model, d_ff, linear=..., [inner_norm=...], rngs=...), a
            feed-forward part.
        router: router(d_model, n_experts, linear=..., rngs=...).
        n_experts: experts to choose from.
        d_expert: inner width of one expert, instead of d_ff.
        n_shared: shared experts, as one of n_shared times the width.
        d_shared: that width, if it is another.
        shared_gate: a learned gate on the shared expert.
        weigh_input: weights multiply inputs instead of outputs.
        compute: "blocks" or "dense".
        dropout: probability that an entry of the output is dropped in training.
        inner_norm: of every expert.
        linear: linear(d_in, d_out, use=..., bias=..., rngs=...) makes a map.
        rngs: gives the keys.

        Raises:
            ValueError: bad values, or experts with state under "blocks".
        """
        self.check(
            n_experts=n_experts,
            d_expert=d_expert,
            n_shared=n_shared,
            d_shared=d_shared,
            shared_gate=shared_gate,
            compute=compute,
            dropout=dropout,
        )
        self.d_model = d_model
        self.compute = compute
        self.weigh_input = weigh_input
        inner = {} if inner_norm is None else {"inner_norm": inner_norm}
        d_expert = d_ff if d_expert is None else d_expert

        def make(key, width):
            own = nnx.Rngs(params=key)
            return expert(d_model, width, linear=linear, **inner, rngs=own)

        self.router = router(d_model, n_experts, linear=linear, rngs=rngs)
        index = jnp.arange(n_experts)
        # Expert i draws from fold_in(key, i): the same however many there are.
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(rngs.params(), index)
        self.experts = nnx.vmap(lambda key: make(key, d_expert))(keys)
        for _, node in nnx.iter_graph(self.experts):
            if isinstance(node, nnx.Variable):
                node.set_metadata(n_stacked=node.get_metadata().get("n_stacked", 0) + 1)
        if compute == "blocks" and nnx.to_flat_state(
            nnx.state(self.experts, nnx.Not(nnx.Param))
        ):
            raise ValueError(
                "compute='blocks' takes experts without state: use dropout of the "
                "mixture instead of the expert's, another inner_norm, or "
                "compute='dense'"
            )
        if n_shared:
            width = n_shared * self.experts.d_ff if d_shared is None else d_shared
            self.shared = make(rngs.params(), width)
        else:
            self.shared = None
        if shared_gate:
            gate = linear(d_model, 1, use="hidden", bias=False, rngs=rngs)
            self.shared_gate = nnx.Param(gate.kernel[...], role="router")
        else:
            self.shared_gate = None
        self.dropout = Dropout(dropout, rngs=rngs)

    def __call__(self, x: jax.Array, shape: tuple[int, int] | None = None) -> jax.Array:
        """Maps [tokens, d_model] to the same shape in the dtype of `x`.

        `shape`, (batch, seq), says how tokens form sequences; tokens meet only in the
        load of the experts.

        Raises:
            ValueError: `x` is not [tokens, d_model].
        """
        del shape
        weights, chosen = self.router(x)
        y = COMPUTE[self.compute](self.experts, x, weights, chosen, self.weigh_input)
        if self.shared is not None:
            shared = self.shared(x).astype(y.dtype)
            if self.shared_gate is not None:
                gate = x.astype(y.dtype) @ self.shared_gate[...].astype(y.dtype)
                shared = jax.nn.sigmoid(gate) * shared
            y = y + shared
        return self.dropout(y.astype(x.dtype))
