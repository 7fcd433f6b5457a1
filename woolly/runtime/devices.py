"""Parsing of devices such as "cuda:1"."""

from __future__ import annotations

from woolly.errors import RequestError

# GPU backends, which are also the device kinds that a number may follow: cuda:1. "auto" tries the first one first.
GPU_KINDS = ("cuda", "metal", "vulkan")
# Backends with kernels for vision and audio encoders. All of them support injected embeddings.
TOWER_KINDS = ("cuda", "vulkan")

_NUMBERED = ", ".join(f"{kind}:N" for kind in GPU_KINDS)
_FORMS = f"auto, cpu, {', '.join(GPU_KINDS)}, {_NUMBERED} (N from 0), or {GPU_KINDS[0]}:0,1 for several GPUs"


def is_gpu_backend(name: str) -> bool:
    """True if a backend uses GPUs. Only the first word of the name is compared, because a level may follow it."""
    return name.replace("+", " ").split(" ")[0] in GPU_KINDS


def parse_devices(text: str | None) -> tuple[int, ...]:
    """Return the GPU numbers of "auto", "cpu", "cuda", "cuda:N" or "cuda:0,1", in that order, or () for "cpu".

    Other kinds are parsed like "cuda". "auto", None, or a kind without a number selects the first GPU. Numbers count
    the GPUs in CUDA_VISIBLE_DEVICES. If a number is repeated, the GPU is used twice, with separate memory and work.
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
        raise RequestError(f"device is {text!r}; expected {_FORMS}", field="device")
    return tuple(int(number) for number in found)


def backend_for(device: str | None, backend: str = "auto") -> str:
    """Return the backend that a device implies, or `backend`. Raises RequestError if they contradict each other."""
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
