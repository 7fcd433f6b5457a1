"""Tiles: what openers make of packed blocks is what the blocks mean."""

from pathlib import Path

import numpy as np
import pytest

from tests.cases.weights import QUANTIZED, TYPES, Raw, random_weight
from tests.runtime.cuda.emulated import EmulatedDevice, source
from woolly import _native
from woolly.errors import UnsupportedError
from woolly.plan import Weight
from woolly.quant import GGMLType, dequantize
from woolly.runtime.cuda.weight_tiles import can_pack, kind_of, packed_bytes, tile_bytes, tiles_of
from woolly.runtime.gpu.device import Address

PACKED = [type for type in TYPES if type != GGMLType.F32]
# Halves have 11 bits. What is made of a scale and a minimum, both rounded, is as exact as the larger of the two.
HALF = 2.0**-11


class Loader:
    """Subset of an Emitter that tiles_of needs. Tensors are filled in as by the loader, in chunks of rows."""

    def __init__(self, device, tensors, chunk):
        self.device, self.tensors, self.chunk = device, tensors, chunk

    def array(self, key, n_bytes, make, is_first=False):
        address = self.device.allocate(n_bytes)
        self.device.upload(address, make())
        return address

    def weight(self, key, n_bytes, *parts):
        address = self.device.allocate(n_bytes)
        for part in parts:
            rows = self.tensors[part.name]
            step = self.chunk * part.rows
            for first in range(0, len(rows), step):
                staged = self.device.allocate(rows[first : first + step].nbytes)
                self.device.upload(staged, np.ascontiguousarray(rows[first : first + step]))
                part.pack(self.device, address, staged, first, len(rows[first : first + step]))
                self.device.free(staged)
        return address


@pytest.fixture(scope="module")
def device():
    device = EmulatedDevice(source("pack"), Path(__file__).parent / "unpack.cu")
    yield device
    device.close()


def opened(device, *raws: Raw, chunk=1 << 20):
    """The matrices of tiles of one weight, or of two in pairs: [matrices][packed rows][padded columns], and factors."""
    shape = raws[0].shape
    weights = [Weight(f"w{i}", raw.type, raw.shape) for i, raw in enumerate(raws)]
    rows = {f"w{i}": raw.data.reshape(-1, raw.type.row_bytes(shape[-1])) for i, raw in enumerate(raws)}
    tiles = tiles_of(Loader(device, rows, chunk), *weights)
    assert tiles.n_matrices == (shape[0] if len(shape) == 3 else 1)
    if len(raws) == 1:
        assert packed_bytes(weights[0]) == tiles.n_bytes
    values = np.empty((tiles.n_matrices, 16 * tiles.n_panels, 256 * tiles.n_tiles), np.float32)
    factors = np.empty((tiles.n_matrices, 16 * tiles.n_panels, 1), np.float32)
    out = device.allocate(values[0].nbytes)
    for i in range(tiles.n_matrices):
        at = Address(tiles.address + i * tiles.stride)
        device.launch(f"unpack_{tiles.kind}", (tiles.n_panels * tiles.n_tiles,), 32, 0, (at, tiles.n_tiles, out))
        device.download(out, values[i])
        device.download(tiles.factors + i * tiles.stride, factors[i])
    device.free(out)
    device.free(tiles.address)
    return values, factors


def assert_close(values, exact, parts):
    """Within one rounding of each part (scale times quant, minimum), and of what is 2^-16 of the row's largest."""
    largest = parts.max(axis=-1, keepdims=True)
    assert np.isfinite(values).all()
    worst = np.abs(values.astype(np.float64) - exact) - 2.1 * HALF * parts - largest * 2.0**-16
    assert worst.max() <= 0, float((np.abs(values - exact) / np.maximum(parts, 1e-300)).max())


def magnitudes(raw: Raw):
    """|scale part| + |minimum part| of each weight."""
    plain = np.abs(raw.values().astype(np.float64))
    if raw.type.name not in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"):
        return plain
    at = {"Q4_1": 2, "Q5_1": 2, "Q2_K": 82, "Q4_K": 2, "Q5_K": 2}[raw.type.name]
    blocks = raw.data.copy().reshape(-1, raw.type.type_size)
    blocks[:, at : at + 2] = 0
    scaled = dequantize(blocks.reshape(raw.data.shape), raw.type).reshape(raw.shape).astype(np.float64)
    return np.abs(scaled) + np.abs(scaled - raw.values()) + plain


@pytest.mark.parametrize("type", PACKED, ids=lambda type: type.name)
@pytest.mark.parametrize("rows", [16, 37])
def test_unpacked_tiles_equal_the_weights(device, type, rows):
    columns = 512 if type.block_size > 64 else 256 + 96 if type.block_size <= 32 else 256 + 128
    raw = random_weight(np.random.default_rng(rows), type, rows, columns)
    values, factors = opened(device, raw)
    weights = (values * factors)[0]
    assert not weights[rows:].any()
    assert not weights[:, columns:].any()
    assert_close(weights[:rows, :columns], raw.values(), magnitudes(raw))
    mantissas, _ = np.frexp(factors)
    assert (mantissas == 0.5).all()


