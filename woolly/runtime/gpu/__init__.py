"""Shared base of the GPU backends: devices, launches, batches, KV cache pages."""

__all__: list[str] = []
