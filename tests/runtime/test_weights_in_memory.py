"""Weights that were computed, not read from a file: packing them must not give their memory back."""

from dataclasses import replace

import numpy as np

from tests.cases.tiny import TINY, write_tiny
from woolly.gguf import MemoryMap, Tensor, open_gguf
from woolly.models import trace
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options, get_backend

WIDE = replace(TINY["llama"], width=256, ffn=512, head_dim=64, n_layers=1, type=GGMLType.F32)


def test_in_memory_matrix_survives_packing(tmp_path):
    with open_gguf(write_tiny(WIDE, tmp_path / "wide.gguf")) as file:
        own = file.tensors["blk.0.ffn_up.weight"]
        array = np.array(own.data)
        before = array.copy()
        tensors = {**file.tensors, own.name: Tensor(own.name, own.type, own.shape, 0, MemoryMap(own.name, array))}
        program = get_backend("cpu").compile(trace(file), tensors, Options(threads=1))
        program.run(Batch.of([([5, 6, 7], 0, range(1))]), program.new_state(1))
        program.close()
        np.testing.assert_array_equal(array, before)
