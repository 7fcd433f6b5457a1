"""Ops over slots on the emulated GPU: some of each; cases.py runs all."""

import numpy as np
import pytest

from tests.cases.ops import N_TOKENS, Case, _tables
from tests.cases.scans import ALL
from tests.runtime.cuda.cases import check
from tests.runtime.cuda.emulated import EmulatedDevice
from tests.runtime.cuda.harness import CaseProgram
from woolly.errors import UnsupportedError
from woolly.plan.passes import fuse
from woolly.runtime import Batch

NAMES = (
    *(
        "causal_conv1d-5x2-silu",
        "causal_conv1d-33x4-none",
        "causal_conv1d-axes-of-1",
        "token_shift-3-3",
        "delta_net-2-4-16x16-div-head",
    ),
    *("delta_net-1-3-17x33-mod-key", "delta_net-1-2-128x128-mod-head", "scan_mamba-5x3", "scan_mamba-100x16"),
    *(
        "scan_mamba2-2-3x5",
        "scan_mamba2-3-17x33",
        "scan_mamba2-2-128x64",
        "wkv7-34x17",
        "wkv7-128x64",
        "lightning_attention-34x17",
    ),
)
ONES = (
    "causal_conv1d-33x4-silu",
    "token_shift-3-3",
    "delta_net-1-3-17x33-mod-key",
    "scan_mamba-5x3",
    "scan_mamba2-3-17x33",
)


@pytest.mark.parametrize("name", NAMES)
def test_case_is_within_its_bound_of_the_reference(name, tmp_path):
    check(name, tmp_path)


def left(program, state, slot):
    """State that a run left in a slot of the first entry."""
    _, numbers = state.sizes[0]
    out = np.empty(numbers, np.float32)
    program.device.download(state.addresses[0] + 4 * numbers * slot, out)
    return out


@pytest.mark.parametrize("name", [*ONES, "wkv7-34x17", "lightning_attention-34x17"])
def test_rows_and_states_have_the_same_bits_in_chunks_and_batches(name, tmp_path):
    case = ALL[name]
    tokens = np.random.default_rng(4).integers(0, N_TOKENS, 60)
    with case.open(tmp_path) as file:
        device = EmulatedDevice()
        program = CaseProgram(device, fuse(case.plan(file)), file.tensors)
        state = program.new_state(8, 40)
        whole = program.run(Batch.of([(tokens[:11], 0, [0])], slots=[(-1, 0)], snapshots=[(0, 1), (6, 2)]), state)
        # The same sequence in two pieces, the second beside 17 others: more than have blocks of their own.
        first = program.run(Batch.of([(tokens[:7], 0, [0])], slots=[(-1, 3)]), state)
        np.testing.assert_array_equal(left(program, state, 2), left(program, state, 3))
        np.testing.assert_array_equal(first, whole[:7])
        others = [(tokens[20 + i : 22 + i], 0, [1]) for i in range(17)]
        slots = [(-1, 10 + i) for i in range(17)]
        both = Batch.of([*others, (tokens[7:11], 7, [0])], range(34, 38), slots=[*slots, (3, 4)], snapshots=[(34, 5)])
        np.testing.assert_array_equal(program.run(both, state)[34:], whole[7:])
        np.testing.assert_array_equal(left(program, state, 4), left(program, state, 0))
        one = program.run(Batch.of([(tokens[:1], 0, [0])], slots=[(-1, 6)]), state)
        np.testing.assert_array_equal(one, whole[:1])
        np.testing.assert_array_equal(left(program, state, 6), left(program, state, 1))
        third = program.run(Batch.of([(tokens[7:8], 7, [0])], slots=[(3, 7)]), state)
        np.testing.assert_array_equal(third, whole[7:8])
        np.testing.assert_array_equal(left(program, state, 7), left(program, state, 5))
        device.close()


def test_states_with_too_many_keys_are_rejected(tmp_path):
    light = lambda p: p.lightning_attention(*(p.embed(x) for x in "qkv"), head=300, slope=1.0)  # noqa: E731
    case = Case("wide", "lightning_attention", _tables(q=300, k=300, v=300), light, "scan")
    with case.open(tmp_path) as file, pytest.raises(UnsupportedError, match=r"states of 300 keys; .* up to 256"):
        CaseProgram(EmulatedDevice(), fuse(case.plan(file)), file.tensors)
