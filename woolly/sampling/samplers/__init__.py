"""One file per sampler, named as `SamplingParams.samplers` names it; `woolly.sampling.registry` finds them."""

__all__: list[str] = []
