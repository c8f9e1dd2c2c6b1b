"""One member's numbers do not depend on who runs beside it, nor on how it is cut."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.group import plan
from experiments.members import stack_inputs

VARIANTS = [
    ("seed=0,1,2",),
    ("optimizer=muon", "seed=0,1", "optimizer.learning_rate=0.01,0.02"),
    ("norm=derf", "placement=post", "model.norm.alpha_init=0.3,0.5", "seed=0,1"),
]


def trained(configs, cuts=(20,)):
    """(losses, gradient norms, parameters) of each member after sum(cuts) steps."""
    results = []
    for group in plan(configs):
        programs = group.programs
        for batch in programs.layout.batches(group.members):
            inputs = stack_inputs(batch, programs.program.dtype)
            state = programs.call("init", *inputs)
            rows = []
            for n in cuts:
                state, metrics = programs.call(
                    "train_steps", state, *inputs, jnp.int32(n), programs.data
                )
                rows.append({k: np.asarray(v[:, :n]) for k, v in metrics.items()})
            whole = {k: np.concatenate([r[k] for r in rows], 1) for k in rows[0]}
            for i in range(len(batch)):
                params = {k: np.asarray(v[i]) for k, v in state.params.items()}
                results.append((whole["loss"][i], whole["grad_norm"][i], params))
    return results


def assert_same_bits(first, second):
    for (loss, grad, params), (loss2, grad2, params2) in zip(
        first, second, strict=True
    ):
        np.testing.assert_array_equal(loss, loss2)
        np.testing.assert_array_equal(grad, grad2)
        assert params.keys() == params2.keys()
        for path in params:
            np.testing.assert_array_equal(params[path], params2[path], path)


@pytest.mark.parametrize("overrides", VARIANTS, ids=lambda o: o[0])
def test_map_gives_the_bits_of_threads(compose, overrides):
    threads = trained(compose(*overrides, "runtime.layout=threads"))
    in_a_map = trained(compose(*overrides, "runtime.layout=map"))
    assert_same_bits(threads, in_a_map)


def test_a_member_alone_has_the_bits_it_has_in_its_group(compose):
    group = trained(compose("seed=0,1,2", "runtime.layout=map"))
    for seed in range(3):
        alone = trained(compose(f"seed={seed}", "runtime.layout=map"))
        assert_same_bits(alone, group[seed : seed + 1])


def test_where_a_run_is_cut_into_chunks_changes_no_bit(compose):
    whole = trained(compose("seed=3"), cuts=(40,))
    cut = trained(compose("seed=3"), cuts=(1, 7, 32))
    assert_same_bits(whole, cut)


@pytest.mark.parametrize("overrides", VARIANTS, ids=lambda o: o[0])
def test_under_vmap_the_first_step_agrees_in_float32(compose, overrides):
    threads = trained(compose(*overrides, "runtime.layout=threads"), cuts=(1,))
    side_by_side = trained(compose(*overrides, "runtime.layout=vmap"), cuts=(1,))
    for (loss, grad, _), (loss2, grad2, _) in zip(threads, side_by_side, strict=True):
        np.testing.assert_allclose(loss2, loss, rtol=1e-5)
        np.testing.assert_allclose(grad2, grad, rtol=1e-5)


def test_under_vmap_every_first_gradient_agrees_in_float32(compose):
    def gradients(layout):
        (group,) = plan(compose("seed=0,1", f"runtime.layout={layout}"))
        programs, probes = group.programs, []
        for batch in programs.layout.batches(group.members):
            inputs = stack_inputs(batch, programs.program.dtype)
            probe = programs.call("probe_at_init", *inputs, programs.data)
            probes += [{k: np.asarray(v[i]) for k, v in probe.items()}
                       for i in range(len(batch))]  # fmt: skip
        return probes

    for one, other in zip(gradients("threads"), gradients("vmap"), strict=True):
        for quantity in one:
            np.testing.assert_allclose(
                other[quantity], one[quantity], rtol=1e-5, err_msg=quantity
            )


@pytest.mark.parametrize("overrides", VARIANTS[:2], ids=lambda o: o[0])
def test_under_vmap_twenty_steps_agree_in_float64(compose, overrides):
    wide = (*overrides, "model.dtype=float64")
    threads = trained(compose(*wide, "runtime.layout=threads"))
    side_by_side = trained(compose(*wide, "runtime.layout=vmap"))
    for (loss, grad, params), (loss2, grad2, params2) in zip(
        threads, side_by_side, strict=True
    ):
        assert loss.dtype == np.float64
        np.testing.assert_allclose(loss2, loss, rtol=1e-9)
        np.testing.assert_allclose(grad2, grad, rtol=1e-9)
        for path in params:
            assert params[path].dtype == np.float64
            np.testing.assert_allclose(
                params2[path], params[path], atol=1e-9, rtol=1e-9
            )


def test_traced_numbers_reach_the_run(compose):
    """Two learning rates in one program train differently from the first update on."""
    groups = plan(compose("optimizer.learning_rate=0.001,0.01", "schedule=constant"))
    assert len(groups) == 1
    (loss, _, slow), (loss2, _, fast) = trained(
        compose("optimizer.learning_rate=0.001,0.01", "schedule=constant")
    )
    assert loss[0] == loss2[0]  # same seed, same weights, same batch
    assert (loss[1:] != loss2[1:]).all()
    # Adam's first steps have the size of the learning rate: ten times apart.
    (_, _, start), _ = trained(
        compose("optimizer.learning_rate=0.001,0.01", "schedule=constant"), cuts=(0,)
    )
    (_, _, slow), (_, _, fast) = trained(
        compose("optimizer.learning_rate=0.001,0.01", "schedule=constant"), cuts=(1,)
    )
    path = "head/kernel"
    ratio = (
        np.abs(fast[path] - start[path]).max() / np.abs(slow[path] - start[path]).max()
    )
    np.testing.assert_allclose(ratio, 10, rtol=1e-3)


def test_one_compilation_per_function_and_none_for_a_second_chunk(compose):
    (group,) = plan(
        compose("seed=0,1", "runtime.layout=map", "model.d_ff=36")  # unseen so far
    )
    programs = group.programs
    inputs = stack_inputs(group.members, programs.program.dtype)
    assert programs.compilations == 0
    state = programs.call("init", *inputs)
    for n in (3, 50, 17):
        state, _ = programs.call(
            "train_steps", state, *inputs, jnp.int32(n), programs.data
        )
    assert programs.compilations == 2
    again = plan(compose("seed=5,6", "runtime.layout=map", "model.d_ff=36"))[0]
    assert again.programs is programs, "the same signature asks for no new program"


def test_training_reaches_the_exact_floor_of_a_generated_source(compose):
    """The entropy rate of the chain is a floor no model passes, and a reachable one."""
    configs = compose(
        "data.vocab_size=8", "data.branching=2", "steps=400", "seq_len=32",
        "batch_size=16", "optimizer.learning_rate=0.01",
    )  # fmt: skip
    (group,) = plan(configs)
    floor = group.programs.program.dataset.references["entropy_rate"]
    ((loss, _, _),) = trained(configs, cuts=(50,) * 8)
    end = loss[-50:].mean()
    assert floor - 0.02 < end < floor + 0.08


def test_program_holds_no_large_constants(compose):
    """Data and parameters are arguments: a closure would be copied into every compile."""
    (group,) = plan(compose("data=stdlib", "data.max_bytes=3000000"))
    programs = group.programs
    inputs = stack_inputs(group.members, programs.program.dtype)
    state = jax.eval_shape(lambda *a: programs.program.init(*a),
                           *jax.tree.map(lambda x: x[0], inputs))  # fmt: skip
    jaxpr = jax.make_jaxpr(programs.program.train_steps)(
        state, *jax.tree.map(lambda x: x[0], inputs), jnp.int32(3), programs.data
    )
    assert sum(np.asarray(c).nbytes for c in jaxpr.consts) < 1 << 20


@pytest.mark.slow
def test_a_thousand_layers_compile_about_as_fast_as_four(compose):
    """One scan over stacked layers: the program does not grow with depth."""

    def seconds(n_layers):
        jax.clear_caches()
        (group,) = plan(compose(f"model.n_layers={n_layers}", "model.d_ff=40"))
        program = group.programs.program
        inputs = jax.tree.map(
            lambda x: x[0], stack_inputs(group.members, program.dtype)
        )
        state = jax.eval_shape(program.init, *inputs)
        began = time.process_time()
        jax.jit(program.init).lower(*inputs).compile()
        jax.jit(program.train_steps).lower(
            state, *inputs, jnp.int32(3), group.programs.data
        ).compile()
        return time.process_time() - began

    jax.config.update("jax_enable_compilation_cache", False)
    try:
        ratios = [seconds(1000) / seconds(4) for _ in range(3)]
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
    assert np.median(ratios) < 1.5
