"""Eight devices give the numbers of one, and each does an eighth of the work."""

import socket

import numpy as np
import pytest

from tests.experiments.sharded import begun, returned


def test_the_first_gradients_are_those_of_one_device(tmp_path):
    found = returned(begun("first_gradients", tmp_path))
    assert found["difference"] < 1e-5
    assert found["devices"] == 8
    assert {"all-gather", "all-reduce"} <= set(found["sent"])


@pytest.mark.slow
def test_the_first_gradients_are_those_of_one_device_on_every_kind_of_mesh(tmp_path):
    found = returned(begun("first_gradients_of_all", tmp_path))
    assert len(found) == 8
    assert max(found.values()) < 1e-5, found


@pytest.mark.slow
def test_twenty_steps_in_float64_are_those_of_one_device(tmp_path):
    found = returned(begun("twenty_steps", tmp_path))
    assert len(found) == 6
    assert max(found.values()) < 1e-9, found


@pytest.mark.slow
def test_a_sweep_of_64_over_8_devices_sends_nothing_and_each_does_an_eighth(tmp_path):
    alone, spread = returned(begun("sweep_of_64", tmp_path)).values()
    np.testing.assert_allclose(spread["flops"], alone["flops"] / 8, rtol=0.02)
    assert spread["collectives"] == []


@pytest.mark.slow
def test_under_fsdp_a_device_holds_its_share_of_the_state(tmp_path):
    alone, fsdp, mixed = returned(begun("memory_under_fsdp", tmp_path)).values()
    assert alone["sent"] == []
    # Vectors and step counts are whole everywhere.
    assert fsdp["state"] < 1.05 * alone["state"] / 8
    assert mixed["state"] < 1.05 * alone["state"] / 8  # one of two members, in four
    np.testing.assert_allclose(fsdp["flops"], alone["flops"] / 8, rtol=0.1)
    n_sent = []
    for one in (fsdp, mixed):
        assert "all-gather" in [name for name, _ in one["sent"]]
        rows = [n for _, each in one["sent"] for n in each]
        assert "512" in rows  # the table
        n_sent.append(rows.count(str(24 * 16)))  # tokens
    # Parameters are fetched, and not the activations of all sequences; but for what the
    # gradient of a table is made of where members are spread too: tokens and gradients.
    assert n_sent == [0, 2]


@pytest.mark.slow
def test_a_run_cut_on_one_mesh_goes_on_on_another(tmp_path):
    found = returned(begun("resumed_on_another_mesh", tmp_path))
    assert found["attempts"] == 3
    assert found["note"] == "continued from step 30"
    cut, alone = found["losses"]
    assert len(alone) == 4 + 3  # rows with a loss, and evaluations
    np.testing.assert_allclose(cut, alone, rtol=1e-9)


@pytest.mark.slow
def test_tasks_that_take_no_step_measure_the_same(tmp_path):
    found = returned(begun("untrained", tmp_path, 2))
    assert len(found) == 6
    for mesh, one in found.items():
        assert one["alike"], mesh
        assert one["numbers"] > 10, mesh
        assert one["difference"] < 1e-9, mesh


@pytest.mark.slow
def test_two_processes_train_and_write_what_one_does(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = [
        begun("one_of_two_processes", tmp_path, 2, PROCESS=str(i), PORT=port)
        for i in range(2)
    ]
    first, second = (returned(process) for process in processes)
    for one in (first, second):
        assert one["errors"] == [None, None]
        assert one["states"] == ["completed", "completed"]
        assert one["devices"] == [4, 2]
    assert (first["writes"], second["writes"]) == ("First", "Follower")
    found = returned(begun("read_by_one_process", tmp_path, 1))
    assert found["digests"] == [True, True]
    assert found["difference"] < 1e-9
    assert found["rows"] == [[5, 5], [5, 5]]  # one before the first step
    assert found["env"] == {
        "mesh": {"members": 2, "data": 2, "fsdp": 1, "tensor": 1},
        "n_devices": 4,
        "n_processes": 2,
    }
