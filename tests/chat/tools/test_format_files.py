"""Formats of calls come from a file of rows, or from an installed package."""

import json
import sys

import pytest

from tests.cases.fake_distribution import install
from tests.cases.tiny import byte_vocabulary
from woolly.chat import ChatRequest, Message, Tool, ToolChoice, format_chat, gather
from woolly.chat.template_format import find_template_format, use_tool_format
from woolly.chat.tools import added_formats
from woolly.chat.tools.format import FORMATS, read_formats
from woolly.errors import RequestError
from woolly.templates import ChatTemplate
from woolly.tokens import Tokenizer

TURNS = "{{ tools }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
ROW = {
    "name": "arrows",
    "marks": [["=>", "<="]],
    "label": {"pattern": r"\s*(?P<name>[\w.-]+)\s*", "after": " "},
    "padding": ["", ""],
}
CLOCK = Tool("clock")


def written(folder, rows):
    path = folder / "formats.json"
    path.write_text(rows if isinstance(rows, str) else json.dumps(rows))
    return path


def calls_of(template, answer):
    request = ChatRequest((Message("user", "Hi"),), tools=ToolChoice.of([CLOCK], "auto"))
    parser = format_chat(request, template, Tokenizer.from_metadata(byte_vocabulary())).parser()
    found = gather(parser.push(answer)).tool_calls
    return [(call.name, call.arguments) for call in found]


@pytest.mark.parametrize("rows", [ROW, [ROW], [{**ROW, "signs": ["nothing"]}, {**ROW, "signs": ["messages"]}]])
def test_calls_are_read_by_the_row_of_a_file(tmp_path, rows):
    template = ChatTemplate(TURNS)
    use_tool_format(template, written(tmp_path, rows))
    assert find_template_format(template).calls.name == "arrows"
    assert calls_of(template, 'Well => clock {"zone": "CET"} <=') == [("clock", '{"zone": "CET"}')]
    assert calls_of(ChatTemplate(TURNS), "Well => clock {} <=") == []


def test_installed_package_adds_formats(tmp_path, monkeypatch):
    class Entry:
        def __init__(self, given):
            self.given = given

        def load(self):
            return self.given

    signed = [{**ROW, "signs": ["messages"]}]
    for given in (str(written(tmp_path, signed)), signed, signed[0]):
        monkeypatch.setattr(added_formats, "entry_points", lambda group, given=given: [Entry(given)])
        added_formats.installed_formats.cache_clear()
        assert calls_of(ChatTemplate(TURNS), "=> clock {} <=") == [("clock", "{}")]
    monkeypatch.undo()
    added_formats.installed_formats.cache_clear()
    assert calls_of(ChatTemplate(TURNS), "=> clock {} <=") == []


def test_formats_of_a_distribution_are_found(tmp_path, monkeypatch):
    source = f"ROWS = {[{**ROW, 'signs': ['messages']}]!r}"
    install(tmp_path, monkeypatch, added_formats.GROUP, "arrows = installed_formats:ROWS", "installed_formats", source)
    added_formats.installed_formats.cache_clear()
    try:
        assert calls_of(ChatTemplate(TURNS), "=> clock {} <=") == [("clock", "{}")]
    finally:
        added_formats.installed_formats.cache_clear()
        sys.modules.pop("installed_formats", None)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("{", "cannot be read"),
        ({"name": "x"}, "marks"),
        ({**ROW, "mark": []}, "unknown key 'mark'"),
        ({**ROW, "padding": "x"}, "padding is 'x'; expected a list"),
        ({**ROW, "label": {"patern": "x"}}, "unknown key 'patern'"),
        ([3], "an object was expected, not int"),
        ({**ROW, "signs": ["nothing"]}, "no row of .* has signs of the chat template"),
    ],
)
def test_wrong_row_is_reported(tmp_path, rows, reason):
    with pytest.raises(RequestError, match=reason) as caught:
        use_tool_format(ChatTemplate(TURNS), written(tmp_path, rows))
    assert caught.value.field == "tool_format"


def test_every_shipped_row_has_a_reason():
    assert all(format.reason for format in FORMATS.values())
    assert read_formats([{"name": "x", "marks": []}])[0].reason == ""
