# ruff: noqa: N802, N815 - functions have the names of the library
"""A stand-in for libcuda: functions that succeed, or do what a test says."""

import ctypes
from collections import Counter

ATTRIBUTES = {75: 9, 76: 0, 16: 132, 97: 232448, 36: 3_201_000, 37: 6144}
TEXTS = {700: (b"CUDA_ERROR_ILLEGAL_ADDRESS", b"an illegal memory access was encountered")}


class Function:
    """Takes argtypes and restype as a function of ctypes does."""

    def __init__(self, call):
        self.call = call

    def __call__(self, *arguments):
        return self.call(*arguments)


class FakeLibrary:
    """Counts calls. `results` has codes by name; memory is that of the host, so that copies are real."""

    def __init__(self, version=12_090, n_devices=1, n_bytes=1 << 30):
        self.version, self.n_devices, self.n_bytes = version, n_devices, n_bytes
        self.calls = Counter()
        self.results = {}
        self.kept = {}
        self.pinned = set()
        self.launched = []
        self.missing = set()

    def __getattr__(self, name):
        if not name.startswith("cu") or name in self.missing:
            raise AttributeError(name)

        def call(*arguments):
            self.calls[name] += 1
            code = self.results.get(name, 0)
            code = code(*arguments) if callable(code) else code
            if code:
                return code
            return getattr(self, "_" + name.removesuffix("_v2"), lambda *_: 0)(*arguments) or 0

        return Function(call)

    def _cuDriverGetVersion(self, out):
        out._obj.value = self.version

    def _cuDeviceGetCount(self, out):
        out._obj.value = self.n_devices

    def _cuDeviceGetName(self, out, size, device):
        out.value = b"NVIDIA Fake"

    def _cuDeviceGetAttribute(self, out, number, device):
        out._obj.value = ATTRIBUTES[number]

    def _cuGetErrorName(self, code, out):
        out._obj.value = TEXTS.get(code, (b"CUDA_ERROR_UNKNOWN", b""))[0]

    def _cuGetErrorString(self, code, out):
        out._obj.value = TEXTS.get(code, (b"", b"unknown error"))[1]

    def _handle(self, out, *_):
        out._obj.value = len(self.calls) + sum(self.calls.values())

    _cuDevicePrimaryCtxRetain = _cuStreamCreate = _cuEventCreate = _cuModuleLoadData = _cuGraphInstantiateWithFlags = (
        _handle
    )

    def _cuStreamEndCapture(self, stream, out):
        self._handle(out)

    def _cuModuleGetFunction(self, out, module, name):
        out._obj.value = 1000 + len(name)

    def _cuMemGetInfo(self, free, total):
        free._obj.value, total._obj.value = self.n_bytes, 2 * self.n_bytes

    def _cuMemAlloc(self, out, n_bytes):
        if n_bytes > self.n_bytes:
            return 2
        memory = ctypes.create_string_buffer(n_bytes)
        out._obj.value = ctypes.addressof(memory)
        self.kept[out._obj.value] = memory
        return 0

    def _cuMemHostRegister(self, place, n_bytes, flags):
        assert place % 4096 == 0 and n_bytes % 4096 == 0 and place not in self.pinned
        self.pinned.add(place)

    def _cuMemHostUnregister(self, place):
        self.pinned.remove(place)

    def _cuDeviceTotalMem(self, out, device):
        out._obj.value = 2 * self.n_bytes

    def _cuMemFree(self, place):
        del self.kept[place]

    def _cuMemcpyHtoDAsync(self, to, source, n_bytes, stream):
        ctypes.memmove(to, source, n_bytes)

    def _cuMemcpyDtoHAsync(self, to, source, n_bytes, stream):
        ctypes.memmove(to, source, n_bytes)

    def _cuLaunchKernel(self, function, x, y, z, bx, by, bz, shared, stream, args, extra):
        self.launched.append(((x, y, z), bx, shared))
        if args is not None and len(args) == 3:
            kinds = (ctypes.c_uint64, ctypes.c_int32, ctypes.c_float)
            self.launched[-1] += tuple(
                ctypes.cast(place, ctypes.POINTER(kind))[0] for place, kind in zip(args, kinds, strict=True)
            )

    def _cuLaunchKernelEx(self, config, function, args, extra):
        c = config._obj
        self._cuLaunchKernel(function, c.x, c.y, c.z, c.threads_x, 1, 1, c.shared, c.stream, args, extra)
        self.launched[-1] += ("early",) * (c.n_attributes == 1 and c.attributes[0].id == 6 and c.attributes[0].value)

    def _cuEventElapsedTime(self, out, before, after):
        out._obj.value = 0.25
