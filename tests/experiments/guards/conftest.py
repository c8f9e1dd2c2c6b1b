import pytest

from experiments.group import plan


@pytest.fixture
def planned(compose):
    """The one group of a short run that saves and logs often."""

    def planned(*overrides):
        (group,) = plan(
            compose(
                "steps=12", "log_every=1", "task.eval_every=null",
                "runtime.checkpoint.every=4", "optimizer.learning_rate=0.01", *overrides,
            )
        )  # fmt: skip
        return group

    return planned
