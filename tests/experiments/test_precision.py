"""bfloat16 against float32: what a run loses is within what another seed changes."""

import numpy as np
import pytest

from experiments import api
from experiments.errors import ConfigError

SMALL = ("data=markov", "log_every=10", "task.eval_batches=8")


def last_losses(overrides, seeds, dtype, folder):
    """Validation losses at the end, one a seed."""
    configs = api.compose(
        [
            *SMALL,
            *overrides,
            f"seed={','.join(map(str, seeds))}",
            f"model.dtype={dtype}",
            f"runtime.output_dir={folder}",
        ]
    )
    members = sorted(api.run(configs), key=lambda member: member.config.seed)
    return np.array([member.val_loss for member in members])


def assert_within_the_seeds(overrides, seeds, folder):
    full = last_losses(overrides, seeds, "float32", folder)
    half = last_losses(overrides, seeds, "bfloat16", folder)
    spread = full.std(ddof=1)
    difference = half - full
    assert np.any(difference != 0)  # it was another computation
    # The same seed in two precisions is closer than two seeds in one.
    assert np.abs(difference).max() < spread, (full, half)
    assert abs(difference.mean()) < spread / 2, (full, half)


def test_bfloat16_of_a_short_run_is_within_the_spread_of_seeds(tmp_path):
    short = (
        "model=tiny",
        "batch_size=4",
        "seq_len=16",
        "steps=40",
        "task.eval_every=40",
    )
    assert_within_the_seeds(short, range(3), tmp_path)


def test_float16_is_refused_by_name():
    with pytest.raises(ConfigError, match="^model.dtype float16: .*take bfloat16$"):
        api.compose(["model.dtype=float16"])


@pytest.mark.slow
def test_bfloat16_of_300_steps_is_within_the_spread_of_seeds(tmp_path):
    longer = ("model=small", "batch_size=8", "seq_len=64", "steps=300")
    longer = (*longer, "task.eval_every=300")
    assert_within_the_seeds(longer, range(5), tmp_path)
