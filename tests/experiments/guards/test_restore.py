"""What a run that went back goes on with."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.errors import ConfigError
from experiments.guards.restore import STRIDE, Restore


class Gone:
    """A member, as far as its inputs are concerned."""

    def __init__(self, restores):
        self.restores = restores


def test_seeds_move_and_rates_fall():
    seeds = jnp.array([0, 7, 2**32 - 1], jnp.uint32)
    values = {
        "optimizer.learning_rate": jnp.array([1.0, 2.0, 4.0]),
        "optimizer.adam_learning_rate": jnp.array([1.0, 1.0, 1.0]),
        "optimizer.weight_decay": jnp.array([0.1, 0.1, 0.1]),
    }
    members = [Gone(0), Gone(1), Gone(2)]
    moved, changed = Restore(rate=0.5).inputs(members, seeds, values)
    assert moved.dtype == jnp.uint32
    assert moved.tolist() == [0, 7 + STRIDE, (2**32 - 1 + 2 * STRIDE) % 2**32]
    np.testing.assert_array_equal(changed["optimizer.learning_rate"], [1, 1, 1])
    np.testing.assert_array_equal(
        changed["optimizer.adam_learning_rate"], [1, 0.5, 0.25]
    )
    assert changed["optimizer.weight_decay"] is values["optimizer.weight_decay"]
    assert changed["optimizer.learning_rate"].dtype == jnp.float32
    same, unchanged = Restore().inputs([Gone(0)] * 3, seeds, values)
    assert same is seeds
    assert unchanged is values


@pytest.mark.parametrize(
    "override, message",
    [
        ("task.restore.times=0", "times must be at least 1, got 0"),
        ("task.restore.rate=0", "rate must be in 0 .. 1"),
    ],
)
def test_what_cannot_be_is_refused(compose, override, message):
    with pytest.raises(ConfigError, match=rf"task\.restore\.{message}"):
        compose("restore=checkpoint", override)
