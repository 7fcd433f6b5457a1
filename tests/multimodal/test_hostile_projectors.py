"""Projector files whose keys claim huge sizes: each is rejected before anything of that size is computed."""

import itertools
import time
import tracemalloc

import pytest

from tests.cases.audio_towers import AUDIO_TOWERS, write_audio_tower
from tests.cases.towers import TOWERS, write_tower
from woolly.errors import ModelError, WoollyError
from woolly.gguf import open_gguf
from woolly.multimodal.encoder import trace_towers

HUGE = (2**27, 2**31 - 1, 65_536)
MAX_BYTES = 50e6
MAX_SECONDS = 10.0  # of the processor; a sound file takes milliseconds


def sizes_of(path):
    with open_gguf(path) as file:
        values = {key: file.metadata[key] for key in file.metadata if key.startswith("clip.")}
    return [key for key, value in values.items() if type(value) is int]


@pytest.mark.parametrize("name", [*TOWERS, *(f"audio {name}" for name in AUDIO_TOWERS)])
def test_huge_sizes_cost_nothing(tmp_path, name):
    path = tmp_path / "projector.gguf"
    if name in TOWERS:
        write_tower(TOWERS[name], path)
    else:
        write_audio_tower(AUDIO_TOWERS[name.removeprefix("audio ")], path)
    n_rejected = 0
    for key, value in itertools.product(sizes_of(path), HUGE):
        with open_gguf(path) as file:
            file.overlay({key: value})
            tracemalloc.start()
            begin = time.process_time()
            try:
                trace_towers(file)
            except WoollyError as error:
                n_rejected += 1
                assert "\n" not in str(error)
            finally:
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
            assert peak < MAX_BYTES, (key, value)
            assert time.process_time() - begin < MAX_SECONDS, (key, value)
    assert n_rejected >= len(HUGE) or name == "audio gemma4ua"  # which has no encoder, and reads no sizes


def test_width_without_a_tensor_is_named(tmp_path):
    path = write_tower(TOWERS["gemma4"], tmp_path / "projector.gguf")
    for key, problem in (
        ("embedding_length", "no tensor of the file has a dimension of that size"),
        ("patch_size", "no tensor of the file holds a whole patch"),
    ):
        with open_gguf(path) as file, pytest.raises(ModelError, match=problem):
            file.overlay({f"clip.vision.{key}": 2**27})
            trace_towers(file)
