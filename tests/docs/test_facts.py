"""Facts in the docs match the code."""

import ast
import re
from dataclasses import fields
from inspect import signature

import pytest

from docs.tools import generate
from tests.docs.blocks import PAGES, ROOT, prose_of
from woolly import LLM, SamplingParams
from woolly.llm.options import ChatOptions
from woolly.quantize import MIXES

LIBRARY = (ROOT / "docs" / "use" / "library.md").read_text()


@pytest.fixture(scope="module")
def stale():
    return [name for name, _ in generate.stale_files()]


@pytest.mark.parametrize("page", sorted({*generate.PAGES, *generate.marked_pages()}))
def test_generated_documentation_is_current(page, stale):
    assert page not in stale, f"{page} is not up to date: run `scripts/generate`"


def test_generate_check_names_the_file_and_the_command(monkeypatch, capsys):
    monkeypatch.setitem(generate.PAGES, "docs/reference/cli.md", lambda: "other")
    assert generate.main(["--check"]) == 1
    assert "docs/reference/cli.md is not up to date: run `scripts/generate`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("title", "known"),
    [
        ("Opening a model", set(signature(LLM).parameters)),
        ("Sampling", {field.name for field in fields(SamplingParams)}),
        ("Chat options", set(ChatOptions.__annotations__)),
    ],
)
def test_options_on_the_library_page_exist(title, known):
    section = LIBRARY.partition(f"## {title}\n")[2].partition("\n## ")[0]
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.+?) \|", section, flags=re.M)))
    assert named and set(named) <= known


def test_types_on_the_speed_page_can_be_written():
    page = (ROOT / "docs" / "use" / "speed.md").read_text().partition("## Quantization")[2].partition("## ")[0]
    named = re.findall(r"^\| ((?:[A-Z0-9_]+(?:, )?)+) \|", page, flags=re.M)
    types = {name for row in named for name in row.split(", ")}
    assert types and types <= {*MIXES, "F16", "BF16", "Q8_0"}


@pytest.fixture(scope="module")
def paths():
    """Files and folders of the project, each as text that ends with its path; folders end with a slash."""
    found = [path for top in ROOT.iterdir() if not top.name.startswith(".") for path in (top, *top.rglob("*"))]
    return [f"/{path.relative_to(ROOT).as_posix()}{'/' * path.is_dir()}" for path in found]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if not page.startswith(("docs/reference/", "docs/benchmarks/"))]
)
def test_paths_in_the_docs_exist(page, paths):
    named = re.findall(r"`((?:[\w.-]+/)+(?:[\w-]+\.(?:py|h|cpp|cuh?|slang|md|json|sh|toml))?)`", prose_of(page))
    if not page.startswith("docs/make/"):  # other pages name files of users, too
        named = [path for path in named if re.match(r"(woolly|native|tests|scripts|deploy|benchmarks|docs)/", path)]
    assert not [path for path in named if "NAME" not in path and not any(one.endswith(f"/{path}") for one in paths)]


def test_docs_index_lists_every_page_once():
    listed = re.findall(r"\]\(([\w/-]+\.md)\)", (ROOT / "docs" / "README.md").read_text())
    pages = [
        f"{kind}/{path.name}" for kind in ("use", "reference", "make") for path in (ROOT / "docs" / kind).iterdir()
    ]
    assert sorted(listed) == sorted([*pages, "benchmarks/README.md", "benchmarks/gpu-notes.md"])


def sentences():
    """The texts of the package and its scripts, with … for what is filled in."""
    for path in sorted((ROOT / "woolly").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.JoinedStr, ast.Constant)):
                yield _text(node)
    script = (ROOT / "scripts" / "setup.sh").read_text()
    yield re.sub(r"\$\w+", "…", script)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "…"


MESSAGES = [
    message
    for page in ("troubleshooting", "gpus", "cuda")
    for table in re.findall(r"^\| message \|.+\n(?:\|.*\n)+", (ROOT / f"docs/use/{page}.md").read_text(), flags=re.M)
    for cell in re.findall(r"^\| (`.+?`) \|", table, flags=re.M)
    for message in re.findall(r"`(.+?)`", cell)
]


@pytest.fixture(scope="module")
def texts():
    return "\n".join(sentences())


def test_troubleshooting_explains_many_messages():
    assert len(MESSAGES) > 40
    assert len(set(MESSAGES)) == len(MESSAGES)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message[:40])
def test_explained_messages_are_in_the_code(message, texts):
    assert message.removesuffix(" …") in texts
