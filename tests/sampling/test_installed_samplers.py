"""An installed package adds a sampler with an entry point."""

import sys

import numpy as np
import pytest

from tests.cases.fake_distribution import install
from woolly.errors import RequestError
from woolly.sampling import Sampler, SamplingParams, registry

ROW = np.array([0.0, 3.0, 2.0, 1.0], np.float32)
SOURCE = """
class SkipTop:
    @classmethod
    def make(cls, params, context):
        return cls()

    def apply(self, candidates):
        candidates.sort()
        candidates.take(slice(1, None))
"""


@pytest.fixture(autouse=True)
def forget():
    registry.installed_samplers.cache_clear()
    yield
    registry.installed_samplers.cache_clear()
    sys.modules.pop("installed_sampler", None)
    registry._known.pop("skip_first", None)


def test_sampler_of_an_installed_package_runs_where_it_is_named(tmp_path, monkeypatch):
    entry = "skip_first = installed_sampler:SkipTop"
    install(tmp_path, monkeypatch, "woolly.samplers", entry, "installed_sampler", SOURCE)
    params = SamplingParams(samplers=("skip_first", "top_k", "temperature"), top_k=1)
    assert Sampler(params).next(ROW).token == 2
    assert Sampler(SamplingParams(top_k=1)).next(ROW).token == 1
    with pytest.raises(RequestError, match=r"unknown sampler 'skip_last'; expected .*, skip_first$"):
        SamplingParams(samplers=("skip_last",))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("installed_sampler:Missing", "cannot be imported"),
        ("installed_sampler", "must name a class with make and apply"),
    ],
)
def test_wrong_package_is_reported(tmp_path, monkeypatch, value, reason):
    install(tmp_path, monkeypatch, "woolly.samplers", f"skip_first = {value}", "installed_sampler", SOURCE)
    with pytest.raises(RequestError, match=reason) as caught:
        Sampler(SamplingParams(samplers=("skip_first", "temperature")))
    assert caught.value.field == "samplers"
