"""JSON limits of a body, which is parsed once."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woolly import serving
from woolly.serving.errors import ApiError
from woolly.serving.gate.json_parser import MAX_DEPTH, MAX_KEYS, MAX_VALUES, parse_json


def check(body):
    return asyncio.run(parse_json(body))


def keys(n):
    return json.dumps(dict.fromkeys(map(str, range(n)))).encode()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda children: st.lists(children) | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), children),
)  # fmt: skip


@given(json_values, st.booleans())
def test_valid_json_passes_unchanged(value, ascii_only):
    assert check(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"{]", b"nul", b'{"a": 1,}', b"\xff\xfe", b'"\xc3\x28"', b"\xef\xbb\xbf{}", b"NaN",
        b'{"a": Infinity}',
        b'{"a": -Infinity}', b"1e999", b"1" * 5000, b'"\\ud800"', b'{"\\udfff": 1}',
        b"[" * 100_000, b'{"a":' * 2000 + b"1" + b"}" * 2000, b"[" * 200 + b"]" * 200,
    ],
)  # fmt: skip
def test_hostile_json_is_a_400(body):
    with pytest.raises(ApiError) as caught:
        check(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


@pytest.mark.parametrize(
    ("most", "more", "named"),
    [
        (b"[" + b"0," * (MAX_VALUES - 2) + b"0]", b"[" + b"0," * (MAX_VALUES - 1) + b"0]", "200000 values"),
        (b'["' + b",:[{" * MAX_VALUES + b'"]', b"[" + b"[0,0]," * (MAX_VALUES // 3 + 1) + b"0]", "200000 values"),
        (keys(MAX_KEYS), keys(MAX_KEYS + 1), "10000 keys"),
        (b"{" + b'"a":1,' * (MAX_KEYS - 1) + b'"a":1}', b"{" + b'"a":1,' * MAX_KEYS + b'"a":1}', "10000 keys"),
    ],
)
def test_values_and_keys_are_counted_outside_strings(most, more, named):
    check(most)
    with pytest.raises(ApiError, match=named) as caught:
        check(more)
    assert (caught.value.status, caught.value.code) == (413, "body_too_large")


def test_depth_is_counted_on_every_branch():
    check(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    with pytest.raises(ApiError, match="deeper"):
        check(b"[1, {}, " + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"]")


def test_request_body_is_parsed_once(client, monkeypatch):
    # Values are kept, not counted: opening the model parses the index of its GPU kernels, if this build has some.
    parsed, loads, body = [], json.loads, {"content": "hi"}

    def note(*args, **options):
        parsed.append(loads(*args, **options))
        return parsed[-1]

    monkeypatch.setattr(json, "loads", note)
    request = client.build_request("POST", "/tokenize", json=body)
    reply = client.send(request)
    assert reply.status_code == 200 and parsed.count(body) == 1


def test_every_router_uses_the_parsed_body():
    folder = Path(serving.__file__).parent
    importing = re.compile(r"^from fastapi import .*APIRouter", re.M)
    assert not [path for path in folder.rglob("*.py") if importing.search(path.read_text())]
