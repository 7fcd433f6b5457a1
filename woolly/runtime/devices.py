"""Parsing of devices such as "cuda:1"."""

from __future__ import annotations

from woolly.errors import RequestError

# Backends of GPUs, which are also the kinds of devices that a number may follow: cuda:1. The first is that of "auto".
GPU_KINDS = ("cuda", "metal", "vulkan")
# Backends with kernels for vision and audio encoders. All of them support injected embeddings.
TOWER_KINDS = ("cuda", "vulkan")

_NUMBERED = ", ".join(f"{kind}:N" for kind in GPU_KINDS)
_FORMS = f"auto, cpu, {', '.join(GPU_KINDS)}, {_NUMBERED} (N from 0), or {GPU_KINDS[0]}:0,1 for several GPUs"


def is_gpu_backend(name: str) -> bool:
    """True if a backend computes on GPUs. For several parts or a name with a level, the first word counts."""
    return name.replace("+", " ").split(" ")[0] in GPU_KINDS


def parse_devices(text: str | None) -> tuple[int, ...]:
    """Numbers of the GPUs of "auto", "cpu", "cuda", "cuda:N" or "cuda:0,1", in that order; none of "cpu".

    Other kinds as "cuda". "auto", a kind and None mean the first GPU. Numbers count the GPUs that
    CUDA_VISIBLE_DEVICES leaves. A repeated number is a GPU used twice, each time with memory and work of its own.
    """
    form = "auto" if text is None else text.strip().lower() if isinstance(text, str) else ""
    if form == "cpu":
        return ()
    if form == "auto" or form in GPU_KINDS:
        return (0,)
    kind, _, numbers = form.partition(":")
    # "cuda:0,cuda:1" equals "cuda:0,1".
    found = [number.strip().removeprefix(f"{kind}:") for number in numbers.split(",")]
    if kind not in GPU_KINDS or not all(number.isascii() and number.isdigit() and len(number) < 4 for number in found):
        raise RequestError(f"device is {text!r}; {_FORMS} were expected", field="device")
    return tuple(int(number) for number in found)


def backend_for(device: str | None, backend: str = "auto") -> str:
    """The backend that a device asks for, or `backend`; RequestError if they contradict each other."""
    if device is None or device.strip().lower() == "auto":
        return backend
    wanted = device.strip().lower().partition(":")[0] if parse_devices(device) else "cpu"
    if backend not in ("auto", wanted):
        raise RequestError(
            f"device is {device!r}, but backend is {backend!r}; leave one of them out",
            field="device",
            names=("device", "backend"),
        )
    return wanted
