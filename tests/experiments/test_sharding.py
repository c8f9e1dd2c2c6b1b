"""What a mesh is, what it refuses, and where it puts each array: no device needed."""

import jax
import pytest

from blocks.parameters import ParamSpec
from experiments.errors import ConfigError
from experiments.execution import MemberLayout, choose_layout
from experiments.group import plan
from experiments.run import RunDirectory
from experiments.sharding import MeshShape, axes_of, split_batch


def sizes(fsdp=1, tensor=1):
    return MeshShape(fsdp=fsdp, tensor=tensor).sizes


def test_minus_one_is_what_the_other_axes_leave():
    assert MeshShape(members=-1, fsdp=2).filled(8) == MeshShape(members=4, fsdp=2)
    assert MeshShape(members=-1, data=2, fsdp=4).filled(8).members == 1
    assert MeshShape().filled(8) == MeshShape()  # no mesh: one device, as ever


@pytest.mark.parametrize(
    ("shape", "n_devices", "message"),
    [
        ({"members": 4}, 8, "runtime.mesh: members=4 needs 4 devices, there are 8"),
        ({"data": 16}, 8, "runtime.mesh: data=16 needs 16 devices, there are 8"),
        ({"fsdp": 2}, 1, "fsdp=2 needs 2 devices, there is 1 device"),
        ({"members": -1, "fsdp": 3}, 8, "needs a multiple of 3 devices, there are 8"),
    ],
)
def test_devices_that_a_mesh_does_not_use_up_are_refused(shape, n_devices, message):
    with pytest.raises(ConfigError) as error:
        MeshShape(**shape).filled(n_devices)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ("{members: 0}", "runtime.mesh.members: must be at least 1, or -1 for all"),
        ("{members: -1, data: -1}", "runtime.mesh: one axis may be -1"),
        ("{members: two}", "runtime.mesh.members: expected an integer, got 'two'"),
        ("{data: 512}", "data=512 needs 512 devices"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused_before_anything_is_made(
    compose, tmp_path, mesh, message
):
    with pytest.raises(ConfigError) as error:
        plan(compose(f"runtime.mesh={mesh}"))
    assert message in str(error.value)
    assert not list(tmp_path.iterdir())


def test_batch_heads_and_widths_must_be_divided(compose):
    (config,) = compose("batch_size=12", "accumulate=2", "model.n_kv_heads=1")
    (group,) = plan([config])
    specs = group.programs.program.layout.specs
    MeshShape(data=2, fsdp=3).check(config, specs)
    for shape, message in [
        ({"data": 4}, "data x fsdp = 4 must divide the 6 sequences"),
        ({"data": 2, "fsdp": 2}, "data x fsdp = 4 must divide the 6 sequences"),
        ({"tensor": 4}, "runtime.mesh.tensor: must divide model.n_heads=2, got 4"),
        ({"tensor": 2}, "runtime.mesh.tensor: must divide model.n_kv_heads=1, got 2"),
    ]:
        with pytest.raises(ConfigError) as error:
            MeshShape(**shape).check(config, specs)
        assert message in str(error.value)
    odd = {**specs, "a/ffn/up/kernel": ParamSpec("matrix", (2, 32, 129), 1)}
    (config,) = compose()
    with pytest.raises(ConfigError, match="must divide axis 2 of a/ffn/up/kernel"):
        MeshShape(tensor=2).check(config, odd)


@pytest.mark.parametrize(
    ("path", "spec", "axes"),
    [
        ("l/ffn/up/kernel", ParamSpec("matrix", (2, 32, 128), 1), (None, None, "fsdp")),
        ("l/ffn/down/kernel", ParamSpec("matrix", (2, 128, 32), 1),
         (None, "fsdp", None)),
        # 30 is the longer one, and 4 does not divide it.
        ("l/ffn/up/kernel", ParamSpec("matrix", (2, 16, 30), 1), (None, "fsdp", None)),
        # Eight layers: the longest axis, and not one to cut.
        ("l/attn/q/kernel", ParamSpec("matrix", (8, 4, 4), 1), (None, "fsdp", None)),
        ("l/ffn/experts/up/kernel", ParamSpec("matrix", (8, 16, 4, 6), 2),
         (None, None, "fsdp", None)),
        ("l/attn/q/kernel", ParamSpec("matrix", (4, 3, 5), 1), (None, None, None)),
        ("l/ffn/norm/gain", ParamSpec("gain", (2, 32), 1), (None, None)),
        ("table", ParamSpec("embedding", (64, 32)), ("fsdp", None)),
    ],
)  # fmt: skip
def test_fsdp_cuts_the_longest_axis_it_divides_and_never_a_stacked_one(
    path, spec, axes
):
    assert axes_of(path, spec, spec.shape, sizes(fsdp=4)) == axes


@pytest.mark.parametrize(
    ("path", "spec", "axes"),
    [
        ("l/q/kernel", ParamSpec("matrix", (2, 64, 32), 1), (None, "fsdp", "tensor")),
        ("l/o/kernel", ParamSpec("matrix", (2, 32, 64), 1), (None, "tensor", "fsdp")),
        ("l/gate/kernel", ParamSpec("matrix", (2, 32, 128), 1),
         (None, "fsdp", "tensor")),
        ("l/down/kernel", ParamSpec("matrix", (2, 128, 32), 1),
         (None, "tensor", "fsdp")),
        ("table", ParamSpec("embedding", (64, 32)), ("tensor", "fsdp")),
        ("head/kernel", ParamSpec("head", (32, 64)), ("fsdp", "tensor")),
        # A map of which nothing is known by name.
        ("l/mix/kernel", ParamSpec("matrix", (2, 32, 64), 1), (None, None, "fsdp")),
    ],
)  # fmt: skip
def test_tensor_cuts_kernels_by_the_name_of_their_map(path, spec, axes):
    assert axes_of(path, spec, spec.shape, sizes(fsdp=2, tensor=2)) == axes


def test_what_is_kept_for_a_parameter_in_another_shape_is_cut_like_it_where_it_can_be():
    spec = ParamSpec("matrix", (2, 32, 128), 1)
    cut = sizes(fsdp=4, tensor=2)
    # A factor of Shampoo is a matrix of each layer; one of Adafactor is a vector.
    factor = axes_of("l/up/kernel", spec, (2, 128, 128), cut)
    assert factor == (None, "fsdp", None)
    assert axes_of("l/up/kernel", spec, (2, 128), cut) == (None, None)
    assert axes_of("l/up/kernel", spec, (1,), cut) == (None,)


def test_members_that_cannot_be_dealt_out_equally_take_fewer_devices():
    shape = MeshShape(members=8)
    across = {n: shape.members_across(n) for n in (1, 3, 8, 12, 64)}
    assert across == {1: 1, 3: 3, 8: 8, 12: 6, 64: 8}


def test_batches_leave_no_device_idle_but_in_the_last(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    members = list(range(19))

    def lengths(name):
        layout = MemberLayout(name, 1, MeshShape(members=-1))
        batches = layout.batches(members)
        assert [m for batch in batches for m in batch] == members
        return [len(batch) for batch in batches]

    assert lengths("map") == lengths("vmap") == [16, 3]
    assert lengths("threads") == [8, 8, 3]
    layout = MemberLayout("vmap", 1, MeshShape(members=8))
    assert layout.batches(members[:5]) == [members[:5]]
    assert [layout.smaller(n) for n in (40, 19, 8, 5)] == [40, 16, 8, 5]


def test_on_a_mesh_one_thread_calls():
    """Two programs that wait for each other's devices must not be started at once."""
    assert choose_layout("threads", 4).n_workers == 4
    assert choose_layout("threads", 4, MeshShape(members=2)).n_workers == 1
    assert choose_layout("auto", None, MeshShape(members=2)).name == "map"


def test_without_a_mesh_the_batch_is_the_same_object():
    batch = {"tokens": jax.numpy.zeros((4, 8))}
    assert split_batch(batch) is batch


def test_a_mesh_is_no_part_of_what_a_run_is(compose):
    alone, on_mesh = (
        compose(*o)[0] for o in ((), ("runtime.mesh={members: 2, fsdp: 4}",))
    )
    assert on_mesh.runtime.mesh == MeshShape(members=2, fsdp=4)
    paths = [RunDirectory(c, "data").path for c in (alone, on_mesh)]
    assert paths[0] == paths[1]
