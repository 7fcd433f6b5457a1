"""Every op and type of the case table on a device of Vulkan: the bits of the cpu backend, no tolerance."""

import re

import numpy as np
import pytest

from tests.cases.attention import FOUR_BITS, PAIRS, TILED
from tests.cases.compressed_attention import COMPRESSIONS
from tests.cases.indexer import CHOICES
from tests.cases.ops import Case, _both, _linear, _matrix, _tables, run
from tests.cases.running import RUNNING
from tests.cases.scans import ALL
from woolly.errors import UnsupportedError
from woolly.quant import GGMLType
from woolly.runtime import Options
from woolly.runtime.cpu import CpuBackend
from woolly.runtime.vulkan.ops import KERNELS, attention, linears

# Of cases that differ in a number alone, one: the kernels are compiled for each type, and that takes most of the time.
ONE_OF_EACH = list({re.sub(r"-\d[\dx]*", "-0", name): name for name in ALL}.values())
# Scales next to 2^-126, which NVIDIA's driver takes for zero in a fused multiply-add (docs/use/gpus.md).
TINY = "linears-mixed-glu-IQ4_XS-MXFP4-F32-IQ4_XS"


def check(case, vulkan, folder):
    with case.open(folder) as file:
        plan, options = case.plan(file), Options(kv_type=case.kv_type, threads=1)
        found, wanted = (run(case, one.compile(plan, file.tensors, options)) for one in (vulkan, CpuBackend()))
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_case_of_each_kind_matches_the_cpu_backend(name, opened, vulkan, tmp_path, request):
    if name == TINY and opened.physical.driver.startswith("NVIDIA"):
        request.applymarker(pytest.mark.xfail(reason="the driver's fma takes subnormal numbers for zero", strict=False))
    check(ALL[name], vulkan, tmp_path)


def test_4_bit_cache_matches_the_cpu_backend(vulkan, tmp_path):
    check(FOUR_BITS["attend-80-v40-q4"], vulkan, tmp_path)


@pytest.mark.parametrize("name", [*CHOICES, *COMPRESSIONS, *RUNNING])
def test_index_ops_match_the_cpu_backend(name, vulkan, tmp_path):
    check((CHOICES | COMPRESSIONS | RUNNING)[name], vulkan, tmp_path)


@pytest.mark.rare  # compiling kernels for pairs takes half a minute here; Metal's text of them is tried in every run
@pytest.mark.parametrize("name", [*FOUR_BITS, *PAIRS])
def test_every_pair_of_types_matches_the_cpu_backend(name, vulkan, tmp_path):
    check((FOUR_BITS | PAIRS)[name], vulkan, tmp_path)


@pytest.mark.rare
@pytest.mark.parametrize("name", FOUR_BITS)
def test_tiles_over_a_4_bit_cache_match_the_cpu_backend(name, vulkan, tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "_MIN_TILED_ROWS", 16)
    monkeypatch.setattr(attention, "_MIN_SEQUENCE_ROWS", 0)
    check(FOUR_BITS[name], vulkan, tmp_path)


@pytest.mark.rare
@pytest.mark.parametrize("name", [name for name in ALL if name not in ONE_OF_EACH])
def test_every_other_case_matches_the_cpu_backend(name, vulkan, tmp_path):
    check(ALL[name], vulkan, tmp_path)


def test_rows_of_more_blocks_than_a_workgroup_match_the_cpu_backend(vulkan, tmp_path):
    make = _both(_tables(x=8960), _matrix("w", GGMLType.Q4_K, 9, 8960))
    check(Case("linears-wide", "linears", make, _linear, "linears"), vulkan, tmp_path)


@pytest.mark.parametrize("name", TILED)
def test_query_tiles_match_the_cpu_backend(name, vulkan, tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "_MIN_TILED_ROWS", 16)
    monkeypatch.setattr(attention, "_MIN_SEQUENCE_ROWS", 0)
    check(ALL[name], vulkan, tmp_path)


@pytest.mark.parametrize("name", ["Q8_0-96", "Q2_K-512"])
def test_rows_normed_by_one_workgroup_match_the_cpu_backend(name, vulkan, tmp_path, monkeypatch):
    """Batches of more rows than the cases have are normed by one workgroup per row."""
    monkeypatch.setattr(linears, "_MIN_GROUP_ROWS", 2)
    check(ALL[f"linears-norm-{name}"], vulkan, tmp_path)


def test_every_op_of_the_table_has_a_kernel():
    assert {case.op for case in ALL.values()} <= set(KERNELS.emitters)


def test_op_without_a_kernel_is_rejected_by_name(vulkan, tmp_path, monkeypatch):
    case = next(case for case in ALL.values() if case.op == "clamp")
    monkeypatch.delitem(KERNELS.emitters, "clamp")
    with case.open(tmp_path) as file, pytest.raises(UnsupportedError, match="vulkan backend has no kernel for clamp"):
        vulkan.compile(case.plan(file), file.tensors, Options(kv_type=case.kv_type))
