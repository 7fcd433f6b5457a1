"""What GPUs have in common: devices, launches, batches, pages."""

__all__: list[str] = []
