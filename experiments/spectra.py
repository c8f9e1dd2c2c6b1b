"""Singular values of the hidden matrices and of the steps they take."""

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.matrixwise import matrixwise
from blocks.parameters import ParamSpec, path_name

SQUARINGS = 20

# Maps that follow each other with something in between: last, first.
PAIRS = (("o", "v"), ("o", "v_up"), ("down", "up"))


def sigma1(w: jax.Array) -> jax.Array:
    """Largest singular value of each matrix [..., d_in, d_out]; [...].

    The Gram matrix of the short side is squared 20 times, which is 2^20 steps of power
    iteration in 20 products; the singular value is that of the longest column. However
    close the others come, sigma1 is too small by at most (1 + ln n) / 2^22 of itself (2e-6
    at n = 1024 on the short side); what remains is rounding. Products run side by side
    on a GPU and under vmap, where LAPACK and its like take one matrix after another. On
    one CPU core an eigenvalue solver is half as fast at 64 x 64 and twice as fast at
    512 x 512.
    In float32 or wider.
    """
    w = w.astype(jnp.promote_types(w.dtype, jnp.float32))
    if w.shape[-2] > w.shape[-1]:
        w = w.mT
    w, size = _over_largest(w)
    gram, _ = _over_largest(_product(w, w.mT))
    # A high power of it: the longest column has no other directions left.
    power = jax.lax.fori_loop(
        0, SQUARINGS, lambda _, p: _over_largest(_product(p, p))[0], gram
    )
    longest = jnp.argmax(jnp.diagonal(power, axis1=-2, axis2=-1), axis=-1)
    v = jnp.take_along_axis(power, longest[..., None, None], axis=-1)
    u = _product(w.mT, v)
    squares = [jnp.sum(jnp.square(x), axis=(-2, -1)) for x in (u, v)]
    is_zero = squares[1] == 0
    ratio = squares[0] / jnp.where(is_zero, 1, squares[1])
    return jnp.sqrt(ratio) * size[..., 0, 0]


def spectra(
    params: dict[str, jax.Array],
    updates: dict[str, jax.Array],
    specs: dict[str, ParamSpec],
    heads: dict[str, tuple[int, int, int]],
) -> dict[str, jax.Array]:
    """`<quantity>/<path>` -> array over the stacked axes of the parameter.

    Of every matrix W (role matrix) with the update U that is added to it, learning rate
    and decay included:

        sigma1, frobenius, stable_rank   largest singular value, norm, their ratio squared
        update_sigma1, update_ratio      largest singular value of U, RMS(U) / RMS(W)

    of every parameter `update_norm`, the Frobenius norm of U; of an attention
    `head_sigma1/.../q_k` [..., n_heads], sigma1(W_q W_k^T) / sqrt(d_head) of the kernels
    of a head; of maps that follow each other `sigma1_product`, sigma1 times sigma1.

    Args:
        params: before the update.
        heads: `heads_of` the model.
    """
    found, largest = {}, {}
    for path, spec in specs.items():
        w, u = params[path], updates[path]
        n_copies = min(spec.n_stacked, 1)  # as gradient norms: one per layer
        found[f"update_norm/{path}"] = _norm(u, n_copies)
        if spec.role != "matrix" or len(spec.shape) != spec.n_stacked + 2:
            continue
        largest[path], of_update = sigma1(jnp.stack([w, u.astype(w.dtype)]))
        norm, step = _norm(w, spec.n_stacked), _norm(u, spec.n_stacked)
        found |= {
            f"sigma1/{path}": largest[path],
            f"frobenius/{path}": norm,
            f"stable_rank/{path}": jnp.square(norm / largest[path]),
            f"update_sigma1/{path}": of_update,
            f"update_ratio/{path}": step / norm,
        }
    for last, first in PAIRS:
        end = f"/{last}/kernel"
        for path in largest:
            parent = path.removesuffix(end)
            other = f"{parent}/{first}/kernel"
            if path.endswith(end) and other in largest:
                product = largest[path] * largest[other]
                found[f"sigma1_product/{parent}/{last}_{first}"] = product
    for path, sizes in heads.items():
        q, k = (params[f"{path}/{name}/kernel"] for name in "qk")
        found[f"head_sigma1/{path}/q_k"] = head_sigma1(q, k, *sizes)
    return found


def head_sigma1(
    q: jax.Array, k: jax.Array, n_heads: int, n_kv_heads: int, d_head: int
) -> jax.Array:
    """sigma1(W_q W_k^T) / sqrt(d_head) of each head [..., n_heads].

    q, k: kernels [..., d_model, heads * d_head]. Biases, norms of queries and keys, and
    positions have no part in it.
    """
    wide = jnp.promote_types(q.dtype, jnp.float32)

    def by_head(kernel, n):
        kernel = kernel.astype(wide).reshape(*kernel.shape[:-1], n, d_head)
        return jnp.moveaxis(kernel, -2, -3)

    q, k = by_head(q, n_heads), by_head(k, n_kv_heads)
    # K = Q R with orthonormal columns Q, so W_q K^T has the singular values of W_q R^T.
    r = matrixwise(lambda k: jnp.linalg.qr(k, mode="r"), k)
    r = jnp.repeat(r, n_heads // n_kv_heads, axis=-3)
    return sigma1(_product(q, r.mT)) / d_head**0.5


def heads_of(model: nnx.Module) -> dict[str, tuple[int, int, int]]:
    """Path of each attention with one kernel for queries and one for keys ->
    (n_heads, n_kv_heads, d_head)."""
    names = ("n_heads", "n_kv_heads", "d_head", "q", "k")
    return {
        path_name(path): (node.n_heads, node.n_kv_heads, node.d_head)
        for path, node in nnx.iter_graph(model)
        if isinstance(node, nnx.Module) and all(hasattr(node, n) for n in names)
    }


def _norm(x: jax.Array, n_stacked: int) -> jax.Array:
    """Frobenius norm of each copy."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return jnp.sqrt(jnp.sum(jnp.square(x), axis=tuple(range(n_stacked, x.ndim))))


def _over_largest(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """x / max |x| of each matrix, and that number (1 for zeros): squares stay in range."""
    largest = jnp.max(jnp.abs(x), axis=(-2, -1), keepdims=True)
    largest = jnp.where(largest == 0, 1, largest)
    return x / largest, largest


def _product(x: jax.Array, y: jax.Array) -> jax.Array:
    # The default on GPU and TPU rounds float32 to 10 or 8 bits of mantissa.
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)
