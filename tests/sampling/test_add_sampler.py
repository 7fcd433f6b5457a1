"""docs/make/add-a-sampler.md in a few lines: a class and a row make a sampler, a flag, a field and a line of docs."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from woolly.cli.parse.sampling import sampler_options
from woolly.errors import RequestError
from woolly.sampling import Sampler, SamplingParams, options_of, registry
from woolly.sampling.option import option
from woolly.sampling.params import SAMPLERS
from woolly.sampling.registry import find_sampler, sampler
from woolly.serving.dialects.sampling_parameters import body_of

ROW = np.array([0.0, 3.0, 2.0, 1.0], np.float32)


@dataclass(frozen=True, kw_only=True)
class MoreParams(SamplingParams):
    skip_top: int = option(
        0, "Drop this many likeliest tokens; 0 for none.", low=0, off=0, sampler="skip_top", flags="--skip-top"
    )
    samplers: tuple[str, ...] = option((*SAMPLERS, "skip_top"), "The samplers that run.", form="names")


@pytest.fixture(autouse=True)
def skip_top():
    @sampler("skip_top")
    class SkipTop:
        def __init__(self, n):
            self._n = n

        @classmethod
        def make(cls, params, context):
            return cls(params.skip_top) if params.skip_top else None

        def apply(self, candidates):
            candidates.sort()
            candidates.take(slice(self._n, None))

    yield
    del registry._known["skip_top"]


def test_sampler_runs_at_its_place_in_the_chain():
    assert Sampler(MoreParams(top_k=2, skip_top=1)).next(ROW).token == 2
    assert Sampler(MoreParams(top_k=1)).next(ROW).token == 1


def test_sampler_range_and_place_are_checked():
    with pytest.raises(RequestError, match=r"^skip_top is -1; expected an integer of at least 0") as refused:
        MoreParams(skip_top=-1)
    assert refused.value.field == "skip_top"
    with pytest.raises(RequestError, match=r"^skip_top is 1, but samplers does not include skip_top"):
        MoreParams(skip_top=1, samplers=SAMPLERS)
    with pytest.raises(RequestError, match=r"^skip_top is 1, but mirostat=2 replaces"):
        MoreParams(skip_top=1, mirostat=2)


def test_sampler_has_a_command_line_flag():
    (flag,) = [one for one in sampler_options(MoreParams) if one.name == "skip_top"]
    assert (flag.opts, flag.help, flag.shown) == (["--skip-top"], options_of(MoreParams)["skip_top"].help, "0")


def test_sampler_has_a_request_field():
    body = body_of(MoreParams)
    assert body.model_validate({"skip_top": 2}).skip_top == 2
    described = body.model_json_schema()["properties"]["skip_top"]["description"]
    assert described == options_of(MoreParams)["skip_top"].help
    with pytest.raises(ValueError, match="skip_top"):
        body.model_validate({"skip_top": "two"})


def test_sampler_is_in_the_reference():
    path = Path(__file__).parents[2] / "docs" / "tools" / "api.py"
    spec = importlib.util.spec_from_file_location("api", path)
    api = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(api)
    assert "| `skip_top` | `int` | `0` | Drop this many likeliest tokens; 0 for none. |" in api._fields(MoreParams)


def test_chain_names_and_readers_are_registered_samplers():
    assert all(find_sampler(name) for name in SAMPLERS)
    files = {path.stem for path in Path(registry.__file__).with_name("samplers").glob("[a-z]*.py")}
    assert files == set(SAMPLERS)
    assert {row.sampler for row in options_of(SamplingParams).values()} == {*SAMPLERS, "*", None}
