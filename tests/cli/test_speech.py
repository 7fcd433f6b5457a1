"""`woolly run MODEL --audio FILE` with a Whisper model: a line for each segment, and what is refused by name."""

import json

import pytest
from click.testing import CliRunner

from tests.cases.tiny import TINY, write_tiny
from tests.cases.whisper import waveform, write_whisper
from tests.multimodal.test_audio import wav
from woolly.cli.app import app
from woolly.cli.commands import launch
from woolly.cli.first_run.checkpoint import convert_checkpoint
from woolly.cli.parse import prompt
from woolly.cli.parse.usage_errors import UsageError
from woolly.errors import GGUFError, RequestError, StoreError, UnsupportedError
from woolly.speech import whisper


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speech")
    write_whisper(folder / "ggml-tiny.bin")
    (folder / "talk.wav").write_bytes(wav(waveform(3.0)))
    return folder


def run(folder, *words):
    return CliRunner().invoke(app, ["run", str(folder / "ggml-tiny.bin"), *words])


def test_transcript_is_printed_without_a_prompt(folder, monkeypatch):
    monkeypatch.setattr(whisper, "_MAX_NEW_TOKENS", 5)
    words = ("--audio", str(folder / "talk.wav"), "--temp", "0", "--language", "de", "--translate")
    shown = run(folder, *words)
    assert shown.exit_code == 0
    facts = json.loads(run(folder, *words, "--json").stdout)
    assert facts["seconds"] == 3.0 and facts["language"] == "de"
    assert [one["text"].strip() for one in facts["segments"]] == shown.stdout.splitlines()
    timed = json.loads(run(folder, *words, "--json", "--words").stdout)["segments"]
    assert [word["text"] for one in timed for word in one["words"]] == facts["text"].split()
    assert not any(one["words"] for one in facts["segments"])


