"""The data of the float64 test vectors, and the way they are compared."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.flax import load_file

GOLDEN = Path(__file__).parents[2] / "golden"

ROWS = {
    "A": np.array([2.0, -1.0, 3.0, 0.0]),
    "B": np.array([2.0, 4.0, 6.0, 8.0]),
    "C": np.array([2.0, -1.0, 3.0, 0.0]) * 1e3,
    "D": np.array([2.0, -1.0, 3.0, 0.0]) * 1e-4,
}
GAIN = (1.5, 0.5, -1.0, 2.0)
BIAS = (0.1, -0.2, 0.3, 0.0)
UPSTREAM = (1.0, -2.0, 0.5, 3.0)


@pytest.fixture(scope="session")
def norm_vectors():
    """tests/golden/norm_vectors.json: vectors computed with 60-digit arithmetic."""
    return json.loads((GOLDEN / "norm_vectors.json").read_text())


@pytest.fixture(params=["float64", "float32"])
def check_vectors(request):
    """check_vectors(norm, {"A": {"y": ..., "dx": ..., "gain": ...}, ...}, alpha=...).

    Keywords set parameters; gain and bias, where they exist and are not given, are GAIN
    and BIAS. A row gives the output, the gradient in x of sum(UPSTREAM * y), and
    gradients in parameters under their names. The expected numbers have nine digits.
    """
    dtype = request.param
    # Half a unit of the ninth digit is 5e-9 of a number that begins with 1.
    tolerance = {"float64": 5.1e-9, "float32": 1e-5}[dtype]

    def check(norm, vectors, **parameters):
        for name, value in {"gain": GAIN, "bias": BIAS, **parameters}.items():
            if getattr(norm, name, None) is not None:
                getattr(norm, name).set_value(jnp.asarray(value, dtype))
        graphdef, params = nnx.split(norm, nnx.Param)
        for row, expected in vectors.items():
            y, pull = jax.vjp(
                lambda p, x: nnx.merge(graphdef, p)(x),
                params,
                jnp.asarray(ROWS[row], dtype),
            )
            assert y.dtype == dtype
            d_params, dx = pull(jnp.asarray(UPSTREAM, dtype))
            for name, want in expected.items():
                got = {"y": y, "dx": dx}.get(name)
                got = d_params[name][...] if got is None else got
                np.testing.assert_allclose(
                    got,
                    want,
                    rtol=tolerance,
                    atol=tolerance * np.abs(want).max() + 1e-30,
                    err_msg=f"{row} {name}",
                )

    with jax.enable_x64(dtype == "float64"):
        yield check


@pytest.fixture(scope="session")
def golden_norms():
    """golden_norms("rms_llama/fp32/normal") -> {"in.x": ..., "out": ..., "dy": ...}."""
    arrays = load_file(GOLDEN / "units_norms.safetensors")

    def case(name):
        prefix = f"{name}/"
        found = {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}
        assert found, f"no case {name} in units_norms.safetensors"
        return found

    return case


@pytest.fixture
def check_golden(golden_norms, assert_within, half_tolerance):
    """check_golden(norm, case): output, and gradients in x and in the parameters.

    The output keeps the dtype of x; where the reference returns a wider one, it is
    compared with the same tolerance. bit_equal asks for the very numbers of the output.
    """

    def check(norm, case, bit_equal=False):
        arrays = golden_norms(case)
        fraction = half_tolerance[case.split("/")[1]]
        names = {"weight": "gain", "bias": "bias"}
        for theirs, ours in names.items():
            if f"in.{theirs}" in arrays:
                weight = arrays[f"in.{theirs}"].astype(jnp.float32)
                getattr(norm, ours).set_value(weight)
        graphdef, params = nnx.split(norm, nnx.Param)
        x, wanted = arrays["in.x"], arrays["out"]
        y, pull = jax.vjp(lambda p, x: nnx.merge(graphdef, p)(x), params, x)
        d_params, dx = pull(arrays["dy"].astype(y.dtype))
        assert y.dtype == x.dtype
        assert_within(y, wanted, fraction, f"{case} out")
        if bit_equal:
            np.testing.assert_array_equal(y, wanted, err_msg=case)
        assert_within(dx, arrays["grad.x"], fraction, f"{case} grad.x")
        for theirs, ours in names.items():
            if f"grad.{theirs}" in arrays:
                got = d_params[ours][...]
                assert_within(got, arrays[f"grad.{theirs}"], fraction, f"{case} {ours}")

    return check
