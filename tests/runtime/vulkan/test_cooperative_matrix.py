"""Matrix units: which GPUs have those that units.slang is written for, and what is launched there.

No device of the tests has any. `pytest -m "gpu or not gpu" tests/runtime/vulkan` computes with those of this machine.
"""

import importlib.util

import numpy as np
import pytest

from tests.cases.scans import ALL
from woolly.runtime import Batch, Options
from woolly.runtime.cpu import CpuBackend
from woolly.runtime.vulkan import cooperative_matrix
from woolly.runtime.vulkan.kernel_archive import SpirvArchive, open_archive
from woolly.runtime.vulkan.physical_device import features_chain

ALL_FEATURES = frozenset(cooperative_matrix.FEATURES)
TILE, OF_BYTES = (16, 16, 16, 0, 0, 1, 1, 0, 3), (16, 16, 32, 3, 3, 5, 5, 0, 3)


class Driver:
    """Answers what is asked about tiles."""

    def __init__(self, *tiles):
        self.tiles = tiles

    def call(self, name, handle, n, found):
        assert name == "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"
        if found is None:
            n._obj.value = len(self.tiles)
            return
        for one, tile in zip(found, self.tiles, strict=False):
            one.numbers[:] = tile


def test_gpu_with_matching_tiles_has_matrix_units():
    assert cooperative_matrix.has_units(Driver(OF_BYTES, TILE), None, ALL_FEATURES, 49152, (32, 32))


@pytest.mark.parametrize(
    ("tiles", "features", "shared", "sizes"),
    [
        ((TILE, OF_BYTES), ALL_FEATURES - {"shaderFloat16"}, 49152, (32, 32)),
        ((TILE, OF_BYTES), ALL_FEATURES, 32768, (32, 32)),
        ((TILE, OF_BYTES), ALL_FEATURES, 49152, (32, 64)),
        ((), ALL_FEATURES, 49152, (32, 32)),
        ((OF_BYTES,), ALL_FEATURES, 49152, (32, 32)),
        ((TILE,), ALL_FEATURES, 49152, (32, 32)),
    ],
)
def test_other_gpus_have_no_matrix_units(tiles, features, shared, sizes):
    assert not cooperative_matrix.has_units(Driver(*tiles), None, features, shared, sizes)


def test_matrix_extension_is_requested_where_available():
    assert len(features_chain(ALL_FEATURES)) == len(features_chain(frozenset())) + 1
    last = features_chain(ALL_FEATURES)[-1]
    assert (last.sType, list(last.bits)) == (1000506000, [1, 0])


def test_archive_has_a_kernel_for_each_type(vulkan):
    names = set(open_archive().names())
    for kernel in ("linear_tiles", "linear_squares", "linear_strips", "linear_slips"):
        assert {name for name in names if name.startswith(kernel)} == {
            f"{kernel}_{one}" for one in cooperative_matrix.TYPES
        }


def test_kernel_is_probed_before_use(opened, monkeypatch):
    """By kernels that every device has, since none of the tests has matrix units."""
    assert cooperative_matrix.is_exact(opened, (("linear_few", (9, 34, 1), 128),))
    other = {name: numbers for name, numbers in cooperative_matrix.TYPES.items() if name == "q6_k"}
    monkeypatch.setattr(cooperative_matrix, "TYPES", other)
    assert not cooperative_matrix.is_exact(opened, (("linear_few", (9, 33, 1), 128),)), "the last rows are not computed"
    assert not cooperative_matrix.is_exact(opened, (("linear_other", (2, 2, 1), 256),)), (
        "a kernel that cannot be opened"
    )


def test_tiles_match_dot_products(opened, compiling, monkeypatch):
    """Units are emulated here, for types of one plane of bytes, of sums with factors, and of two planes."""
    if importlib.util.find_spec("slangpy") is None:
        pytest.skip("slangpy is not there, which compiles kernels that no archive has")
    names, codes = ("q3_k", "q4_k", "q6_k"), {}
    for name in names:
        # Runs of Q6_K that share bytes are 64 columns apart.
        form = ("OUTS=16", "ROWS=16", "HIGH=1", "WIDE=1", f"COLUMNS={128 if name == 'q6_k' else 64}")
        weight = compiling.tiled(name.upper())
        words = (f"-D{one}" for one in (*weight, *form, "EMULATED", "FMA_BY_DOUBLE"))
        code = compiling.Slang().compile(compiling.HERE / "linears" / "tiles.slang", *words)[0]
        codes[f"linear_emulated_{name}"] = compiling.exact(code)
    plain = SpirvArchive.kernel
    monkeypatch.setattr(
        SpirvArchive, "kernel", lambda self, variant, name: codes.get(name) or plain(self, variant, name)
    )
    for name, value in {"_N_OUT": 20, "_N_ROWS": 18, "_COLUMNS": 512}.items():
        monkeypatch.setattr(cooperative_matrix, name, value)
    monkeypatch.setattr(cooperative_matrix, "TYPES", {name: cooperative_matrix.TYPES[name] for name in names})
    assert cooperative_matrix.is_exact(opened, (("linear_emulated", (2, 2, 1), 32),))
    assert not cooperative_matrix.is_exact(opened, (("linear_emulated", (2, 1, 1), 32),)), (
        "the last rows are not computed"
    )


@pytest.mark.parametrize("name", [f"linears-{one.upper()}-40x768" for one in cooperative_matrix.TYPES])
def test_many_rows_match_the_cpu_backend(name, opened, vulkan, tmp_path):
    """With units by tiles of each form, without them by dots: more rows than a group has, and fewer than two have."""
    case = ALL[name]
    with case.open(tmp_path) as file:
        plan, options = case.plan(file), Options(kv_type="f32", threads=1)
        programs = [vulkan.compile(plan, file.tensors, options), CpuBackend().compile(plan, file.tensors, options)]
        launched = {one.kernel for step in programs[0]._core._emitter.launches for one in step}
        for n in (13, 20, 100):
            batch = Batch.of([(np.arange(n) % 48, 0, list(range(4)))], range(n), slots=[(-1, 0)])
            found, wanted = (one.run(batch, one.new_state(4, 2)).copy() for one in programs)
            np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))
    assert any("linear_squares" in one for one in launched) == bool(opened.architecture)
