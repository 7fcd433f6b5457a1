"""Samplers, one file each, named as in `SamplingParams.samplers`; see `woolly.sampling.registry`."""

__all__: list[str] = []
