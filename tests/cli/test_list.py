"""`woolly list` and `rm`: what is in each file, why one cannot be run, and what is removed."""

import json
import re
import struct

import pytest
from click.testing import CliRunner

from tests.cases.projectors import write_header
from tests.cases.tiny import TINY, write_tiny
from tests.cases.towers import TOWERS, write_tower
from tests.cli.terminal import Terminal, woolly
from tests.store.hub import Hub
from woolly import gguf
from woolly.cli.app import app
from woolly.cli.commands import pull as pulling
from woolly.cli.parse.options import complete_model, complete_pullable
from woolly.cli.parse.usage_errors import UsageError
from woolly.engine.multimodal import tower_bytes
from woolly.errors import StoreError, UnsupportedError
from woolly.llm import projector
from woolly.models import architectures
from woolly.serving.model_manager.catalog import ModelCatalog
from woolly.store import all_families


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny(TINY["granite"], tmp_path_factory.mktemp("list") / "tiny.gguf")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path / "woolly"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "OLLAMA_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "woolly" / "models"
    folder.mkdir(parents=True)
    return folder


def text(data):
    return struct.pack("<Q", len(data)) + data


def test_list_says_what_each_file_contains_and_why_it_cannot_run(folder, model, monkeypatch):
    (folder / "good-Q4_K_M.gguf").symlink_to(model)
    architecture = text(b"general.architecture") + struct.pack("<I", 8) + text(b"sheep\xff")
    (folder / "other.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + architecture)
    (folder / "torn.gguf").write_bytes(b"GGUF")
    good, other, torn = json.loads(woolly("list", "--json"))
    assert (good["name"], good["quantization"], good["architecture"]) == ("good-Q4_K_M", "Q4_K_M", "granite")
    assert good["parameters"] > 1000 and good["cannot_run"] is None and good["link_to"] == str(model)
    assert other["architecture"] == "sheep\ufffd" and "is not supported yet" in other["cannot_run"]
    assert torn["architecture"] is None and torn["cannot_run"]
    head, first, second, _ = woolly("list").splitlines()
    assert head.split()[:5] == ["name", "size", "quantization", "architecture", "parameters"]
    assert f"link to {model}" in first and "cannot run: architecture 'sheep" in second
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # a console of Rich takes the pipe for a terminal
    monkeypatch.setenv("COLUMNS", "300")
    lines = woolly("list").splitlines()
    assert lines[2].rstrip().endswith("cannot be run") and lines[-2].startswith("other cannot run: architecture")


def test_file_that_exhausts_memory_does_not_end_the_list(folder, model, monkeypatch):
    (folder / "bad.gguf").symlink_to(model)
    (folder / "good.gguf").write_bytes(model.read_bytes())
    opened = gguf.open_gguf

    def greedy(path):
        if path.name == "good.gguf":
            return opened(path)
        raise MemoryError

    monkeypatch.setattr(gguf, "open_gguf", greedy)
    monkeypatch.setattr(projector, "open_gguf", greedy)
    write_header(folder / "mmproj-good.gguf")
    bad, good = json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)
    assert bad["cannot_run"] == "the file cannot be read: MemoryError()" and bad["sees"] == []
    assert good["cannot_run"] is None


def test_list_and_show_report_vision(folder, model):
    (folder / "good-Q4_K_M.gguf").symlink_to(model)
    write_header(folder / "mmproj-good-F16.gguf")
    (good,) = json.loads(woolly("list", "--json"))
    assert good["sees"] == ["image"]
    assert "vision" in woolly("list")
    images = json.loads(woolly("show", "good-Q4_K_M", "--json"))["pictures"]
    assert images["projector"] == str(folder / "mmproj-good-F16.gguf") and images["type"] == "gemma3"
    assert "\nimages  mmproj-good-F16.gguf (" in woolly("show", "good-Q4_K_M")
    write_header(folder / "mmproj-good-F16.gguf", "sheep")
    (good,) = json.loads(woolly("list", "--json"))
    assert good["sees"] == []
    assert "projector type 'sheep' is not supported" in woolly("show", "good-Q4_K_M")


