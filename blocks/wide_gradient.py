"""The gradient of a matrix, computed in the orientation that a CPU is faster at."""

import jax


def wide_gradient(matrix: jax.Array) -> jax.Array:
    """`matrix` [m, n] as it is; a CPU computes its gradient with the longer axis last.

    The gradient of y = x @ matrix is x^T dy, a product over tokens. XLA for CPUs takes
    it at half the rate when the longer axis comes first (2048 tokens, one core: 54
    GFLOP/s for 512 x 128 and 101 for 128 x 512; 67 and 101 for 1024 and 256; 84 and 100
    for 2048 and 512), and turns a transposed product back into that. A barrier keeps it
    from doing so: what is computed is dy^T x, then transposed. The numbers are the same.
    """
    m, n = matrix.shape
    return _turned(matrix) if m > n else matrix


@jax.custom_jvp
def _turned(matrix: jax.Array) -> jax.Array:
    return matrix


@_turned.defjvp
def _(primals, tangents):
    (matrix,), (tangent,) = primals, tangents
    if jax.default_backend() != "cpu":  # the libraries there take both alike
        return matrix, tangent
    return matrix, jax.lax.optimization_barrier(tangent.T).T
