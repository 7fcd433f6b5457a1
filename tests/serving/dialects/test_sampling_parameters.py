"""Requests are laid over the sampling defaults of the server."""

import pytest

from woolly import SamplingParams
from woolly.serving.dialects.sampling_parameters import Sampling
from woolly.serving.observability.logs import ignored


@pytest.fixture
def noted():
    token = ignored.set([])
    yield ignored.get()
    ignored.reset(token)


def test_structure_of_a_request_replaces_the_default():
    defaults = SamplingParams(grammar='root ::= "a"')
    params = Sampling(json_schema={"type": "object"}).params(defaults)
    assert params.structure == ("json_schema", '{"type":"object"}')
    assert Sampling().params(defaults).structure == ("grammar", 'root ::= "a"')


def test_ignore_eos_gives_way_to_a_structure():
    assert not Sampling(grammar='root ::= "a"').params(SamplingParams(ignore_eos=True)).ignore_eos
    assert Sampling().params(SamplingParams(ignore_eos=True)).ignore_eos


def test_defaults_of_a_sampler_that_a_request_turns_off_are_dropped():
    defaults = SamplingParams(dry_multiplier=0.8, dry_base=2.0, context_shift=True, n_keep=4)
    params = Sampling(dry_multiplier=0.0, context_shift=False).params(defaults)
    assert (params.dry_base, params.n_keep) == (1.75, 0)
    assert Sampling().params(defaults).dry_base == 2.0


def test_fields_of_replaced_samplers_are_ignored_and_reported(noted):
    params = Sampling(top_k=5, temperature=0.5).params(SamplingParams(mirostat=2))
    assert (params.mirostat, params.top_k, params.temperature) == (2, 40, 0.5)
    assert noted == ["top_k"]
    params = Sampling(top_k=5, min_p=0.2).params(SamplingParams(samplers=("top_k", "temperature")))
    assert (params.top_k, params.min_p, noted) == (5, 0.05, ["top_k", "min_p"])


def test_samplers_of_a_request_keep_the_other_defaults():
    defaults = SamplingParams(stop=("x",), logit_bias={5: 1.0}, dry_multiplier=0.8, temperature=0.3)
    params = Sampling(samplers=["top_k", "temperature"]).params(defaults)
    assert (params.stop, params.logit_bias, params.dry_multiplier, params.temperature) == (("x",), {5: 1.0}, 0.0, 0.3)
