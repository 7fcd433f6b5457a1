"""Derived models are tables of presets.toml, beside what a person wrote there."""

import pytest

from woolly.errors import StoreError
from woolly.store import PRESETS_FILE, derived, find_derived, list_derived, remove_derived, write_derived

OWN = '# mine\n[tiny]\nsystem = """\n[pirate]\nnot a table\n"""\n\n[cook] # a comment\ntemperature = 0.5\n'


def test_written_models_are_read_again(tmp_path):
    system = 'Say "arr"\\ and\nmore \x7f\t\u2603 """'
    write_derived(tmp_path, "a/b:c", "tiny", system, {"temperature": 0.25, "stop": ["x", "]\n["], "top_k": 3})
    found = find_derived(tmp_path, "A/B:C")
    assert (found.base, found.system, found.ctx) == ("tiny", system, None)
    assert found.sampling == {"temperature": 0.25, "stop": ["x", "]\n["], "top_k": 3}


def test_name_is_replaced_and_removed_and_the_rest_stays(tmp_path):
    file = tmp_path / PRESETS_FILE
    file.write_text("# mine\n[cook]\ntemperature = 0.5  # warm\n")
    write_derived(tmp_path, "one", "tiny", "first", {})
    write_derived(tmp_path, "two", "tiny", None, {})
    write_derived(tmp_path, "ONE", "tiny", "second", {})
    assert [(one.name, one.system) for one in list_derived(tmp_path)] == [("two", None), ("ONE", "second")]
    assert remove_derived(tmp_path, "one") and remove_derived(tmp_path, "two") and not remove_derived(tmp_path, "two")
    assert file.read_text().strip() == "# mine\n[cook]\ntemperature = 0.5  # warm"
    assert not list_derived(tmp_path) and not remove_derived(tmp_path, "cook")


def test_user_content_is_unchanged(tmp_path):
    file = tmp_path / PRESETS_FILE
    file.write_text(OWN)
    with pytest.raises(StoreError, match="written by hand"):
        write_derived(tmp_path, "Cook", "tiny", None, {})
    write_derived(tmp_path, "pirate", "tiny", "arr", {})
    with pytest.raises(StoreError, match="by hand"):  # a line of the person's text looks like the header
        remove_derived(tmp_path, "pirate")
    assert file.read_text().startswith(OWN.rstrip()) and find_derived(tmp_path, "pirate") is not None


def test_number_of_derived_models_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(derived, "MAX_DERIVED", 2)
    for name in ("a", "b", "a"):
        write_derived(tmp_path, name, "tiny", None, {})
    with pytest.raises(StoreError, match="delete one"):
        write_derived(tmp_path, "c", "tiny", None, {})
