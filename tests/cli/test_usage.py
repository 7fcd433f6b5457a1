"""Usage errors are one sentence with a suggestion, and llama.cpp's flags work."""

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from tests.cases import fork_server
from tests.cases.tiny import TINY, write_tiny
from tests.cli.terminal import woolly
from woolly import SamplingParams
from woolly.cli.app import COMMANDS, app
from woolly.cli.commands.run import run
from woolly.cli.parse.help import sections_of
from woolly.cli.parse.options import ENGINE
from woolly.cli.parse.sampling import SAMPLING, sampling_params
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.human_readable import plural
from woolly.errors import DeviceError, RequestError, StoreError
from woolly.machine import background_load
from woolly.machine.background_load import OtherLoad
from woolly.runtime.cuda import libcuda
from woolly.store import WHEEL_MODELS, Preset


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny(TINY["granite"], tmp_path_factory.mktemp("usage") / "tiny.gguf")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("serve --prot 8080", "unknown option --prot of woolly serve: did you mean --port"),
        ("run hello --seeed 3", "unknown option --seeed of woolly run: did you mean --seed"),
        ("run hello --zzz", "unknown option --zzz of woolly run: `woolly run --help` lists"),
        ("--verson", "unknown option --verson of woolly: did you mean --version"),
        ("chta", "unknown command 'chta': did you mean chat?"),
        ("push x", "unknown command 'push': Woolly uploads no models"),
        ("logs", "unknown command 'logs': `woolly serve` writes its log to standard error"),
        ("run hello --stages A,B", "unknown option --stages of woolly run: `woolly serve` takes it"),
        ("list --top-k 3", "unknown option --top-k of woolly list: `woolly run` and `woolly chat` take it"),
        ("help fly", "unknown command 'fly'"),
        ("run hello --rope-freq-scale x", "--rope-freq-scale is 'x'; expected a factor such as 0.5"),
        (
            "embed hello -hf org/repo",
            "woolly embed does not support -hf org/repo: download it with `woolly pull hf:org/repo:QUANT`",
        ),
        ("run hello -hf repo", "-hf is 'repo'; expected org/repo or org/repo:QUANT"),
        ("run hello -m x -hf org/repo", "two models are given, x and -hf org/repo; omit one of them"),
        ("serve -m x -hf org/repo", "two models are given, x and -hf org/repo; omit one of them"),
        ("chat x -hf org/repo", "two models are given, x and -m hf:org/repo; omit one of them"),
        ("run hello -hff x.gguf", "-hff is x.gguf, but its repository is missing; add -hf org/repo"),
        ("serve -hff x.gguf", "-hff is x.gguf, but its repository is missing; add -hf org/repo"),
        (
            "chat -hf org/repo -hff ../x.gguf",
            "-hf is 'org/repo' and -hff '../x.gguf'; expected org/repo and a file in it",
        ),
        ("embed hello -hff x.gguf", "-hf org/repo:QUANT chooses a file"),
        ("serve m --keepalive soon", "--keepalive is 'soon'; expected a duration such as 5m, or -1 for no limit"),
        ("serve m --keepalive 0", "--keepalive is 0; expected more, such as 1s"),
        ("run hello -cnv", "woolly run does not support -cnv: use `woolly chat`"),
        ("run hello --ctx", "--ctx needs a value"),
        ("run hello --top-k x", "--top-k is 'x'; expected an integer"),
        ("run hello --top-p x", "--top-p is 'x'; expected a number"),
        ("run hello --mirostat-lr 1", "--mirostat-lr is 1.0, but has no effect with --mirostat=0"),
        ("run hello -n -5", "-n is -5; expected an integer of at least 1, or -1 for no limit"),
        ("run hello --json-schema {a:1}", "--json-schema is neither a file nor JSON: line 1, column 2"),
        ("run hello --mirostat 3", "--mirostat is 3; expected an integer of at least 0 and at most 2"),
        ("run hello --samplers top_q", "--samplers has unknown sampler 'top_q'; expected"),
        ("run hello --logit-bias 5", "--logit-bias is '5'; expected a token id and its bias"),
        ("quantize a.gguf", "missing argument OUT: woolly quantize [OPTIONS] IN OUT [TYPE]"),
        ("plan a b", "unexpected argument 'b': woolly plan [OPTIONS] [MODEL]"),
        ("serve a.gguf -m b.gguf", "two models are given, a.gguf and -m b.gguf; omit one of them"),
        ("serve a.gguf b.gguf", "unexpected argument 'b.gguf': woolly serve [OPTIONS] [MODEL]"),
        ("list --format json", "--json prints one JSON object"),
        ("show", "missing model; expected the path of a GGUF file or a name from `woolly list`"),
        ("bench", "missing model"),
        ("run a/b c d", 'put the prompt in "quotes"'),
        ("run -m a -p b c", "the prompt is given twice, as 'c' and with -p"),
    ],
)
def test_typo_error_suggests_the_option(line, expected):
    with pytest.raises(UsageError) as reported:
        woolly(*line.split())
    assert expected in str(reported.value)
    assert "\n" not in str(reported.value)