def test_show_counts_tower_memory(folder, model):
    (folder / "good-Q4_K_M.gguf").symlink_to(model)
    plain = json.loads(woolly("show", "good-Q4_K_M", "--json"))["memory"]
    tower = write_tower(TOWERS["gemma3"], folder / "mmproj-good-F16.gguf")
    with_tower = json.loads(woolly("show", "good-Q4_K_M", "--json"))["memory"]
    assert with_tower["tower"] == tower_bytes(tower) > 0 and with_tower["total"] == plain["total"] + with_tower["tower"]
    assert ", for images " in woolly("show", "good-Q4_K_M")


def test_link_is_removed_and_its_target_stays(folder, model):
    (folder / "mine.gguf").symlink_to(model)
    assert woolly("rm", "mine") == f"removed the link mine; the file is unchanged: {model}\n"
    assert model.exists() and not (folder / "mine.gguf").exists()


def test_list_has_the_catalogue_and_the_architectures(folder):
    assert woolly("list", "--architectures").split() == list(architectures())
    assert json.loads(woolly("list", "--architectures", "--json")) == list(architectures())
    shown = woolly("list", "--catalogue", "--all").splitlines()
    assert any(line.startswith("qwen3:4b ") and " yes " in line for line in shown)
    rows = {row["name"]: row for row in json.loads(woolly("list", "--catalogue", "--json"))}
    assert rows["qwen3:4b"]["hub"] == "hf:Qwen/Qwen3-4B-GGUF:Q4_K_M"
    for row in rows.values():
        not_yet = row["runs_here"] == f"not yet ({row['architecture']})"
        assert not_yet == (row["architecture"] not in architectures()), row["name"]


def test_catalogue_marks_models_too_large_for_this_machine(folder, monkeypatch):
    from woolly.cli.commands import list_catalogue
    from woolly.machine.capacity import Capacity

    monkeypatch.setattr(list_catalogue, "machine_capacity", lambda: Capacity(20 * 10**9, 24 * 10**9, 10**12))
    rows = {row["name"]: row["runs_here"] for row in json.loads(woolly("list", "--catalogue", "--json"))}
    assert rows["qwen3.5:4b"] == "yes" and rows["qwen3.8:27b"] == "tight"
    assert rows["llama3.3:70b"] == rows["llama4:scout"] == rows["qwen3.8:flash-next"] == "too large"


def test_catalogue_shows_what_runs_well_first(folder, monkeypatch):
    from woolly.cli.commands import list_catalogue
    from woolly.cli.first_run import recommendation
    from woolly.machine.capacity import Capacity

    for module in (list_catalogue, recommendation):
        monkeypatch.setattr(module, "machine_capacity", lambda: Capacity(12 * 10**9, 16 * 10**9, 10**12))
    monkeypatch.setattr(recommendation, "_bandwidth", lambda n_bytes: 45e9)
    rows = json.loads(woolly("list", "--catalogue", "--json"))
    assert rows[0]["name"] == "qwen3.5:4b" and 10 < rows[0]["tokens_per_second"] < 13
    assert [row["runs_well"] for row in rows] == sorted((row["runs_well"] for row in rows), reverse=True)
    shown, whole = (woolly("list", "--catalogue", *more).splitlines() for more in ((), ("--all",)))
    assert shown[0].split()[:4] == ["name", "size", "parameters", "tokens/s"] and shown[1].startswith("qwen3.5:4b ")
    assert len(shown) - 1 == sum(row["runs_well"] for row in rows) < len(whole) - 1 == len(rows)
    assert not any(line.startswith("qwen3.8:27b ") for line in shown)
    # The bare name of a family means the largest size that runs well; without one, the smallest that fits.
    for family, size in (("qwen3.5", "4b"), ("qwen3", "4b-2507"), ("llama3.2", "3b"), ("qwen3.8", None)):
        assert recommendation.choose_size(family) == (family if size is None else f"{family}:{size}")
    for name in ("qwen3:8b", "smollm2", "whisper", "nomic-embed-text", "org/repo"):
        assert recommendation.choose_size(name) == name


