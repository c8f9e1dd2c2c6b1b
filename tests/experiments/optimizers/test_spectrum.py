"""Singular values of first updates, and what the check notices."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from blocks.parameters import ParamSpec
from experiments.optimizers import spectrum
from experiments.optimizers.adamw import AdamW
from experiments.optimizers.muon import Muon
from experiments.optimizers.newton_schulz import Polynomials
from experiments.optimizers.normuon import NorMuon
from experiments.optimizers.scale_by_muon import SCALES
from experiments.optimizers.spectral_cap import CappedMuon
from experiments.optimizers.spectrum import first_update_spectrum

SPECS = {
    "q": ParamSpec("matrix", (12, 64, 64), 1),
    "up": ParamSpec("matrix", (12, 128, 512), 1),
    "down": ParamSpec("matrix", (12, 512, 128), 1),
    "experts": ParamSpec("matrix", (12, 4, 64, 64), 2),
    "gain": ParamSpec("gain", (12, 64), 1),
    "embedding": ParamSpec("embedding", (256, 64)),
}

# The reference quintic, five steps in float64, of default_rng(0).standard_normal: what
# 64 x 64 and 128 x 512 give, to two digits.
SQUARE, WIDE = (0.57, 1.20), (0.68, 1.13)


@pytest.mark.parametrize("scale", SCALES)
def test_muon_has_the_values_of_its_polynomials_whatever_the_scale(scale):
    found = first_update_spectrum(Muon(scale=scale), SPECS)
    assert found.keys() == {"q", "up", "down", "experts"}
    for path, expected in {"q": SQUARE, "experts": SQUARE, "up": WIDE}.items():
        np.testing.assert_allclose(found[path], expected, atol=0.005)
    assert 0.5 < found["down"][0] < found["down"][1] < 1.25
    assert all(isinstance(x, float) for pair in found.values() for x in pair)


def test_a_polynomial_that_converges_gives_one():
    # Polynomials of arXiv 2505.16932 would need eight steps; these twelve are enough.
    twelve = Polynomials(a=(2.0,), b=(-1.5,), c=(0.5,), steps=12)
    found = first_update_spectrum(Muon(iteration=twelve), {"up": SPECS["up"]})
    np.testing.assert_allclose(found["up"], (1, 1), atol=1e-5)


def test_what_happens_behind_the_rule_is_left_out():
    changed = CappedMuon(cap=1e-3, learning_rate=0.0, weight_decay=7.0, clip_norm=1e-9)
    plain = first_update_spectrum(Muon(), {"q": SPECS["q"]})
    assert first_update_spectrum(changed, {"q": SPECS["q"]}) == plain


@pytest.mark.parametrize("optimizer", [AdamW(), NorMuon()])
def test_who_promises_nothing_is_not_measured(optimizer):
    assert first_update_spectrum(optimizer, SPECS) == {}


def test_plain_momentum_in_the_place_of_muon_is_noticed():
    class Silent(Muon):
        def matrix_rule(self, number):
            return optax.trace(number(self.momentum), nesterov=True)

    low, high = first_update_spectrum(Silent(), SPECS)["up"]
    assert low > 1.5
    assert high > 20


def test_kernels_that_go_to_adam_are_missing():
    class Misrouted(Muon):
        def groups(self, specs):
            return {path: "adam" if path == "q" else "muon" for path in specs}

    kernels = {path: SPECS[path] for path in ("q", "up")}
    assert first_update_spectrum(Misrouted(), kernels).keys() == {"up"}


def test_a_gain_that_goes_to_muon_is_refused():
    class ByRank(Muon):
        def groups(self, specs):
            return {
                p: "muon" if len(s.shape) == 2 else "adam" for p, s in specs.items()
            }

    with pytest.raises(ValueError, match="expected a kernel"):
        first_update_spectrum(ByRank(), SPECS)


def test_equal_shapes_share_one_decomposition(monkeypatch):
    shapes = []
    svd = np.linalg.svd

    def counted(x, **keywords):
        shapes.append(x.shape)
        return svd(x, **keywords)

    monkeypatch.setattr(spectrum.np.linalg, "svd", counted)
    first_update_spectrum(Muon(), SPECS)
    assert sorted(shapes) == [(64, 64), (128, 512), (512, 128)]


def test_float64_on_or_off_the_numbers_are_the_same(x64):
    tight = Muon(momentum=jnp.float64(0.9))
    found = first_update_spectrum(tight, {"q": SPECS["q"]})
    np.testing.assert_allclose(found["q"], SQUARE, atol=0.005)