@pytest.mark.parametrize("command", ["plan", "show", "tokenize", "perplexity", "bench", "why", "chat"])
def test_model_is_positional_or_an_option(command, model, tmp_path):
    (tmp_path / "text").write_text("wool " * 40)
    more = {
        "tokenize": ["wool"],
        "perplexity": [tmp_path / "text", "--ctx", "8", "-n", "2"],
        "bench": ["-p", "4", "-n", "0", "-r", "1"],
    }.get(command, [])
    with pytest.raises(UsageError, match=r"two models are given, .*other.gguf and -m"):
        woolly(command, "other.gguf", *more, "-m", model)
    if command != "why":  # which takes its time
        by_option, by_place = woolly(command, "-m", model, *more), woolly(command, model, *more)
        if command != "bench":  # whose columns are as wide as its figures
            assert by_option.splitlines()[:1] == by_place.splitlines()[:1]
        woolly(command, model, *more, "--model", model)


def test_options_of_other_programs_work(tmp_path, monkeypatch):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path))
    assert woolly("help") == woolly("--help")
    assert woolly("help", "run") == woolly("run", "--help")
    assert woolly("ls", "--json") == woolly("list", "--json")


def test_minus_m_of_run_is_the_model(model):
    asked = ("-n", "4", "--seed", "1")
    assert woolly("run", "-m", model, "hi", *asked) == woolly("run", model, "hi", *asked)
    assert woolly("run", "-m", model, model, "hi", *asked) == woolly("run", model, "hi", *asked)


def test_every_sampler_has_its_option_and_documented_default():
    usual = SamplingParams()
    for option in SAMPLING.options:
        assert option.shown in ("", "random", "no limit", "one per token", "the model's") or float(
            option.shown
        ) == getattr(usual, option.name), option.name
    without = {"max_tokens", "min_tokens", "n", "stop", "stop_token_ids", "logprobs", "prompt_logprobs", "min_keep"}
    without |= {"json_schema", "json_object", "regex", "choice", "lark", "grammar", "logits_processors"}
    without |= {"custom_sampler", "adapters", "post_sampling_probs"}
    assert {option.name for option in SAMPLING.options} == set(vars(usual)) - without


