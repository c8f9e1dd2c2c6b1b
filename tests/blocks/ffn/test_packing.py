"""Gate and up in one array."""

import numpy as np
import pytest

from blocks.ffn.packing import PACKINGS, pack, unpack


def test_places():
    packed = np.arange(12).reshape(2, 6)
    gate, up = unpack(packed, "concatenated")
    np.testing.assert_array_equal((gate[0], up[0]), ([0, 1, 2], [3, 4, 5]))
    gate, up = unpack(packed, "interleaved")
    np.testing.assert_array_equal((gate[1], up[1]), ([6, 8, 10], [7, 9, 11]))


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("shape", [(6,), (2, 6), (3, 2, 6)])
def test_pack_undoes_unpack(packing, shape):
    packed = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    np.testing.assert_array_equal(pack(*unpack(packed, packing), packing), packed)


def test_others_are_refused():
    with pytest.raises(ValueError, match="packing must be one of .*'rows'"):
        unpack(np.zeros(4), "rows")
    with pytest.raises(ValueError, match="packing must be one of .*'rows'"):
        pack(np.zeros(4), np.zeros(4), "rows")
    with pytest.raises(ValueError, match="even last axis.*5"):
        unpack(np.zeros(5), "interleaved")