def test_all_needs_the_catalogue(folder):
    with pytest.raises(UsageError, match="--all needs --catalogue"):
        woolly("list", "--all")


def test_catalogue_marks_unsupported_architectures(folder, monkeypatch):
    monkeypatch.setattr("woolly.models.architectures", lambda: ("qwen35",))
    rows = {row["name"]: row["runs_here"] for row in json.loads(woolly("list", "--catalogue", "--json"))}
    assert rows["qwen3.8:flash-next"] == "not yet (qwen4exp)" and "not yet" not in rows["qwen3.8:27b"]


def test_narrow_terminal_shows_full_catalogue_names(tmp_path):
    with Terminal("list", "--catalogue", "--all", home=tmp_path) as terminal:
        screen = terminal.rest()
        assert terminal.ended() == 0
    assert "gte-reranker-modernbert:150m" in screen and "…" not in screen and "hf:" not in screen


def test_list_and_server_use_the_same_names(folder, model):
    for place in (
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "own.gguf",
        "hf/Qwen/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf",
        "hf/Qwen/Qwen3-4B-GGUF/Qwen3-4B-Q8_0.gguf",
        "hf/org/repo/x-Q4_0.gguf",
    ):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(model.read_bytes())
    listed = {entry["name"]: entry["aliases"] for entry in json.loads(woolly("list", "--json"))}
    assert set(listed) == {"smollm2", "own", "qwen3:4b", "qwen3:4b-q8_0", "hf:org/repo/x-Q4_0.gguf"}
    catalog = ModelCatalog(folder)
    # The server also answers to repository:type.
    assert {info.name: list(info.aliases)[: len(listed[info.name])] for info in catalog.list()} == listed
    assert catalog.find("Qwen3-4B-Q4_K_M").name == catalog.find("QWEN3:4b").name == "qwen3:4b"
    assert woolly("plan", "qwen3:4b").startswith("step")
    assert woolly("rm", "qwen3:4b-q8_0", "hf.co/Qwen/Qwen3-4B-GGUF").startswith("removed qwen3:4b-q8_0 (")


def test_first_run_announces_the_download(folder, model, monkeypatch):
    hub = Hub()
    hub.repos["bartowski/Llama-3.2-1B-Instruct-GGUF"] = {"Llama-3.2-1B-Instruct-Q4_K_M.gguf": model.read_bytes()}
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    try:
        for reported in ("woolly: llama3.2:1b is not on this machine; downloading 1 MB\n", ""):
            result = CliRunner().invoke(app, ["run", "llama3.2:1b", "hi", "-n", "2"])
            assert (result.exit_code, result.stderr) == (0, reported)
        assert "granite" in woolly("show", "llama3.2:1b")
        assert CliRunner().invoke(app, ["run", "llama3.2", "hi", "-n", "2"]).stderr == ""  # the size that is here
        with pytest.raises(StoreError, match=r"no repository hf:bartowski/Llama-3\.2-3B-Instruct-GGUF on the hub"):
            woolly("run", "llama3.2:3b", "hi")
    finally:
        hub.close()