def test_options_reach_the_sampler(monkeypatch, model):
    seen = []

    def keep(**given):
        seen.append(given)
        raise RequestError("enough")

    monkeypatch.setattr("woolly.cli.parse.sampling.SamplingParams", keep)
    line = "--repeat-penalty 1.1 --repeat-last-n -1 --typical 0.9 --presence-penalty 0.5 --frequency-penalty 0.25"
    line += " --top-nsigma 2 --dry-sequence-breaker a --samplers top_k;temperature --ignore-eos -s -1"
    line += " --logit-bias 5-inf"
    for command in ("run", "chat"):
        with pytest.raises(RequestError, match="enough"):
            woolly(command, *([model, "x"] if command == "run" else [model]), *line.split())
        given = seen.pop()
        assert (given["repeat_penalty"], given["repeat_last_n"], given["typical_p"]) == (1.1, -1, 0.9)
        assert (given["presence_penalty"], given["frequency_penalty"], given["top_n_sigma"]) == (0.5, 0.25, 2)
        assert given["samplers"] == ("top_k", "temperature")
        assert given["logit_bias"] == {5: float("-inf")}
        assert given["dry_sequence_breakers"] == ("a",)
        assert given["ignore_eos"] is True
        assert "seed" not in given
        assert "top_k" not in given  # what was not typed is the library's to choose


def test_defaults_match_the_library():
    assert sampling_params({}) == SamplingParams()


def test_llama_cpp_aliases_mean_the_same(model):
    ours = woolly("run", model, "hi", "--seed", "1", "-n", "4", "--ctx", "64", "--kv-type", "f32")
    theirs = ("--seed", "1", "--n-predict", "4", "--ctx-size=64", "--cache-type-k", "f32")
    assert woolly("run", "-m", model, "-p", "hi", *theirs) == ours
    assert woolly("run", model, "x", "--grammar-file", 'root ::= "yes"').strip() == "yes"


def test_flags_for_default_behavior_are_accepted_silently(model, capsys):
    asked = ("run", model, "hi", "--seed", "1", "-n", "4")
    assert woolly(*asked, "--embedding", "--embeddings", "--rerank", "--reranking") == woolly(*asked)
    assert capsys.readouterr().err == ""


def test_option_value_may_look_like_an_option(model):
    assert woolly("run", model, "hi", "--stop", "-ngl", "-n", "2", "--seed", "1")


def test_help_is_plain_text_within_the_terminal_width():
    command, narrow = [sys.executable, "-m", "woolly.cli", "run", "--help"], {**os.environ, "COLUMNS": "60"}
    text = fork_server.run(command, env=narrow, capture_output=True, text=True).stdout
    assert max(map(len, text.splitlines())) <= 60
    for command in ("run", "chat", "bench", "show", "list"):
        assert woolly(command, "--help").isascii()  # no frames
    assert _titles(text) == [
        "Arguments",
        "Common options",
        "Prompt and answer",
        "How the model runs",
        "Adapters and control vectors",
        "Sampling",
    ]


def _titles(text):
    return [line.rstrip(":") for line in text.splitlines() if line.endswith(":") and line[0] != " "]


def test_help_shows_common_options_first():
    text = woolly("--help")
    assert _titles(text) == ["Start here", "More with models", "Measure and inspect", "Several machines", "Options"]
    words = [line.split()[0] for line in text.splitlines() if line.startswith("  ")][2:]
    assert words[:6] == ["run", "chat", "serve", "pull", "list", "show"]
    assert set(COMMANDS) <= set(words)
    for command, first in {"run": ["--model", "--prompt"], "chat": ["--model"], "serve": ["--model", "--ctx"]}.items():
        made = app.get_command(click.Context(app), command)
        common = [option.opts for option in sections_of(made, click.Context(made))["Common options"]]
        assert [name for names in common for name in names if name in first] == first
        assert "--help" in common[-1] and len(common) <= 12
        assert set(made.common) <= {option.name for option in made.params}  # a misspelt name would show nothing
        assert "Options" not in sections_of(made, click.Context(made))  # every option has a title


