"""What is asked of several processes, and what one alone makes of it."""

import threading

import numpy as np
import pytest

from experiments import distributed
from experiments.errors import ConfigError

PLACE = {"coordinator": "127.0.0.1:9000", "num_processes": 2, "process_id": 0}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("slurm", "runtime.distributed: expected null, auto or a mapping with coord"),
        ({"process_id": 0}, "runtime.distributed.coordinator: missing"),
        (PLACE | {"n_processes": 2}, "no such key; did you mean num_processes?"),
        (
            PLACE | {"coordinator": "here"},
            "coordinator: expected host:port, got 'here'",
        ),
        (PLACE | {"num_processes": 0}, "num_processes: must be at least 1, got 0"),
        (PLACE | {"process_id": 2}, "process_id: must be in 0 .. 1, got 2"),
        (PLACE | {"process_id": True}, "process_id: must be in 0 .. 1, got True"),
    ],
)
def test_numbers_that_no_set_of_processes_has_are_refused(asked, message):
    with pytest.raises(ConfigError) as error:
        distributed.check(asked)
    assert message in str(error.value)


@pytest.mark.parametrize("asked", [None, "auto", PLACE])
def test_what_can_be_asked_for(asked):
    distributed.check(asked)


def test_processes_that_would_share_no_work_are_refused(compose):
    with pytest.raises(ConfigError, match="and all are 1"):
        compose("runtime.distributed=auto")
    with pytest.raises(ConfigError, match="not with dispatch=Processes"):
        compose("runtime.distributed=auto", "runtime.mesh.data=2", "dispatch=processes")


def test_one_process_is_the_first_and_agrees_with_itself():
    assert distributed.is_first()
    assert not distributed.is_shared()
    assert distributed.everyones(3.5) == np.asarray([3.5])
    distributed.leave("nothing to leave")
    stop = threading.Event()
    agreed = distributed.AgreedStop(stop)
    assert not agreed.is_set()
    stop.set()
    assert agreed.is_set()
