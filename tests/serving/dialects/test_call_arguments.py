"""The arguments of a call are a JSON object wherever the model stops, and whatever it writes."""

import json

from hypothesis import given
from hypothesis import strategies as st

from woolly.serving.dialects.call_arguments import Arguments, arguments_object

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=4)


@given(OBJECTS, st.booleans(), st.sampled_from([None, 1]))
def test_complete_object_is_passed_unchanged(value, is_ascii, indent):
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    arguments = Arguments()
    assert "".join(arguments.push(c) for c in text) + arguments.finish() == text


@given(OBJECTS, st.data())
def test_truncated_call_is_closed(value, data):
    text = json.dumps(value)
    cut = text[: data.draw(st.integers(0, len(text)))]
    arguments = Arguments()
    passed = arguments.push(cut)
    assert passed == cut
    assert isinstance(json.loads(passed + arguments.finish()), dict)


@given(OBJECTS, st.text(alphabet='{}[]",:\\ue1.-+tfn x\n', max_size=12), st.data())
def test_invalid_json_is_omitted(value, wrong, data):
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text)))
    assert isinstance(arguments_object(text[:at] + wrong + text[at:]), dict)


def test_object_keeps_what_precedes_an_error():
    assert arguments_object('{"a": 1, "b": tree}') == {"a": 1, "b": True}
    assert arguments_object('{"a": "line\nline"}') == {"a": "line\nline"}
    assert arguments_object('{"a": 1} and more') == {"a": 1}
    assert arguments_object('"text"') == {} == arguments_object("")
    assert arguments_object('{"a":' * 500) != {}
