"""The codebooks that native code makes from bitmaps are those of the gguf package."""

import numpy as np
import pytest
from gguf import quants

from woolly import _native


@pytest.mark.parametrize("name", _native.codebooks())
def test_codebook_points_match_ggml(name: str):
    peer = quants.IQ1_S if name == "IQ1" else getattr(quants, name)
    peer.init_grid()
    expected = peer.grid.reshape(peer.grid_shape) * (8 if name == "IQ1" else 1)
    points = np.frombuffer(_native.codebooks()[name], np.int8).reshape(peer.grid_shape)
    np.testing.assert_array_equal(points, expected)
