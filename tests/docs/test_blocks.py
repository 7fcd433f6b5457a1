"""Every command and every piece of code in the docs is run, or says why it is not."""

import json
import re
import shutil

import pytest

from tests.docs.blocks import PAGES, ROOT, Block, blocks_of, prose_of
from woolly.serving.configuration import read_settings

# Languages that hold nothing to run: outputs, signatures, usage lines.
SILENT = {"", "text"}
TOOLS = ("curl", "jq")  # not on every machine
COMMAND = re.compile(r"^(\$ |\./scripts/|scripts/|woolly [a-z]|curl |pip |python3? |sudo |llm )", re.M)

# What a test cannot run, by page. An entry here is a promise that somebody has tried it by hand.
NOT_RUN = {
    "README.md": [
        "makes .venv and builds; tests/test_scripts.py and CI run it",
        "this is what runs these blocks",
        ".venv is made by ./scripts/run",
        "needs the Hugging Face hub",
    ],
    "CONTRIBUTING.md": [
        "this is what runs these blocks",
        "builds with sanitizers, for many minutes",
        "cross-compiles, for many minutes",
        "needs torch",
    ],
    "docs/add-a-model.md": [
        "a line of the registry",
    ],
    "docs/releasing.md": [
        "builds wheels, for many minutes",
        "cross-compiles and emulates, for many minutes",
    ],
    "docs/recipes.md": [
        "needs langchain-openai",
        "a file of llm",
        "needs llm",
        "needs root and systemd",
    ],
}


@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language not in SILENT for b in blocks_of(page))])
def test_the_blocks_of_a_page_run_in_order(page, desk):
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
    elif block.language == "sh" and block.text.startswith("woolly serve"):
        desk.serve(block)
    elif block.language == "sh":
        desk.shell(block)
    elif block.language == "python":
        exec(compile(desk.here(block.text), str(block), "exec"), {"__name__": "__main__"})
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "toml":
        (desk.folder / "woolly.toml").write_text(block.text)
        read_settings({}, {})
        (desk.folder / "woolly.toml").unlink()
    else:
        assert block.language in SILENT, f"blocks of {block.language!r} are not run: say why, or teach this test"


def test_the_blocks_that_are_not_run_are_these():
    found = {page: [b.not_run for b in blocks_of(page) if b.not_run] for page in PAGES}
    assert {page: reasons for page, reasons in found.items() if reasons} == NOT_RUN


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/cli.md"])
def test_no_command_hides_where_it_is_not_run(page):
    for block in blocks_of(page):
        if block.language in SILENT:
            assert not COMMAND.search(block.text), f"{block}: commands belong into a block of sh"
    if not page.startswith("docs/benchmarks/"):
        indented = re.findall(r"^    (.+)$", prose_of(page), flags=re.M)
        assert not [line for line in indented if COMMAND.match(line)], f"{page}: commands belong into a block of sh"


@pytest.mark.parametrize("page", (*PAGES, "CHANGELOG.md"))
def test_links_within_the_project_lead_somewhere(page):
    text = prose_of(page)
    targets = re.findall(r"\]\(([^)#\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    for target in targets:
        if not re.match(r"[a-z]+:", target):
            assert ((ROOT / page).parent / target).exists(), f"{page} leads to {target}, which is not there"
