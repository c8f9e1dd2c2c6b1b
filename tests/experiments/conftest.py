import pytest

from experiments import api
from experiments.environment import set_up


@pytest.fixture(autouse=True)
def compilation_cache():
    """Tests share the user's cache of compiled programs, as runs do."""
    set_up("auto")


@pytest.fixture
def compose(tmp_path):
    """Composes tiny runs on generated data that write below tmp_path."""

    def compose(*overrides: str, task: str = "train"):
        cadence = ("task.eval_every=60", "task.eval_batches=2")
        small = (
            "model=tiny",
            "data=markov",
            "batch_size=4",
            "seq_len=16",
            "steps=120",
            "log_every=10",
            f"task={task}",
            *(cadence if task == "train" else ()),
            f"runtime.output_dir={tmp_path}",
        )
        return api.compose([*small, *overrides])

    return compose
