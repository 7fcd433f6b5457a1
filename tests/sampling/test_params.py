"""Parameters that are out of range, contradict each other or would be ignored are refused by name."""

from dataclasses import fields, replace

import numpy as np
import pytest

from woolly.errors import RequestError
from woolly.sampling.params import SAMPLERS, SamplingParams


def test_defaults_match_llama_cpp():
    params = SamplingParams()
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 40, 0.95, 0.05)
    assert (params.typical_p, params.top_n_sigma, params.min_keep) == (1.0, -1.0, 0)
    assert (params.xtc_probability, params.xtc_threshold) == (0.0, 0.1)
    assert (params.dynatemp_range, params.dynatemp_exponent) == (0.0, 1.0)
    assert (params.repeat_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)
    assert (params.repeat_last_n, params.dry_penalty_last_n) == (64, -1)
    assert (params.dry_multiplier, params.dry_base, params.dry_allowed_length) == (0.0, 1.75, 2)
    assert params.dry_sequence_breakers == ("\n", ":", '"', "*")
    assert (params.mirostat, params.mirostat_tau, params.mirostat_eta) == (0, 5.0, 0.1)
    assert params.samplers == SAMPLERS
    assert SAMPLERS == (
        "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("temperature", 1e39),
        ("dynatemp_range", -0.1),
        ("dynatemp_exponent", -1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("top_p", 1.1),
        ("min_p", -0.5),
        ("typical_p", 2),
        ("top_n_sigma", float("inf")),
        ("xtc_probability", 1.1),
        ("xtc_threshold", -1),
        ("min_keep", -1),
        ("repeat_penalty", 0),
        ("presence_penalty", float("inf")),
        ("frequency_penalty", None),
        ("repeat_last_n", -2),
        ("dry_multiplier", -1),
        ("dry_base", 0.5),
        ("dry_allowed_length", -1),
        ("dry_penalty_last_n", -2),
        ("mirostat", 3),
        ("mirostat", True),
        ("mirostat_tau", -1),
        ("mirostat_eta", "x"),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("min_tokens", -1),
        ("n", 0),
        ("seed", -1),
        ("seed", 2**32),
        ("stop", ""),
        ("stop", [1]),
        ("stop", 5),
        ("choice", [""]),
        ("dry_sequence_breakers", [""]),
        ("samplers", "top_k"),
        ("stop_token_ids", 5),
        ("logit_bias", [1]),
        ("logits_processors", [1]),
        ("logits_processors", len),
        ("custom_sampler", 1),
        ("logprobs", -1),
        ("prompt_logprobs", 1.5),
        ("n_keep", -2),
        ("ignore_eos", "no"),
        ("context_shift", 1),
        ("json_object", "yes"),
        ("json_schema", "{"),
        ("json_schema", "[1]"),
        ("json_schema", {"a": {1, 2}}),
        ("regex", ""),
        ("lark", 5),
        ("grammar", ""),
    ],
)
def test_value_out_of_range_is_rejected_by_name(name, value):
    with pytest.raises(RequestError, match=f"^{name} is "):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens is 5, but max_tokens is only 4"),
        ({"json_object": True, "regex": "a"}, "json_object and regex cannot be combined"),
        ({"ignore_eos": True, "choice": ["a"]}, "ignore_eos is True, but choice determines"),
        ({"min_tokens": 1, "grammar": "root ::= x"}, "min_tokens is 1, but grammar determines"),
        ({"n_keep": 4}, "n_keep is 4, but has no effect with context_shift=False"),
        (
            {"samplers": ["top_k", "top-p"]},
            "samplers has unknown sampler 'top-p'; expected penalties, dry, .*temperature",
        ),
        ({"samplers": ["top_k", "top_k"]}, "samplers has 'top_k' twice"),
        ({"samplers": ["top_k"], "top_p": 0.5}, "top_p is 0.5, but samplers does not include top_p"),
        ({"samplers": ["top_k"], "temperature": 0}, "temperature is 0, but samplers does not include temperature"),
        ({"samplers": ["top_k"], "typical_p": 0.5}, "typical_p is 0.5, but samplers does not include typ_p"),
        ({"mirostat": 2, "top_k": 5}, "top_k is 5, but mirostat=2 replaces"),
        ({"mirostat": 1, "repeat_penalty": 1.1}, "repeat_penalty is 1.1, but mirostat=1 replaces"),
        ({"mirostat": 1, "dynatemp_range": 0.5}, "dynatemp_range is 0.5, but mirostat"),
        ({"mirostat": 1, "samplers": ["temperature"]}, r"samplers is \['temperature'\], but mirostat=1"),
        ({"custom_sampler": min, "mirostat": 1}, "mirostat is 1, but custom_sampler replaces"),
        ({"custom_sampler": min, "temperature": 0.5}, "temperature is 0.5, but custom_sampler replaces"),
        ({"custom_sampler": min, "samplers": ()}, r"samplers is \[\], but custom_sampler"),
        ({"stop_token_ids": [-1]}, "stop_token_ids has -1"),
        ({"stop_token_ids": [True]}, "stop_token_ids has True"),
        ({"logit_bias": {-1: 0.0}}, "logit_bias has key -1"),
        ({"logit_bias": {"": 0.0}}, "logit_bias has key ''"),
        ({"logit_bias": {1.5: 0.0}}, "logit_bias has key 1.5"),
        ({"logit_bias": {1: True}}, "logit_bias of 1 is True"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias of 1 is nan"),
        ({"logit_bias": {"a": "b"}}, "logit_bias of 'a' is 'b'"),
        ({"dry_sequence_breakers": ["x" * 41]}, "dry_sequence_breakers has 'xxx.* 40 bytes"),
    ],
)
def test_contradiction_is_rejected_with_both_names(values, sentence):
    with pytest.raises(RequestError, match=f"^{sentence}"):
        SamplingParams(**values)


