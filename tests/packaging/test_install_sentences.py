"""No sentence of the project asks an installer for `woolly`, which on the package index is another program."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("woolly", "docs", "deploy", "scripts", "benchmarks", "native", ".github", "tests")
ENDINGS = {".py", ".md", ".toml", ".yml", ".yaml", ".sh", ".service", ".js", ".html", ".txt", ""}
INSTALLER = re.compile(
    r"\b(?:pip3?|pipx|uv pip|uv tool|uv)\s+(?:install|inject|upgrade|download|run|add|wheel)\b(?P<rest>[^\n`;&|(]*)"
    r"|\buvx(?P<uvx>[^\n`;&|(]*)"
)
PACKAGE = re.compile(r"woolly(?:\[[\w,-]*\])?(?:[<>=!~@].*)?")


def foreign(text):
    """Returns the commands of a text that would install another's package."""
    found = [match[0] for match in re.finditer(r"\bwoolly\[[\w,-]+\]", text) if match[0] != "woolly[...]"]
    found += re.findall(r"pypi\.org/(?:project|simple)/woolly(?!-llm)\b", text)
    for match in INSTALLER.finditer(text):
        words = [word.strip("\"'(),.:") for word in (match["rest"] or match["uvx"] or "").split()]
        packages = words if match["uvx"] is None else _packages_of_uvx(words)
        found += [match[0] for word in packages if PACKAGE.fullmatch(word)]
    return found


def _packages_of_uvx(words):
    """The packages that `uvx` fetches: those after --from and --with, else its first word."""
    named = [after for before, after in pairwise(words) if before in ("--from", "--with")]
    return named if "--from" in words else [*named, *[word for word in words if not word.startswith("-")][:1]]


def texts():
    for place in PLACES:
        for path in (ROOT / place).rglob("*"):
            if path.suffix in ENDINGS and path.is_file() and "__pycache__" not in path.parts:
                yield path
    yield from ROOT.glob("*.md")
    yield ROOT / "pyproject.toml"


def test_no_message_installs_an_unrelated_package():
    n_read, wrong = 0, []
    for path in texts():
        if path == Path(__file__).resolve():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        n_read += 1
        wrong += [f"{path.relative_to(ROOT)}: {command}" for command in foreign(text)]
    assert n_read > 500
    assert not wrong


@pytest.mark.parametrize(
    "text",
    [
        "pip install woolly",
        "run `pip install --upgrade 'woolly[mcp]'` first",
        'pip install "woolly>=0.1"',
        "(/opt/venv/bin/pip install woolly),",
        "pipx install woolly",
        "uv tool install woolly",
        "uv pip install -U woolly",
        "uvx woolly run hi",
        "https://pypi.org/project/woolly/",
    ],
)
def test_wrong_install_message_is_found(text):
    assert foreign(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install .",
        "pip install woolly-llm",
        "pipx inject woolly-llm 'mcp>=2.3,<3'",
        "uvx --from woolly-llm woolly run hi",
        "uv tool install woolly-llm && woolly run hi",
        "pip install openai` and then `woolly serve`",
    ],
)
def test_correct_install_message_passes(text):
    assert not foreign(text)