@pytest.mark.parametrize("flag", ["-hf", "--hf-repo"])
def test_repository_is_fetched_as_llama_cpp_does(folder, model, monkeypatch, flag):
    hub = Hub()
    hub.repos["org/wool-GGUF"] = {"wool-Q4_K_M.gguf": model.read_bytes(), "wool-Q8_0.gguf": b"GGUF" + bytes(99)}
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    try:
        for reported in ("woolly: hf:org/wool-GGUF is not on this machine; downloading 1 MB\n", ""):
            result = CliRunner().invoke(app, ["run", flag, "org/wool-GGUF", "hi", "-n", "2"])
            assert (result.exit_code, result.stderr) == (0, reported), result.output
        result = CliRunner().invoke(app, ["chat", flag, "org/wool-GGUF:q4_k_m", "-n", "2"], input="hi\n")
        assert (result.exit_code, result.stderr) == (0, ""), result.output
        settings = []
        monkeypatch.setattr("woolly.serving.lifecycle.http_server.run", lambda given, end: settings.append(given))
        CliRunner().invoke(app, ["serve", flag, "org/wool-GGUF:Q4_K_M", "--models-dir", str(folder)])
        assert settings[0].model == "hf:org/wool-GGUF:Q4_K_M"
        assert len(hub.sent("cdn/")) == 1
    finally:
        hub.close()


def test_missing_model_is_announced_as_a_download(folder):
    with pytest.raises(
        UsageError, match=r"qwen2\.5:0\.5b is a model; .*; it is not here yet, so its file is downloaded"
    ) as error:
        woolly("run", "qwen2.5:0.5b")
    assert str(error.value).endswith("first (hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M, ~0.5 GB)")


def test_show_and_run_mean_the_size_that_pull_chooses(folder, model, monkeypatch):
    from woolly.cli.first_run import recommendation
    from woolly.machine.capacity import Capacity

    monkeypatch.setattr(recommendation, "machine_capacity", lambda: Capacity(12 * 10**9, 16 * 10**9, 10**12))
    monkeypatch.setattr(recommendation, "_bandwidth", lambda n_bytes: 45e9)
    hub = Hub()
    hub.repos["unsloth/Qwen3.5-4B-GGUF"] = {"Qwen3.5-4B-Q4_K_M.gguf": model.read_bytes()}
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    try:
        result = CliRunner().invoke(app, ["show", "qwen3.5"])
    finally:
        hub.close()
    assert result.exit_code == 0 and "qwen3.5 means qwen3.5:4b on this machine" in result.stderr
    with pytest.raises(UsageError, match=r"qwen3\.5 is a model; .*\(hf:unsloth/Qwen3\.5-4B-GGUF:Q4_K_M, "):
        woolly("run", "qwen3.5")


def test_unrunnable_model_is_not_fetched(folder, monkeypatch):
    monkeypatch.setattr(pulling, "pull_with_progress", lambda *_: pytest.fail("fetched"))
    name, family = next(iter(all_families().items()))
    monkeypatch.setattr("woolly.models.architectures", lambda: ["nobody"])
    says = f"{name} has the architecture {next(iter(family.tags.values())).architecture}, which Woolly does not run"
    with pytest.raises(UnsupportedError, match=re.escape(says)):
        woolly("run", name, "hi")


def test_model_names_are_completed_for_every_command(folder, monkeypatch):
    (folder / "wool.gguf").touch()
    (folder / "hf" / "a" / "b").mkdir(parents=True)
    (folder / "hf" / "a" / "b" / "x.gguf").touch()
    for command, name in {"run": "words", "show": "model", "serve": "model", "rm": "names", "chat": "model"}.items():
        declared = app.get_command(None, command)
        parameter = next(one for one in declared.params if one.name == name)
        assert "wool" in [item.value for item in parameter.shell_complete(None, "wo")], command
    # In every shell: bash gets what stands before a colon (its completion splits words there).
    for shell in (None, "zsh_complete"):
        if shell is not None:
            monkeypatch.setenv("_WOOLLY_COMPLETE", shell)
        assert complete_model("") == ["hf:a/b/x.gguf", "smollm2", "wool"]
        assert {"qwen3-coder", "qwen3:4b"} <= set(complete_pullable("qw"))