def test_disabled_option_contradicts_nothing():
    SamplingParams(mirostat=2, top_k=0, top_p=1.0, min_p=0.0, temperature=1.2)
    SamplingParams(custom_sampler=min, temperature=1.0, top_k=0)
    SamplingParams(samplers=["min_p"], top_k=0, temperature=1.0)
    SamplingParams(temperature=-1, top_k=-1)


def test_lists_become_tuples_and_a_string_a_tuple_of_one():
    params = SamplingParams(stop="END", choice=["a", "b"], samplers=["top_k"], stop_token_ids=[3])
    assert params.stop == ("END",)
    assert params.choice == ("a", "b")
    assert params.samplers == ("top_k",)
    assert params.stop_token_ids == (3,)


def test_false_in_logit_bias_means_never():
    assert SamplingParams(logit_bias={7: False, "no": -1}).logit_bias == {7: float("-inf"), "no": -1.0}


@pytest.mark.parametrize(
    ("values", "structure"),
    [
        ({}, None),
        ({"json_schema": {"type": "object", "properties": {"b": {}, "a": {}}}},
         ("json_schema", '{"type":"object","properties":{"b":{},"a":{}}}')),
        ({"json_schema": ' {"type" : "string", "title": "é"} '}, ("json_schema", '{"type":"string","title":"é"}')),
        ({"json_object": True}, ("json_object", "")),
        ({"regex": "a+"}, ("regex", "a+")),
        ({"choice": ("yes", "no")}, ("choice", '["yes", "no"]')),
        ({"lark": "start: /a/"}, ("lark", "start: /a/")),
        ({"grammar": 'root ::= "a"'}, ("grammar", 'root ::= "a"')),
    ],
)  # fmt: skip
def test_structure_has_one_spelling(values, structure):
    params = SamplingParams(**values)
    assert params.structure == structure
    assert replace(params).structure == structure


def test_every_field_survives_a_copy():
    params = SamplingParams(logit_bias={1: False}, json_schema={"a": 1}, stop="x", temperature=0.5)
    copy = replace(params, temperature=0.6)
    for field in fields(SamplingParams):
        if field.name != "temperature":
            assert getattr(copy, field.name) == getattr(params, field.name)


@pytest.mark.parametrize(
    ("name", "value", "master"),
    [
        ("mirostat_tau", 3.0, {"mirostat": 2}),
        ("mirostat_eta", 0.2, {"mirostat": 1}),
        ("xtc_threshold", 0.3, {"xtc_probability": 0.5}),
        ("dynatemp_exponent", 2.0, {"dynatemp_range": 0.5}),
        ("dry_base", 3.0, {"dry_multiplier": 0.8}),
        ("dry_allowed_length", 3, {"dry_multiplier": 0.8}),
        ("dry_penalty_last_n", 64, {"dry_multiplier": 0.8}),
        ("dry_sequence_breakers", ["x"], {"dry_multiplier": 0.8}),
        ("repeat_last_n", 5, {"repeat_penalty": 1.1}),
        ("repeat_last_n", 5, {"presence_penalty": 0.1}),
        ("repeat_last_n", 5, {"frequency_penalty": -0.1}),
    ],
)
def test_field_without_effect_is_rejected(name, value, master):
    with pytest.raises(RequestError, match=f"^{name} is .* has no effect"):
        SamplingParams(**{name: value})
    assert SamplingParams(**{name: value}, **master)
    # Clients send whole sets of defaults, some of them rounded to float32.
    default = getattr(SamplingParams(), name)
    assert SamplingParams(**{name: default})
    if isinstance(default, float):
        assert SamplingParams(**{name: float(np.float32(default))})


@pytest.mark.parametrize("other", [{"mirostat": 2}, {"custom_sampler": max}])
def test_min_keep_is_rejected_without_a_truncating_sampler(other):
    with pytest.raises(RequestError, match=r"^min_keep is 3, but "):
        SamplingParams(min_keep=3, **other)
    assert SamplingParams(min_keep=0, **other)


def test_numpy_numbers_are_accepted():
    params = SamplingParams(
        temperature=np.float32(0.5),
        top_k=np.int64(5),
        stop_token_ids=[np.int32(3)],
        logit_bias={np.int64(4): np.float32(1)},
    )
    assert (params.temperature, params.top_k, params.stop_token_ids, params.logit_bias) == (0.5, 5, (3,), {4: 1.0})
    assert {type(params.temperature), type(params.top_k), type(params.stop_token_ids[0])} == {float, int}
    with pytest.raises(RequestError, match=r"^top_k is "):
        SamplingParams(top_k=np.float32(5))
    with pytest.raises(RequestError, match=r"^temperature is "):
        SamplingParams(temperature=np.float32("nan"))


def test_equal_params_have_equal_hashes():
    first, second = (SamplingParams(stop=["a"], logit_bias={1: 2.0}, json_schema={"type": "null"}) for _ in range(2))
    assert first == second and hash(first) == hash(second)
    assert {first: 1}[second] == 1
