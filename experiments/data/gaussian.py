"""Gaussian inputs and a Gaussian linear loss: gradients at init without any data."""

import hashlib

import jax
import jax.numpy as jnp

from experiments.data.dataset import ROWS, Dataset, split_key


class Gaussian:
    """Independent N(0, 1) rows for a network f with the loss mean(f(x) * weights).

    Args:
        n_rows: rows of a batch. batch_size and seq_len of a run do not apply.
        d_model: width of a row.
    """

    traced = ()

    @staticmethod
    def check(*, n_rows: int = 256, d_model: int = 64) -> None:
        """Refuses an empty batch."""
        for key, value in (("n_rows", n_rows), ("d_model", d_model)):
            if value < 1:
                raise ValueError(f"{key}: expected at least 1, got {value}")

    def __init__(self, *, n_rows: int = 256, d_model: int = 64):
        self.n_rows = n_rows
        self.d_model = d_model

    def load(self) -> Dataset:
        """Nothing to read."""
        name = f"gaussian n_rows={self.n_rows} d_model={self.d_model}"
        return Dataset(
            arrays={},
            vocab_size=None,
            unit="row",
            fingerprint=hashlib.sha256(name.encode()).hexdigest(),
            train_tokens=None,
            validation_tokens=None,
            references={},
            holds=ROWS,
        )

    def batch(
        self, arrays, key, *, split, batch_size=None, seq_len=None
    ) -> dict[str, jax.Array]:
        """{"x", "weights"}: float32 [n_rows, d_model] each, independent."""
        del arrays, batch_size, seq_len
        shape = (self.n_rows, self.d_model)
        x_key, weights_key = jax.random.split(split_key(key, split))
        return {
            "x": jax.random.normal(x_key, shape, jnp.float32),
            "weights": jax.random.normal(weights_key, shape, jnp.float32),
        }
