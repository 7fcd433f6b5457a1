"""Every command and every piece of code in the docs is run, or says why it is not."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace

import click
import pytest

from tests.docs.blocks import PAGES, ROOT, Block, blocks_of, prose_of
from woolly.cli.app import COMMANDS, app
from woolly.serving.settings.configuration import read_settings

# Languages that hold nothing to run: outputs, signatures, usage lines.
SILENT = {"", "text"}
TOOLS = ("curl", "jq")  # not on every machine
COMMAND = re.compile(r"^(\$ |\./scripts/|scripts/|woolly [a-z]|curl |pip |python3? |sudo |llm )", re.M)

# Why a test cannot run a block. Somebody has run each such block by hand.
REASONS = {
    "Codex reads it",
    "a file of llm",
    "a part of its file",
    "a row of a table",
    "downloads gigabytes",
    "installs into the home folder",
    "makes .venv and builds; tests/packaging/test_scripts.py and CI run it",
    "needs FFmpeg",
    "needs a GPU",
    "needs a Parakeet model",
    "needs a Whisper model",
    "needs a certificate",
    "needs a checkpoint",
    "needs a control vector",
    "needs a server with keys",
    "needs a vision model",
    "needs an adapter",
    "needs an audio model",
    "needs another engine",
    "needs langchain-openai",
    "needs llama-cpp-python",
    "needs llama-index",
    "needs llm",
    "needs podman",
    "needs root and systemd",
    "needs the Hugging Face hub",
    "needs torch",
    "needs two machines",
    "needs two models",
    "no release is on the package index yet",
    "takes minutes",
    "writes gigabytes",
}


# Pages of examples beside the guides: a quarter of the time of all blocks.
RARE = ("docs/use/recipes.md",)
RUN = [page for page in PAGES if any(b.language not in SILENT for b in blocks_of(page))]


@pytest.mark.parametrize("page", [pytest.param(page, marks=[pytest.mark.rare] if page in RARE else []) for page in RUN])
def test_blocks_of_a_page_run_in_order(page, desk):
    failures, missing = [], set()
    for block in blocks_of(page):
        used = {tool for tool in TOOLS if block.language == "sh" and re.search(rf"\b{tool} ", block.text)}
        if lacking := {tool for tool in used if not block.not_run and not shutil.which(tool)}:
            missing |= lacking
            desk.written = None
            continue
        try:
            run(block, desk)
        except Exception as error:
            failures.append(f"{block}: {type(error).__name__}: {error}")
    assert not failures, "\n".join(failures)
    if missing:
        pytest.skip(f"this machine lacks {', '.join(sorted(missing))}; the other blocks ran")


def run(block: Block, desk) -> None:
    if block.not_run or (block.mark == "output" and desk.written is None):
        return
    if block.mark == "output":
        expected = re.escape(block.text.strip()).replace("…", ".*")
        assert re.fullmatch(expected, desk.written.strip()), f"{desk.written!r} was written"
    elif block.language == "sh":
        for part in parts_of(block):
            desk.serve(part) if part.text.startswith("woolly serve") else desk.shell(part)
    elif block.language == "python":
        exec(compile(desk.here(block.text), str(block), "exec"), {"__name__": "__main__"})
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "toml":
        # A folder of models must be there.
        (desk.folder / "woolly.toml").write_text(block.text.replace("/var/lib/woolly/models", str(desk.folder)))
        read_settings({}, {})
        (desk.folder / "woolly.toml").unlink()
    else:
        assert block.language in SILENT, f"blocks of {block.language!r} are not run: say why, or teach this test"


def parts_of(block: Block) -> list[Block]:
    """Split a block of commands around each `woolly serve`, which runs until it is stopped."""
    parts = re.split(r"^(woolly serve(?:.*\\\n)*.*\n)", block.text, flags=re.M)
    return [replace(block, text=part) for part in parts if part.strip()]


def test_each_block_that_is_not_run_has_a_known_reason():
    assert {block.not_run for page in PAGES for block in blocks_of(page) if block.not_run} == REASONS


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/reference/cli.md"])
def test_no_runnable_command_is_marked_as_not_run(page):
    for block in blocks_of(page):
        if block.language in SILENT:
            assert not COMMAND.search(block.text), f"{block}: commands belong into a block of sh"
    if page.startswith("docs/benchmarks/") and page != "docs/benchmarks/README.md":
        return  # reports, which tell by which command they were made
    indented = re.findall(r"^    (.+)$", prose_of(page), flags=re.M)
    assert not [line for line in indented if COMMAND.match(line)], f"{page}: commands belong into a block of sh"


def commands_of(page: str) -> list[list[str]]:
    """The commands of a page as words: those in its sentences and tables, and those of its blocks, run or not."""
    texts = re.findall(r"`([^`\n]+)`", prose_of(page))
    texts += [
        block.text.replace("\\\n", " ").replace("\n", "\n; ") for block in blocks_of(page) if block.language == "sh"
    ]
    found: list[list[str]] = []
    for text in texts:
        found.append([])
        lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;")
        lexer.whitespace_split = True
        try:
            for word in lexer:
                found[-1].append(word) if word.strip("|&;") else found.append([])
        except ValueError:
            assert not text.startswith("woolly "), f"{page}: `{text}` is not a command"
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/reference/cli.md"])
def test_every_woolly_command_and_option_in_the_docs_exists(page):
    known = {name: app.get_command(click.Context(app), name) for name in COMMANDS}
    for words in commands_of(page):
        if words[:1] != ["woolly"] or len(words) < 2 or not re.fullmatch(r"[a-z]+", words[1]):
            continue
        command = shlex.join(words)
        assert words[1] in known, f"{page}: `{command}`"
        options = {spelling for one in known[words[1]].params for spelling in (*one.opts, *one.secondary_opts)}
        for word in words[2:]:
            if re.match(r"--?[a-zA-Z]", word):
                assert word.split("=")[0] in options | {"--help", "-h"}, f"{page}: `{command}` has no {word}"


def test_every_llama_cpp_option_in_the_docs_exists():
    page = "docs/benchmarks/README.md"
    command = [sys.executable, "-m", "benchmarks.versus", "--help"]
    help_text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    section = prose_of(page).partition("## benchmarks/versus")[2].partition("\n## ")[0]
    options = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", " ".join(re.findall(r"`([^`]+)`", section))))
    options |= {
        word for words in commands_of(page) if "benchmarks.versus" in words for word in words if word.startswith("--")
    }
    assert {"--peer-python", "--report", "--quick", "--tests"} <= options
    assert options <= set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", help_text))


GUIDES = [page for page in PAGES if not re.search("CONTRIBUTING|cli|troubleshooting|benchmarks", page)]


@pytest.mark.parametrize("page", GUIDES)
def test_placeholder_files_are_named_as_such(page):
    assert not re.search(r"(?<![\w-])model\.gguf", (ROOT / page).read_text())


@pytest.mark.parametrize("page", (*PAGES, "CHANGELOG.md"))
def test_internal_links_resolve(page):
    text = prose_of(page)
    targets = re.findall(r"\]\(([^)#\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    for target in targets:
        if not re.match(r"[a-z]+:", target):
            assert ((ROOT / page).parent / target).exists(), f"{page} leads to {target}, which is not there"
