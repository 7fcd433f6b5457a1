"""A tiny model on the emulated GPU: rows, products, attention and recurrence together."""

import numpy as np

from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from tests.runtime.cuda.emulated import EmulatedDevice
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import Batch, Options, choose
from woolly.runtime.cuda.program import CudaBackend

TOKENS = np.random.RandomState(7).randint(0, 264, 12)


def logits(program, *lengths):
    state, parts, before, first = program.new_state(1, 2), [], -1, 0
    for i, n in enumerate(lengths):
        batch = Batch.of([(TOKENS[first : first + n], first, [0])], range(n), slots=[(before, i % 2)])
        parts.append(program.run(batch, state).copy())
        before, first = i % 2, first + n
    return np.concatenate(parts)


def test_a_hybrid_model_gives_the_logits_of_the_reference_and_the_same_bits_in_pieces(tmp_path):
    with open_gguf(write_tiny(FAMILIES["falcon-h1"], tmp_path / "tiny.gguf")) as file:
        plan, options = trace(file), Options(kv_type="f32", max_rows=16)
        program = CudaBackend(EmulatedDevice).compile(plan, file.tensors, options)
        whole = logits(program, 12)
        np.testing.assert_array_equal(logits(program, 8, 1, 1, 2).view(np.uint32), whole.view(np.uint32))
        program.close()
        exact = logits(choose("reference").compile(plan, file.tensors, Options()), 12)
    error = np.linalg.norm(whole - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert error.max() < 8e-5  # as the cpu backend's through slots
