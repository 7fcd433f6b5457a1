"""The first answer: a better model is offered, fetched and remembered; scripts are asked nothing."""

import json
import shutil
import threading
import time

import pytest
from click.testing import CliRunner

from tests.cases.tiny import TINY, write_tiny
from tests.cli.terminal import Terminal, woolly
from tests.store.hub import Hub
from woolly.cli.app import app
from woolly.cli.first_run import model_offer, recommendation, state_file
from woolly.cli.first_run.state_file import FirstRunState, default_model, read_state, save_state
from woolly.machine.capacity import Capacity

REPO = "org/wool-GGUF"
TAG = {"repo": REPO, "quant": "Q4_K_M", "architecture": "granite", "parameters": 10**6, "size": 10**6, "licence": "MIT"}
ASK = ("run", "Hi", "-n", "2", "-t", "1", "--ctx", "64", "--temp", "0")


@pytest.fixture
def home(tmp_path, smollm2, monkeypatch):
    """A home with the default model, and a catalogue that suggests a tiny one."""
    models = tmp_path / "models"
    models.mkdir()
    for path in smollm2.parent.glob(f"{smollm2.name}*"):
        if path.name == smollm2.name:
            (models / path.name).symlink_to(path)
        elif path.is_file():
            shutil.copy(path, models)
    catalogue = {"format": 1, "updated": "2099-01-01", "suggested": ["wool:1m"], "nameless": {}}
    catalogue["families"] = {"wool": {"kind": "chat", "tags": {"1m": TAG}}}
    (tmp_path / "catalogue.json").write_text(json.dumps(catalogue))
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return tmp_path


@pytest.fixture
def hub(tmp_path_factory):
    hub = Hub()
    tiny = write_tiny(TINY["granite"], tmp_path_factory.mktemp("hub") / "tiny.gguf")
    hub.repos[REPO] = {"wool-Q4_K_M.gguf": tiny.read_bytes()}
    yield hub
    hub.close()


def pressed(terminal, key, shown):
    """Press a key until it is read: one that comes before the question waits for keys is dropped."""
    time.sleep(0.2)
    terminal.press(key)
    terminal.until(shown, again=key)


def state(home):
    return json.loads((home / "start.json").read_text())


def test_enter_fetches_the_better_model_and_both_answer(home, hub):
    with Terminal(*ASK, home=home, HF_ENDPOINT=hub.url) as terminal:
        reported = " ".join(terminal.until("Enter to download, s to stay with smollm2:").split())
        assert (
            "wool:1m answers far better: 0.00 GB to download" in reported
            and "licence" in reported
            and "tokens/s" in reported
        )
        pressed(terminal, "\r", "fetching wool:1m; smollm2 answers meanwhile")
        terminal.until("wool:1m answers:")
        rest = terminal.rest()
        assert terminal.ended() == 0
    assert [word in rest for word in ("woolly chat", "woolly serve", "woolly launch claude")] == [True] * 3
    assert state(home) == {"has_answered": True, "model": "wool:1m", "unreached": 0}
    with Terminal(*ASK, home=home, HF_ENDPOINT=hub.url) as terminal:
        rest = terminal.rest()
    assert "Enter" not in rest and "toy" not in rest and "woolly chat" not in rest
    assert json.loads(woolly("run", "Hi", "-n", "2", "--json"))["model"].endswith("wool-Q4_K_M.gguf")


def test_s_keeps_the_small_model_for_good(home, hub):
    for question in (True, False):
        with Terminal(*ASK, home=home, HF_ENDPOINT=hub.url) as terminal:
            if question:
                terminal.until("Enter to download, s to stay with smollm2: ")
                pressed(terminal, "s", "smollm2")
            rest = terminal.rest()
        assert "Enter to" not in rest and "answers better" not in rest
    assert state(home)["model"] == "smollm2" and not hub.sent("cdn/")


def test_without_the_hub_the_small_model_answers_and_suggests_a_better_one(home):
    with Terminal(*ASK, home=home, HF_ENDPOINT="http://127.0.0.1:9") as terminal:
        rest = " ".join(terminal.rest().split())
        assert terminal.ended() == 0
    assert "smollm2 is a toy of 98 MB: woolly pull wool:1m (0.00 GB, fits here" in rest and "Enter" not in rest
    assert time.time() - state(home)["unreached"] < 600 and state(home)["model"] is None


