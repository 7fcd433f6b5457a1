"""scripts/messages lists the messages of each kind of file, and no machine-readable strings."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "messages"))

PYTHON = """
raise RequestError(f"{name} is not a kind of grammar", field="not a sentence of users")
log.warning("model unloaded, because " + why)
option("--ctx", help="Tokens of context.")
table["key of a table"] = "some words of no user"
"""
SCRIPT_OF_PAGE = """
// "a comment of developers"
say("The connection was lost; the text so far is kept.");
"""


def listed(folder, name, text):
    path = folder / name
    path.write_text(text)
    return [text for _, text in SCRIPT["of_python" if name.endswith(".py") else "of_text"](path)]


def test_messages_of_python_are_listed(tmp_path):
    found = listed(tmp_path, "a.py", PYTHON)
    assert {"{name} is not a kind of grammar", "model unloaded, because ", "Tokens of context."} <= set(found)
    assert "some words of no user" not in found


def test_messages_of_the_page_are_listed(tmp_path):
    assert listed(tmp_path, "a.js", SCRIPT_OF_PAGE) == ["The connection was lost; the text so far is kept."]
