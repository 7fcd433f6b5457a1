"""docs/make/add-an-option.md: one row makes a keyword, flags, a setting, its variable, its key and its reference."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from woolly.llm import LLM
from woolly.llm.model_options import EngineOptions, LoadOptions, ModelOptions, rows_of
from woolly.serving.settings.table import Settings

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path("woolly/llm/model_options.py")
RECIPE = (ROOT / "docs/make/add-an-option.md").read_text()

# The program of a copy of the table with one row more. It prints what follows from the row.
PROGRAM = """
import sys, types
from pathlib import Path
table = types.ModuleType("woolly.llm.model_options")
sys.modules[table.__name__] = table
exec(compile(Path("table.py").read_text(), "table.py", "exec"), table.__dict__)

import importlib.util, inspect
from woolly.errors import RequestError
from woolly.llm import LLM
from woolly.serving.settings.configuration import read_settings

def page(name):
    spec = importlib.util.spec_from_file_location(name + "_page", Path(sys.argv[1]) / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [line for line in module.reference().splitlines() if "--patience" in line]

def of(flags=None, environment=None):
    return read_settings(flags or {}, environment or {}).model_options().patience

Path("woolly.toml").write_text("[serve]\\npatience = 7\\n")
print("file", of())
print("environment", of(environment={"WOOLLY_PATIENCE": "8"}))
print("flag", of({"patience": 9}, {"WOOLLY_PATIENCE": "8"}))
Path("woolly.toml").unlink()
print("default", of())
try:
    of({"patience": 0})
except RequestError as error:
    print("refused", error)
print("keyword", inspect.signature(LLM).parameters["patience"])
print("settings", *page("settings"))
print("commands", *page("cli"))
"""


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """Output lines of the program, by their first word."""
    folder = tmp_path_factory.mktemp("option")
    row, hint = re.findall(r"```text\n(.*?)```", RECIPE, flags=re.S)[:2]
    source = (ROOT / TABLE).read_text()
    first, typed = "    threads: int | None = option(", "class LoadOptions(TypedDict, total=False):"
    assert source.count(first) == source.count(typed) == 1
    indented = "".join(f"    {line}\n" if line else "\n" for line in row.splitlines())
    source = source.replace(first, indented + first).replace(
        "\n    backend: str\n", f"\n    backend: str\n    {hint}", 1
    )
    (folder / "table.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ROOT / "docs" / "tools"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def test_row_adds_a_setting_from_each_source(lines):
    assert (lines["file"], lines["environment"], lines["flag"], lines["default"]) == ("7", "8", "9", "3")
    assert lines["refused"] == "patience is 0; expected at least 1"


def test_row_adds_a_flag_to_each_generating_command(lines):
    row = "| `--patience` | Seconds that a cold device may take. Default: 3. |"
    plain = row.replace(" Default: 3.", "")
    assert lines["commands"] == " ".join([plain, plain, row, plain])  # run, chat, serve, transcribe


def test_row_adds_a_keyword_and_a_reference_line(lines):
    assert lines["keyword"] == "patience: 'int' = 3"
    assert "`--patience` | `WOOLLY_PATIENCE` | 3 |" in lines["settings"]


def test_type_checkers_see_the_keywords_of_the_rows():
    assert set(LoadOptions.__annotations__) == set(rows_of()) == set(vars(ModelOptions()))


def test_settings_have_the_defaults_of_the_rows():
    for row in rows_of().values():
        if row.setting is not None:
            assert getattr(Settings(), row.setting_name) == row.default, row.name
    assert set(rows_of(EngineOptions)) <= set(vars(Settings()))


def test_every_option_is_used_by_the_library():
    source = "".join(path.read_text() for path in (ROOT / "woolly" / "llm").glob("*.py"))
    assert [name for name in rows_of() if not re.search(rf"\bgiven\.{name}\b", source)] == []


def test_unknown_option_error_suggests_the_right_one():
    with pytest.raises(TypeError, match="did you mean gpu_layers"):
        LLM("x", gpu_layer=3)
