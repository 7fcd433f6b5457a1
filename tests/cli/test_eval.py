"""`woolly eval` as a person types it."""

import json

import pytest

from tests.cli.terminal import woolly
from woolly.errors import WoollyError


def test_two_models_are_judged_on_the_same_rows(tiny_model, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        json.dumps({"question": "Which?", "choices": ["one", "two"], "answer": "one"})
        + "\n"
        + json.dumps({"prompt": "Say", "answer": "", "match": "regex"})
    )
    facts = json.loads(woolly("eval", tiny_model, rows, "--against", tiny_model, "-n", "4", "-t", "1", "--json"))
    first, second = facts["models"]
    assert first == second
    assert (facts["rows"], first["n"]) == (2, 2)
    assert first["right"] >= 1  # an empty expression is found in every answer
    assert facts["comparison"]["p_value"] == 1
    shown = woolly("eval", tiny_model, rows, "-n", "4", "-t", "1")
    assert f"({first['right']} of 2)" in shown
    assert len(list((tmp_path / "rows.jsonl.results").iterdir())) == 1
    with pytest.raises(WoollyError, match="-n is 0"):
        woolly("eval", tiny_model, rows, "-n", "0")


def test_rows_may_be_piped_in(tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given, said in (("", "standard input has no rows"), ("{}\n[1]", "standard input, line 1 has no answer")):
        with pytest.raises(WoollyError, match=said):
            woolly("eval", tiny_model, stdin=given)
    row = json.dumps({"prompt": "Say", "answer": "", "match": "regex"})
    for more in ((), ("-",)):
        assert "(1 of 1)" in woolly("eval", tiny_model, *more, "-n", "4", "-t", "1", stdin=row)
    assert (tmp_path / "piped.results").is_dir()