def test_offline_is_not_asked(home, hub):
    with Terminal(*ASK, home=home, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1") as terminal:
        assert "Enter" not in terminal.rest()
    assert hub.log == []


def test_script_is_not_asked_and_fetches_nothing(home, hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    for more in ((), ("--json",)):
        result = CliRunner().invoke(app, [*ASK, *more])
        assert (result.exit_code, result.stderr) == (0, "")
    assert hub.log == [] and not (home / "start.json").exists()


def test_local_model_is_offered_without_a_download(home, hub):
    place = home / "models" / "hf" / REPO
    place.mkdir(parents=True)
    (place / "wool-Q4_K_M.gguf").write_bytes(hub.repos[REPO]["wool-Q4_K_M.gguf"])
    with Terminal(*ASK, home=home, HF_ENDPOINT="http://127.0.0.1:9") as terminal:
        reported = " ".join(terminal.until("Enter to use wool:1m, s to stay with smollm2: ").split())
        assert "wool:1m answers far better: it is here, licence" in reported
        pressed(terminal, "\r", "wool:1m")
        assert "smollm2 answers" not in terminal.rest()
        assert terminal.ended() == 0
    assert state(home)["model"] == "wool:1m"


def test_chosen_model_is_the_default_of_run_chat_and_launch(home, hub):
    place = home / "models" / "hf" / REPO
    place.mkdir(parents=True)
    (place / "wool-Q4_K_M.gguf").write_bytes(hub.repos[REPO]["wool-Q4_K_M.gguf"])
    save_state(model="wool:1m")
    assert default_model() == "wool:1m"
    assert json.loads(woolly("run", "Hi", "-n", "2", "--json"))["model"].endswith("wool-Q4_K_M.gguf")
    assert "wool-Q4_K_M.gguf" in woolly("launch", "claude", "--dry-run", "--url", "127.0.0.1:9")
    (place / "wool-Q4_K_M.gguf").unlink()
    assert default_model() == "smollm2"


def test_failed_download_is_reported_after_the_answer(home, hub):
    hub.repos.clear()
    with Terminal(*ASK, home=home, HF_ENDPOINT=hub.url) as terminal:
        terminal.until("s to stay with smollm2: ")
        pressed(terminal, "\r", "answers meanwhile")
        assert "error: there is no repository hf:org/wool-GGUF" in " ".join(terminal.rest().split())
        assert terminal.ended() == 1
    assert default_model() == "smollm2"  # what was chosen is not here


def test_ctrl_c_during_a_download_says_how_to_resume(monkeypatch, capsys):
    begun = threading.Event()

    def pull(name, progress):
        progress(7_000_000, 9_000_000)
        begun.set()
        threading.Event().wait(60)

    def interrupted(self, timeout):
        raise KeyboardInterrupt

    monkeypatch.setattr("woolly.store.pull", pull)
    download = model_offer.Download("wool:1m")
    assert begun.wait(60)
    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        download.wait()
    assert "7 MB are kept, and `woolly pull wool:1m` goes on from there" in capsys.readouterr().err


def test_remembered_choice_survives_damage_and_read_only_folder(home, monkeypatch):
    assert read_state() == FirstRunState()
    save_state(model="wool:1m")
    assert read_state().model == "wool:1m" and not read_state().is_settled
    for text in ("{", "[]", '{"has_answered": 1, "model": 3, "unreached": 0}'):
        (home / "start.json").write_text(text)
        assert read_state() == FirstRunState()
    monkeypatch.setattr(state_file, "_file", lambda: home / "catalogue.json" / "start.json")
    save_state(model="smollm2")
    assert read_state() == FirstRunState()


@pytest.mark.parametrize(
    ("gigabytes_per_second", "memory_gb", "name"),
    [
        (200, 64, "qwen3.5:9b"),
        (45, 16, "qwen3.5:4b"),
        (45, 4, "qwen3.5:2b"),
        (12, 16, "qwen3.5:0.8b"),
        (45, 1.3, "qwen3.5:0.8b"),
        (2, 16, "qwen3.5:0.8b"),
        (2, 0.5, None),
    ],
)
def test_best_model_that_is_fast_and_fits_is_suggested(tmp_path, monkeypatch, gigabytes_per_second, memory_gb, name):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path))
    memory_bytes = int(memory_gb * 10**9)
    monkeypatch.setattr(recommendation, "machine_capacity", lambda: Capacity(memory_bytes, memory_bytes, 10**12))
    monkeypatch.setattr(recommendation, "_bandwidth", lambda n_bytes: gigabytes_per_second * 1e9)
    found = recommendation.recommend()
    assert (found and found.name) == name
    assert found is None or (
        found.is_fast == (gigabytes_per_second > 2) and found.minutes.endswith("at 100 Mbit/s") and not found.is_here
    )


def test_unresponsive_hub_is_waited_for_at_most_two_seconds(home, monkeypatch):
    waits = []
    monkeypatch.setattr(model_offer._Reached, "within", lambda self, seconds: waits.append(seconds) or False)
    monkeypatch.setattr(model_offer, "_is_answered", lambda: True)
    assert model_offer.offer() is None and waits == [2.0]
    assert model_offer.offer() is None and waits == [2.0]  # nor is it asked again at once