def test_python_dash_m_runs_the_package():
    command = [sys.executable, "-m", "woolly.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("woolly ")


def test_one_is_not_a_plural():
    assert (plural(1, "token"), plural(2, "token"), plural(0, "token")) == ("1 token", "2 tokens", "0 tokens")


def test_stats_name_other_running_processes(monkeypatch, model):
    times = iter([100.0, 100.0 + 10**6] * 9)  # all cores busy for ever, but not by us
    monkeypatch.setattr(background_load, "_busy_seconds", lambda: next(times))
    with OtherLoad() as others:
        pass
    assert others.share == 1.0
    assert "other programs used 100% of the CPU during" in " ".join(woolly("show", model).split())
    assert "other programs took 100%" in woolly("bench", model, "-p", "4", "-n", "0", "-r", "1")
    monkeypatch.setattr(background_load, "_busy_seconds", lambda: None)
    with OtherLoad() as others:
        pass
    assert others.share is None
    quiet = woolly("show", model)
    assert "other programs" not in quiet
    assert "just now" in quiet


def test_pair_is_one_word_or_two():
    from woolly.cli.commands.run import run
    from woolly.cli.parse.options import ENGINE

    two = ["a:b.gguf", "-0.5", "--control-vector-layer-range", "3", "9"]
    for words in (["a:b.gguf:-0.5", "--control-vector-layer-range=3:9"], two):
        context = run.make_context("run", ["hi", "--control-vector-scaled", *words, "--control-vector", "c.gguf"])
        assert context.params["control_vector_scaled"] == ("a:b.gguf:-0.5",)
        assert context.params["control_vector_layer_range"] == "3:9"
        given = dict(context.params)
        ENGINE.collect(given)
        assert given["engine"] == {
            "control_vectors": (("c.gguf", 1.0), ("a:b.gguf", -0.5)),
            "control_vector_layers": (3, 9),
        }


def test_serve_takes_its_model_with_and_without_a_flag():
    for line in (["/no/such.gguf"], ["-m", "/no/such.gguf"], ["/no/such.gguf", "-m", "/no/such.gguf"]):
        with pytest.raises(StoreError, match=r"/no/such\.gguf"):
            woolly("serve", *line, "--port", "0")


@pytest.mark.filterwarnings("always:.*visible to other users")
def test_secret_on_the_command_line_gives_a_warning(capfd):
    for flag, name in (("--api-key", "WOOLLY_API_KEY"), ("--admin-key", "WOOLLY_ADMIN_KEY")):
        with pytest.raises(StoreError):
            woolly("serve", "/no/such.gguf", flag, "sesame")
        logged = capfd.readouterr().err
        assert f"warning - {flag} is visible to other users in the list of processes; " in logged
        assert f"use {flag}-file or {name} instead" in logged


@pytest.mark.filterwarnings("always:--load-wait is")
def test_short_client_timeout_gives_a_warning(capfd):
    for words, is_late in (((), False), (("--load-wait", "39"), True), (("--load-wait", "40"), False)):
        with pytest.raises(StoreError):
            woolly("serve", "/no/such.gguf", *words)
        logged = capfd.readouterr().err
        assert ("--load-wait is 39, less than --swap-wait (10) and --grace (30) together" in logged) is is_late


def test_show_counts_the_cache_in_its_type(model):
    f16, q4 = (json.loads(woolly("show", model, "--json", *it))["memory"]["kv_cache"] for it in ((), ("-ctk", "q4")))
    assert q4 < 0.3 * f16
    with pytest.raises(UsageError, match=r"--kv-type is 'q5'; choose one of: f16"):
        woolly("show", model, "--kv-type", "q5")


def test_server_rejects_two_cache_types(model):
    with pytest.raises(UsageError, match="-ctk is q8_0/q4, which names both types; leave -ctv out"):
        woolly("serve", model, "-ctk", "q8_0/q4", "-ctv", "q4")


@pytest.mark.parametrize(("typed", "kept"), [("-ctv q8_0", "f16/q8_0"), ("-ctk q8_0 --cache-type-v q8_0", "q8_0")])
def test_run_takes_separate_value_types_like_serve(typed, kept):
    given = run.make_context("run", ["hello", *typed.split()]).params
    ENGINE.collect(given)
    assert given["engine"] == {"kv_type": kept}


def test_unknown_value_type_error_names_its_flag(model):
    with pytest.raises(UsageError, match=r"-ctv is 'q5_1'; choose one of: "):
        woolly("run", model, "hello", "-ctv", "q5_1")
    with pytest.raises(UsageError, match="-ctk is q8_0/q4, which names both types; leave -ctv out"):
        woolly("run", model, "hello", "-ctk", "q8_0/q4", "-ctv", "q4")


def test_missing_draft_file_is_called_a_draft(model):
    with pytest.raises(StoreError, match=r"the draft: unknown draft 'prompt_lokup'; did you mean prompt_lookup\?"):
        woolly("run", model, "hello", "-md", "prompt_lokup")
    with pytest.raises(StoreError, match=r"the draft: there is no file or model named 'no\.gguf'"):
        woolly("run", model, "hello", "-md", "no.gguf")


def test_unused_draft_length_gives_a_warning(model, caplog):
    woolly("run", model, "hello", "-n", 1, "--draft", 4)
    assert "draft_tokens=4 (--draft-max 4) has no effect without a draft method: add spec" in caplog.text
    reported = logging.lastResort.format(next(one for one in caplog.records if "draft method" in one.msg))
    wanted = "add -md prompt_lookup, or -md with a smaller model"
    assert reported == f"--draft 4 has no effect without a draft method: {wanted}"


def test_library_warnings_use_command_line_names(model, capsys):
    woolly("tokenize", model, "hello")
    assert logging.lastResort is not None
    logging.lastResort.handle(logging.LogRecord("woolly.llm", logging.WARNING, "", 1, "it is %d", (4,), None))
    assert capsys.readouterr().err == "woolly: warning: it is 4\n"


@pytest.mark.parametrize(("flag", "kind"), [("--image", "image"), ("--audio", "audio file")])
def test_missing_file_is_reported_before_missing_capabilities(model, flag, kind):
    with pytest.raises(RequestError, match=rf"the {kind} no\.file cannot be read \(No such file or directory\)"):
        woolly("run", model, "hello", flag, "no.file")


def test_suggested_commands_can_be_typed(model, monkeypatch):
    monkeypatch.setattr(libcuda, "_found", None)
    monkeypatch.setattr(libcuda, "_library", lambda: "no-such-library")
    with pytest.raises(DeviceError, match=r"install one, or use --backend cpu$"):
        woolly("run", model, "hello", "--backend", "cuda")
    with pytest.raises(DeviceError, match=r"install one, or use --device cpu$"):
        woolly("run", model, "hello", "--device", "cuda")
    expected = "-ngl is 9, but backend cpu has no GPU; leave it out, or use --backend cuda"
    with pytest.raises(UsageError, match=re.escape(expected)):
        woolly("run", model, "hello", "--backend", "cpu", "-ngl", 9)
    command = [sys.executable, "-m", "woolly", "serve", model, "--port", "0", "--backend", "cpu", "-ngl", "9"]
    done = fork_server.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, f"woolly: error: {expected}")


def test_first_model_samples_as_its_publisher_says_unless_options_are_typed():
    """At a temperature of 0.8 SmolLM2 does not end 3 of 20 first answers."""
    first = SimpleNamespace(preset=None, path=Path("models") / WHEEL_MODELS["smollm2"].file_name)
    usual = SamplingParams(temperature=0.2, top_p=0.9, repeat_penalty=1.1, seed=1, max_tokens=5)
    assert sampling_params({"seed": 1}, first, max_tokens=5) == usual
    assert sampling_params({"temperature": 0.0}, first) == SamplingParams(temperature=0.0)
    other = SimpleNamespace(preset=None, path=Path("other.gguf"))
    assert sampling_params({"seed": 1}, other) == SamplingParams(seed=1)
    preset = Preset("smollm2", Path("presets.toml"), sampling={"temperature": 0.5})
    assert sampling_params({}, SimpleNamespace(preset=preset, path=first.path)) == SamplingParams(temperature=0.5)
