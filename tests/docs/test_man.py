"""Manual pages: one per command, in roff that prints what the help says."""

import re
import shutil
import subprocess

import pytest

from docs.tools import man
from docs.tools.cli import commands_of
from woolly.cli.app import app


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    return man.write(tmp_path_factory.mktemp("man"))


def test_every_command_has_a_page(pages):
    names = {path.stem for path in pages}
    assert names == {"woolly"} | {f"woolly-{command.name}" for command in commands_of(app)}
    overview = pages[0].read_text()
    assert all(f"woolly\\-{command.name} (1)" in overview for command in commands_of(app))


def test_only_known_macros_start_a_line(pages):
    for path in pages:
        macros = {line.split()[0] for line in path.read_text().splitlines() if line.startswith((".", "'"))}
        assert macros <= {".TH", ".SH", ".TP", ".PP", ".B", ".BR"}, path.name


def test_dots_and_backslashes_are_escaped():
    assert man.escape(".TH x\n'a\\n --n") == "\\&.TH x\n\\&'a\\en \\-\\-n"


def test_options_are_listed_with_their_defaults(pages):
    (text,) = [path.read_text() for path in pages if path.stem == "woolly-run"]
    assert re.search(r"^\.B \\-\\-max\\-tokens, \\-n.*\n.*Default: ", text, re.M)


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff here")
def test_groff_has_no_warnings(pages):
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-Wbreak", "-z", *map(str, pages)], capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stderr == ""
