"""Settings: one table, four sources, one precedence."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from woolly import RequestError
from woolly.cli import app
from woolly.errors import StoreError
from woolly.serving import Settings, read_settings
from woolly.serving.configuration import environment_name
from woolly.serving.foreign import FOREIGN

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_flags_come_before_the_environment_before_the_file_before_the_defaults(folder):
    (folder / "woolly.toml").write_text("[serve]\nport = 1\nparallel = 2\ntop-k = 3\n")
    environment = {"WOOLLY_PORT": "10", "WOOLLY_PARALLEL": "20"}
    settings = read_settings({"port": 100}, environment)
    assert (settings.port, settings.parallel, settings.top_k, settings.draft_max) == (100, 20, 3, 8)


def test_the_file_may_be_named_and_must_then_exist(folder):
    (folder / "other.toml").write_text('[serve]\npreload = ["a", "b"]\ntimeout = 5\n')
    assert read_settings({"config": folder / "other.toml"}, {}).preload == ("a", "b")
    assert read_settings({}, {"WOOLLY_CONFIG": str(folder / "other.toml")}).timeout == 5.0
    with pytest.raises(RequestError, match="cannot be read"):
        read_settings({"config": folder / "missing.toml"}, {})


def test_lists_are_separated_by_commas_or_given_several_times(folder):
    assert read_settings({"api_key": ["a,b", "c"]}, {}).keys == ("a", "b", "c")
    assert read_settings({}, {"WOOLLY_API_KEY": "x, y"}).keys == ("x", "y")


def test_keys_of_the_file_are_added_and_comments_left_out(folder):
    (folder / "keys").write_text("# for the team\none\n\n  two \n")
    assert read_settings({"api_key": ["zero"], "api_key_file": folder / "keys"}, {}).keys == ("zero", "one", "two")


@pytest.mark.parametrize(
    ("flags", "environment", "file", "says"),
    [
        ({}, {"WOOLLY_PORT": "many"}, "", "WOOLLY_PORT is 'many'; a whole number"),
        ({}, {"WOOLLY_METRICS": "maybe"}, "", "true or false"),
        ({}, {}, "[serve]\nprot = 1\n", "prot, which is no setting"),
        ({}, {}, '[serve]\nport = "1"\n', "a value of type int"),
        ({}, {}, "[serve\n", "is no TOML"),
        ({"port": 70000}, {}, "", "at most 65535"),
        ({"parallel": 0}, {}, "", "at least 1"),
        ({"timeout": float("inf")}, {}, "", "timeout is inf"),
        ({"cache_type_k": "q4_0"}, {}, "", "cache_type_k is 'q4_0'; choose one of"),
        ({"cache_type_k": "q8_0", "cache_type_v": "f16"}, {}, "", "kept alike"),
        ({"cache_type_k": "q8_0", "optimized_inference": False}, {}, "", "reference backend"),
        ({"log_format": "xml"}, {}, "", "text, json"),
        ({"chat_template": "x", "chat_template_file": Path("y")}, {}, "", "given together"),
        ({"token_secret": "short"}, {}, "", "at least 32 characters"),
        ({"api_key": ["a b"]}, {}, "", "a header cannot carry"),
        ({"api_key_file": Path("missing")}, {}, "", "cannot be read"),
        ({"max_body": "much"}, {}, "", "bytes were expected"),
        ({"max_bodies": "much"}, {}, "", "bytes were expected"),
        ({"max_bodies": "1MB"}, {}, "", "max_bodies is 1MB, but one body may take 16MiB"),
        ({"max_session_size": "-1"}, {}, "", "max_session_size"),
        ({"max_sessions": 0}, {}, "", "max_sessions is 0; at least 1"),
        ({"top_p": 2.0}, {}, "", "top_p is 2.0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(folder, flags, environment, file, says):
    (folder / "woolly.toml").write_text(file)
    with pytest.raises(RequestError, match=re.escape(says)):
        read_settings(flags, environment)


def test_an_empty_key_file_lets_nobody_in_rather_than_everybody(folder):
    (folder / "keys").write_text("\n# none yet\n")
    with pytest.raises(RequestError, match="holds no key"):
        read_settings({"api_key_file": folder / "keys"}, {})


def test_every_setting_is_read_by_something():
    source = "".join(
        path.read_text() for path in (ROOT / "woolly" / "serving").rglob("*.py") if path.name != "configuration.py"
    )
    unread = [
        setting.name for setting in fields(Settings) if not re.search(rf"(settings|self)\.{setting.name}\b", source)
    ]
    assert not unread


def test_every_setting_is_a_flag_and_stands_in_the_docs():
    help_text = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "300", "TERMINAL_WIDTH": "300"}).output
    docs = (ROOT / "docs" / "serving.md").read_text()
    for setting in fields(Settings):
        for flag in setting.metadata["flags"]:
            for spelling in flag.split("/"):
                assert spelling in help_text, setting.name
                assert f"`{spelling}`" in docs, setting.name
        assert f"`{environment_name(setting.name)}`" in docs, setting.name


def test_the_help_has_a_panel_for_each_table_of_the_docs_in_their_order():
    invoked = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "300", "TERMINAL_WIDTH": "300"})
    panels = re.findall(r"^╭─ (.+?) ─", invoked.output, re.MULTILINE)
    docs = (ROOT / "docs" / "serving.md").read_text()
    tables = re.findall(r"^### (.+?)\n(.*?)(?=^#|\Z)", docs.partition("## Settings")[2], re.MULTILINE | re.DOTALL)
    assert panels == ["Options", *(name for name, _ in tables)] and len(panels) >= 6
    in_docs = [name for _, table in tables for name in re.findall(r"`(WOOLLY_\w+)`", table.rpartition("|")[0])]
    assert in_docs == [environment_name(setting.name) for setting in fields(Settings)]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("-ngl 99", "no GPU backend"), ("--n-gpu-layers all", "no GPU backend"), ("-fa off", "block by block"),
        ("-fa -m x", "only on or auto"), ("-nocb", "share steps"), ("--no-cont-batching", "share steps"),
        ("--mlock", "not locked"), ("--no-mmap", "mapped"), ("--numa distribute", "numactl"), ("-ts 3,1", "no GPU"),
        ("-nr", "packed"), ("--no-repack", "packed"), ("--embeddings", "embeddings"), ("-hf a/b", "woolly pull"),
        ("--no-jinja", "Jinja"), ("-tb 4", "--threads"), ("--mmproj x", "images"), ("-v", "--log-level debug"),
    ],
)  # fmt: skip
def test_a_flag_of_llama_server_that_means_nothing_here_is_refused_in_one_sentence(folder, flags, says):
    error = CliRunner().invoke(app, ["serve", *flags.split()]).exception
    assert isinstance(error, RequestError) and flags.split()[0] in str(error)
    assert says in str(error) and str(error).endswith("; leave it out")


@pytest.mark.parametrize(
    "flags", ["-ngl 0", "-fa on", "--flash-attn auto", "-cb", "--cont-batching", "--mmap", "-kvu", "--jinja", "-cmoe"]
)
def test_a_flag_of_llama_server_for_what_is_done_anyway_is_accepted(folder, flags):
    error = CliRunner().invoke(app, ["serve", *flags.split(), "-m", "missing.gguf"]).exception
    assert isinstance(error, StoreError) and "missing.gguf" in str(error)


def test_no_flag_of_others_hides_one_of_ours():
    ours = {name for setting in fields(Settings) for flag in setting.metadata["flags"] for name in flag.split("/")}
    theirs = [name for foreign in FOREIGN for name in foreign.flags.replace("/", " ").split()]
    assert len(theirs) == len(set(theirs)) and not ours & set(theirs)
    assert len({foreign.name for foreign in FOREIGN}) == len(FOREIGN)


def test_other_commands_do_not_load_the_web_framework():
    script = "import sys, woolly.cli; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"fastapi", "starlette", "uvicorn", "pydantic", "prometheus_client", "numpy"} & set(loaded)
