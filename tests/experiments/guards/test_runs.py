"""Runs with one poisoned gradient: skipped, the end, or a way back."""

import threading

import jax
import jax.numpy as jnp
import pytest

from experiments.group import executables
from experiments.program import TRAIN, Program

BAD = 5  # step, counted from 0, whose gradient is poisoned
TIMES = ("seconds", "tokens_per_second")


@pytest.fixture(scope="module", autouse=True)
def poison():
    """The gradient of seed 0 at step `BAD` is NaN, on the batch of that step only."""
    gradient = Program._gradient

    def poisoned(self, state, batch, *rest):
        data = {k: jnp.asarray(x) for k, x in self.dataset.arrays.items()}
        usual = self._batch(data, jnp.uint32(0), TRAIN, jnp.int32(BAD), "train")
        is_bad = (state.step == BAD) & jnp.all(batch == usual)
        loss, others, grads, *more = gradient(self, state, batch, *rest)
        factor = jnp.where(is_bad, jnp.nan, 1.0)
        return loss, others, jax.tree.map(lambda g: g * factor, grads), *more

    executables.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Program, "_gradient", poisoned)
        yield
    executables.cache_clear()


@pytest.fixture
def train():
    """Runs the members of a group to their end, or chunk by chunk as if preempted."""

    def train(group, *, cut=False):
        stop = threading.Event()
        if cut:
            stop.set()
        for member in group.members:
            while member.state == "planned":
                assert member.directory.open(group.env(member))
                member.state = "running"
                try:
                    group.task.run(group.programs, [member], stop)
                finally:
                    member.directory.close()
                if member.state == "preempted":
                    member.state = "planned"
        return group.members

    return train


def rows(member) -> list[dict]:
    found = member.directory.rows("metrics.jsonl")
    return [{k: v for k, v in row.items() if k not in TIMES} for row in found]


def test_it_goes_back_to_the_checkpoint_and_on_with_other_batches(planned, train):
    (member,) = train(planned("restore=checkpoint"))
    status = member.directory.status()
    assert (status.state, status.restores, status.diverged_step) == (
        "completed",
        1,
        None,
    )
    found = rows(member)
    assert [row["step"] for row in found] == list(range(1, 13))
    assert all(row["loss"] is not None for row in found)
    assert member.note == (
        f"diverged at step {BAD + 1}, restored (1 of 3); continued from step 4"
    )

    (other,) = train(planned("seed=1", "name=other"))  # never poisoned: another batch
    assert other.state == "completed"
    (usual,) = train(planned("runtime.locate_divergence=false", "name=usual"))
    before = rows(usual)
    assert found[:4] == before[:4]
    assert found[4]["loss"] != before[4]["loss"]


def test_a_run_that_was_cut_goes_on_in_the_same_way(planned, train):
    (whole,) = train(planned("restore=checkpoint", "name=whole"))
    (cut,) = train(planned("restore=checkpoint", "name=cut"), cut=True)
    assert cut.directory.status().attempt > 2
    assert cut.directory.status().restores == 1
    assert rows(cut) == rows(whole)
    digests = [m.directory.status().params_digest for m in (whole, cut)]
    assert digests[0] == digests[1] is not None


def test_without_a_checkpoint_it_begins_anew(planned, train):
    (member,) = train(planned("restore=checkpoint", "runtime.checkpoint.every=null"))
    assert member.state == "completed"
    assert [row["step"] for row in rows(member)] == list(range(1, 13))


def test_after_the_last_time_it_has_diverged(planned, train):
    hopeless = (
        "restore=checkpoint",
        "task.restore.times=2",
        "task.diverged_above=1e-3",
        "runtime.locate_divergence=false",
    )
    (member,) = train(planned(*hopeless))
    status = member.directory.status()
    assert (status.state, status.restores, status.diverged_step) == ("diverged", 2, 1)


def test_a_poisoned_step_is_skipped_and_counted(planned, train):
    (member,) = train(planned("guard=skip"))
    assert member.state == "completed"
    found = member.directory.rows("metrics.jsonl")
    skipped = [row["skipped"] for row in found]
    assert skipped == [0] * BAD + [1] * (12 - BAD)
    assert found[BAD]["grad_norm"] is None
    assert found[BAD + 1]["learning_rate"] == found[BAD]["learning_rate"]
    assert all(row["loss"] is not None for row in found)


def test_without_a_guard_it_ends_there(planned, train):
    (member,) = train(planned("runtime.locate_divergence=false"))
    assert (member.state, member.diverged_step) == ("diverged", BAD + 1)


def test_a_skipped_step_is_no_different_after_an_interruption(planned, train):
    (whole,) = train(planned("guard=skip", "name=whole"))
    (cut,) = train(planned("guard=skip", "name=cut"), cut=True)
    assert cut.directory.status().attempt == 3
    digests = [m.directory.status().params_digest for m in (whole, cut)]
    assert digests[0] == digests[1] is not None
