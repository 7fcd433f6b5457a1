"""Tiny towers on a GPU, against the reference: test_towers.py runs some on the emulated one, test_real.py all."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from tests.cases.audio_towers import AUDIO_TOWERS, prepared_audio, write_audio_tower
from tests.cases.towers import TOWERS, encoder_input, write_tower
from woolly.engine.multimodal import open_tower
from woolly.runtime import Options

ERROR = 2e-3  # of a row's norm: weights, rows and powers of scores have 11 bits


def check(name: str, folder: Path) -> None:
    """AssertionError unless rows of a tower are near those of the reference, and the same a step at a time in twos."""
    path = folder / "tower.gguf"
    if name in AUDIO_TOWERS:
        write_audio_tower(AUDIO_TOWERS[name], path)
        inputs = prepared_audio(AUDIO_TOWERS[name], 4000).inputs[:1]
    else:
        write_tower(TOWERS[name], path)
        inputs = (
            encoder_input(min(TOWERS[name].grids, key=math.prod), patch=TOWERS[name].patch),
        )  # an emulated GPU takes seconds for hundreds of rows
    own, exact = (open_tower(path, backend, Options()) for backend in ("cuda", "reference"))
    try:
        assert own.bits.startswith("cuda ") and own.identity != exact.identity
        for one in inputs:
            got, want = own.rows(one), exact.rows(one)
            error = float((np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)).max())
            assert error < ERROR, f"{name}: {error}"
        run = own.start_batch([one, one])
        while (parts := run.advance(1.0)) is None:
            pass
        np.testing.assert_array_equal(parts, np.concatenate([got, got]))
    finally:
        own.close()
        exact.close()


def towers() -> Iterator[tuple[str, Callable[[], None]]]:
    """Every family of images and audio."""
    for name in (*TOWERS, *AUDIO_TOWERS):
        yield f"tower-{name}", partial(_alone, name)


def _alone(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(name, Path(folder))
