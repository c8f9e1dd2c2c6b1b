"""Gate and up in one array, as checkpoints store them."""

import jax
import jax.numpy as jnp

from blocks.checks import check_choice

PACKINGS = ("concatenated", "interleaved")


def unpack(gate_up: jax.Array, packing: str) -> tuple[jax.Array, jax.Array]:
    """Splits the last axis, [..., 2 d_ff], into gate and up, each [..., d_ff].

    concatenated  [gate | up]           Qwen3-MoE, DeepSeek, Llama 4
    interleaved   gate, up, gate, ...   gpt-oss: gate at even places

    Works on kernels [d_model, 2 d_ff], on biases and on activations alike. torch's
    `F.glu` is concatenated as well, but its first half is the linear one.
    """
    check_choice("packing", packing, PACKINGS)
    if gate_up.shape[-1] % 2:
        raise ValueError(f"expected an even last axis, got shape {gate_up.shape}")
    if packing == "interleaved":
        return gate_up[..., ::2], gate_up[..., 1::2]
    half = gate_up.shape[-1] // 2
    return gate_up[..., :half], gate_up[..., half:]


def pack(gate: jax.Array, up: jax.Array, packing: str) -> jax.Array:
    """The inverse of `unpack`."""
    check_choice("packing", packing, PACKINGS)
    if packing == "interleaved":
        return jnp.stack([gate, up], axis=-1).reshape(*gate.shape[:-1], -1)
    return jnp.concatenate([gate, up], axis=-1)
