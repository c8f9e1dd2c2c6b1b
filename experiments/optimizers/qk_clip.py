"""QK-Clip: heads whose scores grew too large get smaller queries and keys."""

import jax
import jax.numpy as jnp

from blocks.parameters import ParamSpec


def qk_clip(
    params: dict[str, jax.Array],
    specs: dict[str, ParamSpec],
    logit_max: jax.Array,
    tau,
    n_heads: int,
    n_kv_heads: int,
    *,
    places: dict[str, range] | None = None,
) -> dict[str, jax.Array]:
    """The parameters, such that scores of `logit_max` would have been at most tau.

        gamma = min(1, tau / S)        S: largest score of a head; 1 where S <= 0

        keys of its own    W_q <- sqrt(gamma) W_q       W_k <- sqrt(gamma) W_k
        shared keys        W_q <- gamma W_q             where n_kv_heads < n_heads
        latent attention   sqrt(gamma) on the features of W_q and W_k that know no
                           position, gamma on those of W_q that do; the key that knows
                           the position is shared by all heads and stays

    A bias takes the factor of its features. Everything else stays, the optimizer's
    momentum too. To be applied behind the optimizer's step, with the scores of that
    step's forward pass: they belong to the parameters before it. Factors are in float32
    or wider, parameters keep their dtype.

    Scores must be in proportion to the kernels of q and k. Behind a norm of queries and
    keys they are not, and this does nothing; only one with parameters is noticed here.

    Args:
        params, specs: of the whole model, by path.
        logit_max: `attention_logit_max` of the model [n_layers, n_heads], before a
            soft-cap.
        tau: scores up to this are left alone, > 0; may be traced.
        n_heads, n_kv_heads: of every attention of the model.
        places: `Stack.places`, for a stack whose layers are not all alike.

    Raises:
        ValueError: no attention has kernels of queries and keys, a norm is between them
            and the scores, or layers or heads are not those of `logit_max`.

    Source: arXiv 2507.20534 algorithm 1, where tau is 100; AI-Hypercomputer/maxtext
    qk_clip_utils.py for latent attention. Departures: min(1, tau / S) as it stands
    there is negative for a negative S; shared keys and biases are not there.
    For shared keys NVIDIA/Megatron-LM attention.py clips a group by its largest score,
    on both sides; here each head is clipped by its own, as beside the position key.
    """
    clipped = dict(params)
    attentions = _attentions(specs)
    if not attentions:
        raise ValueError("expected an attention with kernels of queries and keys")
    for path, (q, k) in attentions.items():
        scores = logit_max if places is None else _rows(logit_max, path, places)
        spec = specs[f"{q}/kernel"]
        expected = (*spec.shape[: spec.n_stacked], n_heads)
        if scores.shape != expected:
            raise ValueError(
                f"logit_max: expected shape {expected} for {path}, got {scores.shape}"
            )
        scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
        gamma = tau / jnp.maximum(scores, tau)
        root = jnp.sqrt(gamma)

        d_query, d_key = (specs[f"{m}/kernel"].shape[-1] for m in (q, k))
        if f"{path}/k_rope/kernel" in specs:
            plain = jnp.arange(d_query // n_heads) < d_key // n_heads
            of_q = jnp.where(plain, root[..., None], gamma[..., None])
            factors = {q: of_q.reshape(*gamma.shape[:-1], -1), k: _each(root, d_key)}
        elif d_query * n_kv_heads != d_key * n_heads:
            raise ValueError(
                f"n_kv_heads: expected the heads of {path}, which has {d_key} features "
                f"of keys and {d_query} of {n_heads} queries, got {n_kv_heads}"
            )
        elif n_kv_heads == n_heads:
            factors = {q: _each(root, d_query), k: _each(root, d_key)}
        else:
            factors = {q: _each(gamma, d_query)}
        for name, factor in factors.items():
            _scale(clipped, f"{name}/kernel", factor[..., None, :])
            _scale(clipped, f"{name}/bias", factor)
    return clipped


def _attentions(specs: dict[str, ParamSpec]) -> dict[str, tuple[str, str]]:
    """Path of an attention -> paths of the maps that end in its queries and keys."""
    found = {}
    for q, k in (("q", "k"), ("q", "k_up"), ("q_up", "k_up")):
        for path in specs:
            attention = path.removesuffix(f"/{q}/kernel")
            if attention != path and f"{attention}/{k}/kernel" in specs:
                found[attention] = (f"{attention}/{q}", f"{attention}/{k}")
    for attention, (_, k) in found.items():
        norms = tuple(f"{attention}/{name}/" for name in ("q_norm", "k_norm"))
        # Of latent attention q_norm is in front of the kernel.
        if k.endswith("/k") and any(path.startswith(norms) for path in specs):
            raise ValueError(
                f"{attention}: expected scores in proportion to the kernels of q and "
                "k, but their norm takes a factor out again"
            )
    return found


def _rows(logit_max: jax.Array, path: str, places: dict[str, range]) -> jax.Array:
    """The layers of 'blocks/<place>/...', in its order."""
    return logit_max[jnp.array(places[path.split("/")[1]])]


def _each(of_heads: jax.Array, d_out: int) -> jax.Array:
    """[..., n_heads] -> [..., d_out]: the same for all features of a head."""
    return jnp.repeat(of_heads, d_out // of_heads.shape[-1], axis=-1)


def _scale(params: dict[str, jax.Array], path: str, factor: jax.Array) -> None:
    if path in params:
        params[path] = (params[path] * factor).astype(params[path].dtype)
