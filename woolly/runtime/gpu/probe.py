"""Arithmetic probe: tests FMA, division, square root, f16 conversion and subnormals of a driver with a kernel.

Results must be bit-identical to the CPU backend. Vulkan allows FMA with two roundings and inexact division, but most
drivers compute both exactly. Metal allows flushing subnormals (below 1.2e-38) to zero.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from woolly.errors import DeviceError
from woolly.runtime.gpu.device import Address, Argument, Device

_N = 4096  # estimated to cover each rounding case
TINY = "numbers next to zero"
OWN_HALVES = "halves by the driver"  # if conversion is not exact, kernels use integer operations
NAMES = ("fused multiply-add", "division", "square root", "product and sum", TINY, "halves", OWN_HALVES)
_N_HALVES = 1 << 16  # all f16 values; converted alone and within a multiply-add
_GROUP = 64


def differences(device: Device) -> list[str]:
    """Return the names of operations that differ from the CPU. The list is empty on most devices."""
    found, wanted = results(device)
    return [name for name, mine, its in zip(NAMES, found, wanted, strict=True) if not np.array_equal(mine, its)]


def refusal(device: Device, wrong: list[str]) -> DeviceError:
    """Return the error for operations that differ."""
    return DeviceError(
        f"{device.name} computes {' and '.join(wrong)} differently from the CPU, so answers would differ",
        code="old_device",
        remedy="use backend='cpu'",
    )


def device_lost_error(name: str, error: DeviceError) -> DeviceError:
    """Return the error for a device lost during the probe. Opening it again may succeed."""
    text = f"{name} failed while its arithmetic was tested: {error.fault}"
    return DeviceError(text, code="refused", remedy="try again, or use backend='cpu'")


def results(device: Device) -> tuple[list[npt.NDArray[np.uint32]], list[npt.NDArray[np.uint32]]]:
    """Return the bits of the results on the device and on the CPU, an array for each of `NAMES`."""
    a, b, c = _numbers()
    sizes = [_N] * (len(NAMES) - 2) + [_N_HALVES, 2 * _N_HALVES]
    at = device.allocate(4 * (3 * _N + sum(sizes)))
    y, halves = Address(at + 4 * 3 * _N), Address(at + 4 * (3 * _N + sum(sizes[:-2])))
    args: tuple[Argument, ...] = (*(Address(at + 4 * _N * i) for i in range(3)), y, halves, _N)
    for i, numbers in enumerate((a, b, c)):
        device.upload(at + 4 * _N * i, numbers)
    device.launch("probe", (_N_HALVES // _GROUP,), _GROUP, 0, args)
    out = np.zeros(sum(sizes), np.float32)
    device.download(y, out)
    device.wait()
    device.free(at)
    found = np.split(out, np.cumsum(sizes)[:-1])
    return [_bits(one) for one in found], [_bits(one) for one in _expected(a, b, c)]


def _bits(x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    """Return the bits of floats with a canonical NaN, because NaN payloads do not matter."""
    return np.where(np.isnan(x), np.float32(np.nan), x).view(np.uint32)


def _numbers() -> tuple[npt.NDArray[np.float32], ...]:
    """Return random a, b, c of many magnitudes. a * b + c often cancels, which reveals double rounding."""
    random = np.random.default_rng(7)
    a, b = (random.standard_normal(_N) * 2.0 ** random.integers(-20, 20, _N) for _ in range(2))
    a, b = a.astype(np.float32), b.astype(np.float32)
    c = -(a * b)
    c[_N // 2 :] = (random.standard_normal(_N // 2) * 2.0 ** random.integers(-20, 20, _N // 2)).astype(np.float32)
    return a, b, c


def _expected(
    a: npt.NDArray[np.float32], b: npt.NDArray[np.float32], c: npt.NDArray[np.float32]
) -> list[npt.NDArray[np.float32]]:
    """Return the results computed on the CPU."""
    halves = np.arange(_N_HALVES, dtype=np.uint16).view(np.float16).astype(np.float32)
    tiny = a * np.float32(2.0**-120) * np.float32(2.0**-20)
    with np.errstate(invalid="ignore"):  # for NaN
        multiplied = (halves.astype(np.float64) * 3 + 2.0**-30).astype(np.float32)  # exact in f64
    own = np.concatenate([halves, multiplied])
    return [_fma(a, b, c), a / b, np.sqrt(np.abs(a)), a * b + c, tiny, halves, own]


def _fma(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32], c: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the fused a * b + c. The f64 sum is rounded to odd, so that rounding to f32 is exact."""
    p, d = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    s = p + d
    t = s - p
    error = (p - (s - t)) + (d - t)
    bits = s.view(np.int64)
    is_even = (error != 0) & (bits & 1 == 0)
    away = (error > 0) == (s > 0)
    bits = np.where(is_even, np.where(away, bits + 1, bits - 1), bits)
    return bits.view(np.float64).astype(np.float32)