def _with_scales(type, rng, rows, make):
    """Random blocks whose float scales (and minima) are what `make` gives for each block."""
    columns = 8 * max(type.block_size, 32)
    raw = random_weight(rng, type, rows, columns)
    blocks = raw.data.reshape(rows, -1, type.type_size)
    places = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,)}.get(type.name, (0,))
    if type.name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K"):
        places = (0, 2)
    if type == GGMLType.IQ1_M:
        bits = make(blocks.shape[:2]).astype("<f2").view(np.uint16)
        for i in range(4):
            blocks[..., 49 + 2 * i] = blocks[..., 49 + 2 * i] & 15 | (bits >> 4 * i & 15) << 4
        return raw
    for at in places:
        blocks[..., at : at + 2] = make(blocks.shape[:2]).astype("<f2")[..., None].view(np.uint8)
    return raw


HALF_SCALES = [type for type in QUANTIZED if type.name not in ("MXFP4", "NVFP4")]


@pytest.mark.parametrize("type", HALF_SCALES, ids=lambda type: type.name)
def test_scales_of_any_size_keep_their_weights(device, type):
    rng = np.random.default_rng(3)
    sizes = np.array([65504.0, 1.0, 2.0**-14, 2.0**-24, 2.0**-20, 300.0, 1e-3, 0.0])[:, None]
    signs = rng.choice([-1, 1], (8, 8))
    raw = _with_scales(type, rng, 8, lambda shape: sizes * signs)
    values, factors = opened(device, raw)
    assert_close((values * factors)[0, :8, : raw.shape[1]], raw.values(), magnitudes(raw))


@pytest.mark.parametrize("type", HALF_SCALES, ids=lambda type: type.name)
def test_small_blocks_next_to_large_ones_keep_their_weights(device, type):
    rng = np.random.default_rng(4)
    raw = _with_scales(type, rng, 16, lambda shape: 2.0 ** -rng.uniform(0, 16, shape))
    values, factors = opened(device, raw)
    assert_close((values * factors)[0, :, : raw.shape[1]], raw.values(), magnitudes(raw))


def test_exponents_of_any_size_keep_their_weights(device):
    rng = np.random.default_rng(5)
    raw = random_weight(rng, GGMLType.MXFP4, 16, 256)
    blocks = raw.data.reshape(16, 8, 17)
    blocks[..., 0] = np.minimum(np.arange(16)[:, None] * 17 + rng.integers(0, 12, (16, 8)), 250)
    values, factors = opened(device, raw)
    np.testing.assert_array_equal(values[0].astype(np.float64) * factors[0], raw.values())


def test_bf16_of_any_size_is_exact(device):
    rng = np.random.default_rng(6)
    sizes = 2.0 ** np.array([120, 40, 0, -40, -100, -120, 15, -14])[:, None]
    exact = (sizes * rng.standard_normal((8, 256))).astype(np.float32).view(np.uint32) & 0xFFFF0000
    raw = Raw(GGMLType.BF16, (8, 256), (exact >> 16).astype("<u2").view(np.uint8))
    values, factors = opened(device, raw)
    np.testing.assert_array_equal(values[0, :8] * factors[0, :8], exact.view(np.float32))


def test_f16_weights_are_unchanged(device):
    bits = np.arange(16 * 4096, dtype="<u2").reshape(16, 4096)
    bits[(bits & 0x7C00) == 0x7C00] = 0
    values, factors = opened(device, Raw(GGMLType.F16, (16, 4096), bits.view(np.uint8)))
    assert (factors == 1).all()
    np.testing.assert_array_equal(values[0], bits.view("<f2").astype(np.float32))


@pytest.mark.parametrize("type", PACKED, ids=lambda type: type.name)
def test_rows_of_two_weights_are_paired(device, type):
    rng = np.random.default_rng(7)
    raws = [random_weight(rng, type, 19, 256) for _ in range(2)]
    values, factors = opened(device, *raws, chunk=1)
    paired = (values * factors)[0].reshape(3, 2, 8, 256)
    for i, raw in enumerate(raws):
        alone, powers = opened(device, raw)
        np.testing.assert_array_equal(paired[:, i].reshape(24, 256), (alone * powers)[0, :24])


@pytest.mark.parametrize("rows", [32, 21])
@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_experts_are_matrices_at_a_stride(device, rows, chunk):
    rng = np.random.default_rng(8)
    each = [random_weight(rng, GGMLType.Q4_K, rows, 256) for _ in range(3)]
    experts = Raw(GGMLType.Q4_K, (3, rows, 256), np.stack([raw.data for raw in each]))
    values, factors = opened(device, experts, chunk=chunk)
    for i, raw in enumerate(each):
        alone, powers = opened(device, raw)
        np.testing.assert_array_equal(values[i] * factors[i], (alone * powers)[0])


def test_sizes_match_the_kernels(device):
    out = device.allocate(4)
    for type in PACKED:
        size = np.zeros(1, np.int32)
        device.launch(f"size_{kind_of(type)}", (1,), 1, 0, (out,))
        device.download(out, size)
        assert size[0] == tile_bytes(type), type.name
    device.free(out)


def test_every_cpu_type_can_be_packed():
    assert {GGMLType[name] for name in _native.types()} == {type for type in GGMLType if can_pack(type)} | {
        GGMLType.F32
    }
    with pytest.raises(UnsupportedError, match="does not compute with I8 matrices"):
        kind_of(GGMLType.I8)
