"""Muon that holds attention scores by scaling queries and keys."""

import jax
from flax import nnx

from blocks.keywords import with_keywords_of
from blocks.parameters import ParamSpec
from experiments.optimizers.muon import Muon
from experiments.optimizers.qk_clip import qk_clip


class MuonClip(Muon):
    """Muon, and behind every step `qk_clip` with the largest scores of that step.

        p <- p - rate (s * orthogonal(H) + weight_decay p)      as `Muon`
        W_q, W_k of a head with S > tau <- scaled, so that S would have been tau

    S is the largest score of the head over the step's batch, before a soft-cap.

    Args:
        tau: scores up to this are left alone, > 0.
        the others: of `Muon`, with the scale of arXiv 2502.16982 and a rate for it.

    Source: arXiv 2507.20534, algorithm 1 (tau = 100, scale "rms0.2").
    """

    traced = (*Muon.traced, "tau")
    looks = ("logits",)  # what `after_update` needs of the forward pass

    @staticmethod
    @with_keywords_of(Muon.check)
    def check(
        *,
        tau: float = 100.0,
        learning_rate: float = 1e-3,
        scale: str = "rms0.2",
        **others,
    ) -> None:
        """Refuses values before anything is traced or compiled."""
        Muon.check(learning_rate=learning_rate, scale=scale, **others)
        if not 0 < tau < float("inf"):
            raise ValueError(f"tau: expected a finite number > 0, got {tau}")

    @with_keywords_of(Muon.__init__)
    def __init__(
        self,
        *,
        tau: float = 100.0,
        learning_rate: float = 1e-3,
        scale: str = "rms0.2",
        **others,
    ):
        super().__init__(learning_rate=learning_rate, scale=scale, **others)
        self.tau = tau

    @staticmethod
    def facts_of(model: nnx.Module) -> tuple[int, int]:
        """(n_heads, n_kv_heads) of every attention of the model.

        Raises:
            ValueError: there is none, they differ, or a norm, with parameters or
                without, takes a factor of queries and keys out again.
        """
        found = set()
        for _, node in nnx.iter_graph(model):
            if not isinstance(node, nnx.Module) or not hasattr(node, "n_heads"):
                continue
            if hasattr(node, "k_up"):  # latent: as many keys as queries
                found.add((node.n_heads, node.n_heads))
            elif hasattr(node, "q") and hasattr(node, "k"):
                if getattr(node, "k_norm", None) is not None:
                    raise ValueError(
                        "MuonClip expects scores in proportion to the kernels of "
                        "queries and keys, but there is a norm behind them (qk_norm)"
                    )
                found.add((node.n_heads, node.n_kv_heads))
        if len(found) != 1:
            raise ValueError(
                "MuonClip expects attentions with queries and keys of one number of "
                f"heads, got {sorted(found) or 'none'}"
            )
        return found.pop()

    def after_update(
        self,
        params: dict[str, jax.Array],
        measured: dict[str, jax.Array],
        *,
        specs: dict[str, ParamSpec],
        facts: tuple[int, int],
        places: dict[str, range],
    ) -> dict[str, jax.Array]:
        """The parameters of the next step.

        Args:
            params: as the update left them.
            measured: `looks` of the forward pass before it.
            facts: `facts_of` the model.
            places: `Stack.places`.
        """
        scores = measured["attention_logit_max"]
        return qk_clip(params, specs, scores, self.tau, *facts, places=places)