def test_transcribe_prints_what_run_prints(folder, monkeypatch):
    monkeypatch.setattr(whisper, "_MAX_NEW_TOKENS", 5)
    model, talk = str(folder / "ggml-tiny.bin"), str(folder / "talk.wav")
    options = ("--temp", "0", "--language", "de", "--json", "--word-timestamps")
    shown = CliRunner().invoke(app, ["transcribe", model, talk, talk, *options])
    once = run(folder, "--audio", talk, *options)
    assert shown.exit_code == 0 and shown.stdout == once.stdout * 2
    other = write_tiny(TINY["llama"], folder / "tiny.gguf")
    with pytest.raises(UsageError, match="is not a speech-to-text model; choose whisper:base or parakeet"):
        raise CliRunner().invoke(app, ["transcribe", str(other), talk]).exception


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("Hello",), "add --audio FILE"),
        (("--audio", "talk.wav", "--top-k", "3"), "--top-k is not supported by speech-to-text models"),
        (("--audio", "talk.wav", "--system", "Be brief."), "--system is not supported by speech-to-text models"),
        (("--audio", "talk.wav", "--word-timestamps"), "--word-timestamps needs --json"),
        (("--audio", "talk.wav", "-n", "5"), "--max-tokens is not supported by speech-to-text models"),
    ],
)
def test_options_unused_by_transcription_are_rejected(folder, words, sentence, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(UsageError, match=sentence):
        raise run(folder, *words).exception


def test_unreadable_audio_file_reports_its_own_error(folder, tmp_path):
    whole = (folder / "ggml-tiny.bin").read_bytes()
    (tmp_path / "cut.bin").write_bytes(whole[: len(whole) // 2])
    words = ["run", str(tmp_path / "cut.bin"), "--audio", str(folder / "talk.wav")]
    with pytest.raises(GGUFError, match=r"cut\.bin"):
        raise CliRunner().invoke(app, words).exception


def test_whisper_model_of_the_catalogue_is_fetched(folder, monkeypatch):
    monkeypatch.setenv("WOOLLY_HOME", str(folder / "empty"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(StoreError, match=r"HF_HUB_OFFLINE is set, so .*ggml-base\.bin is not downloaded"):
        raise CliRunner().invoke(app, ["run", "whisper", "--audio", str(folder / "talk.wav")]).exception


@pytest.mark.parametrize("words", [("--language", "de"), ("--translate",), ("--word-timestamps",)])
def test_transcription_options_are_rejected_for_other_models(tmp_path, words):
    path = write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    advice = "choose whisper:base or parakeet" if words[0] == "--word-timestamps" else "say it in the prompt"
    with pytest.raises(UsageError, match=f"{words[0]} is for speech-to-text models; {advice}"):
        raise CliRunner().invoke(app, ["run", str(path), "Hello", *words]).exception


def test_model_without_audio_is_reported_before_a_missing_prompt(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path))
    path = write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    for words in (["--audio", str(folder / "talk.wav")], [str(path), "--audio", str(folder / "talk.wav")]):
        with pytest.raises(RequestError, match=r"does not support audio: .*; choose .* .whisper:base and parakeet"):
            raise CliRunner().invoke(app, ["run", *words]).exception
    with pytest.raises(
        RequestError, match=r"tiny\.gguf does not support images: no projector .*; choose a model that does"
    ):
        raise CliRunner().invoke(app, ["run", str(path), "--image", str(folder / "talk.wav")]).exception


@pytest.mark.parametrize("words", [["run", "a.nemo", "--audio", "a.nemo"], ["convert", "a.nemo", "a.gguf"]])
def test_nemo_archive_is_rejected_by_name(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.nemo").touch()
    with pytest.raises(UnsupportedError, match=r"a\.nemo: NeMo archives are not supported; `woolly pull parakeet`"):
        raise CliRunner().invoke(app, words).exception


def test_prompt_may_end_like_an_archive_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prompt, "_waiting_input", lambda: "")
    assert convert_checkpoint("finding.nemo") == "finding.nemo"
    assert prompt.model_and_prompt(["finding.nemo"], None, None) == (None, "finding.nemo")
    assert capsys.readouterr().err == "woolly: there is no file finding.nemo, so it is the prompt; -m names a model\n"
    (tmp_path / "a.mlmodel").mkdir()
    assert prompt.model_and_prompt(["a.mlmodel"], None, None) == (None, "a.mlmodel")
    said = "woolly: a.mlmodel is a folder, and taken for the prompt; as a model: -m a.mlmodel\n"
    assert capsys.readouterr().err == said
    assert prompt.model_and_prompt(["Finding Nemo."], None, None) == (None, "Finding Nemo.")
    assert not capsys.readouterr().err


@pytest.mark.parametrize("words", [["run", "whisper:base.en", "Hello"], ["chat", "whisper:base.en"]])
def test_nothing_is_fetched_before_an_error(tmp_path, monkeypatch, words):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(RequestError, match="speech-to-text model"):
        raise CliRunner().invoke(app, words, input="hi\n").exception


def test_show_and_list_mention_transcription(folder, monkeypatch):
    monkeypatch.setenv("WOOLLY_HOME", str(folder / "home"))
    (folder / "home" / "models").mkdir(parents=True)
    (folder / "home" / "models" / "ggml-tiny.bin").hardlink_to(folder / "ggml-tiny.bin")
    listed = CliRunner().invoke(app, ["list", "--json"]).stdout
    assert [one["name"] for one in json.loads(listed)] == ["ggml-tiny"]
    assert "speech-to-text" in CliRunner().invoke(app, ["list"], env={"COLUMNS": "200"}).stdout


def test_chat_is_rejected_at_opening(folder):
    reply = CliRunner().invoke(app, ["chat", str(folder / "ggml-tiny.bin")], input="hi\n")
    assert reply.exit_code != 0
    with pytest.raises(RequestError, match="this is a speech-to-text model and cannot chat; use `woolly run"):
        raise reply.exception


def test_no_agent_is_launched_with_a_speech_model(folder):
    with pytest.raises(RequestError, match="transcribes and cannot chat: an agent needs a chat model"):
        launch._local(str(folder / "ggml-tiny.bin"), may_fetch=False)
