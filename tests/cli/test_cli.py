"""Commands as a person types them: results on stdout, one line for each error, documented exit codes."""

import json
import os
import subprocess
import sys

import pytest

from tests.cases import fork_server
from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, __version__


def woolly(*arguments, stdin="", **environment):
    command = [sys.executable, "-c", "from woolly.cli import main; main()", *map(str, arguments)]
    return fork_server.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(TINY["granite"], tmp_path_factory.mktemp("cli") / "tiny.gguf")


def test_version():
    done = woolly("--version")
    assert (done.returncode, done.stdout) == (0, f"woolly {__version__}\n")


def test_help_names_every_command():
    done = woolly("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("run", "show", "plan", "pull"))
    bare = woolly()
    assert (bare.returncode, bare.stdout, bare.stderr) == (0, done.stdout, "")


def test_run_prints_only_the_answer_on_stdout(smollm2):
    done = woolly("run", smollm2, "Name the capital city of France.", "--temp", "0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Paris" in done.stdout


def test_run_reads_the_prompt_from_stdin(tiny):
    given = woolly("run", tiny, "hello", "--seed", "1", "-n", "8")
    piped = woolly("run", tiny, "-", "--seed", "1", "-n", "8", stdin="hello")
    assert given.returncode == piped.returncode == 0
    assert given.stdout == piped.stdout


def test_prompt_may_be_longer_than_any_file_name(smollm2):
    done = woolly("run", "long " * 10000)
    assert done.returncode == 1
    assert "the context holds 8192" in done.stderr


def test_run_raw_continues_without_a_template(tiny):
    plain = woolly("run", tiny, "hello", "--temp", "0", "-n", "8", "--raw")
    assert plain.returncode == 0
    assert plain.stdout != woolly("run", tiny, "hello", "--temp", "0", "-n", "8").stdout


def test_empty_answer_without_a_template_suggests_raw(tiny):
    with LLM(tiny) as llm:
        ends = ("--temp", "0", "--logit-bias", f"{llm.tokenizer.eos_id}+1000")
    done = woolly("run", tiny, "hello", *ends)
    assert (done.returncode, done.stdout) == (0, "\n")
    assert done.stderr == (
        "woolly: the answer is empty: this file has no chat template, so ChatML is assumed, and it is probably a base"
        " model; --raw continues the text\n"
    )
    assert woolly("run", tiny, "hello", *ends, "--raw").stderr == ""
    assert woolly("run", tiny, "hello", "--grammar", 'root ::= "yes"').stderr == ""
    assert "`woolly run --raw` continues a text" in woolly("chat", tiny, *ends, stdin="hello\n").stderr


def test_show_prints_metadata_types_parameters_and_memory(tiny):
    done = woolly("show", tiny, "--ctx", "128")
    assert done.returncode == 0
    for expected in ("granite.embedding_scale", "12.0", "F32", "parameters", "memory at 128 tokens"):
        assert expected in done.stdout


def test_show_json_adds_up(tiny):
    facts = json.loads(woolly("show", tiny, "--json", "--ctx", "100").stdout)
    assert facts["metadata"]["general.architecture"] == "granite"
    assert facts["tensors"]["F32"]["bytes"] == facts["memory"]["weights"] == facts["parameters"] * 4
    # 2 layers, K and V, 2 heads of 16, in f16
    assert facts["memory"]["kv_cache"] == 100 * 2 * 2 * 2 * 16 * 2


def test_plan_prints_one_line_per_step(tiny):
    done = woolly("plan", tiny)
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0].split()[:2] == ["step", "op"]
    assert lines[1].split()[:2] == ["0", "embed"]
    assert "granite.py" in lines[-1]
    assert "factor=0.125" in lines[-1]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("show", "missing.gguf"), 1, "missing.gguf"),
        (("plan", "smolm2"), 1, "did you mean smollm2"),
        (("run", "TINY", "x", "--top-p", "-1"), 2, "--top-p is -1.0"),
        (("run", "TINY", "x", "--backend", "gpu"), 2, "--backend 'gpu' is unknown"),
        (("run", "TINY", "x", "--threads", "0"), 2, "--threads is 0"),
        (("run", "one", "two", "three"), 2, "quotes"),
        (("run", "TINY", "x", "--raw", "-sys", "y"), 2, "--system needs a chat template"),
        (
            ("run", "TINY", ""),
            2,
            "the prompt is empty; add one in quotes or on standard input, for instance: woolly run ",
        ),
        (("run", "TINY", "  "), 2, "the prompt is empty"),
        (("run", "TINY"), 2, "missing prompt after it"),
        (("run", "nope.gguf"), 1, "there is no file or model named 'nope.gguf'"),
        (("run", "nope.gguf", "x"), 1, "there is no file or model named 'nope.gguf'"),
        (("run", "smolm2"), 1, "there is no model named 'smolm2': did you mean smollm2"),
        (("run", "smolm2"), 1, "? (-p smolm2 makes it the prompt)"),
        (("run", "TINY", "x", "-n", "abc"), 2, "-n is 'abc'; expected an integer"),
        (("run", "TINY", "x", "-n", "0"), 2, "-n is 0; expected an integer of at least 1, or -1 for no limit"),
        (("run", "TINY", "x", "--temp", "-1"), 2, "--temp is -1.0; expected a number of at least 0"),
        (("chat", "TINY", "--temp", "-0.5"), 2, "--temp is -0.5; expected a number of at least 0"),
        (("show", "TINY", "--ctx", "0"), 2, "--ctx is 0"),
        (("fly",), 2, "unknown command 'fly'"),
        (("pull", "nosuch"), 1, "give the path of a GGUF file, or a name such as smollm2, hf:org/repo"),
    ],
)
def test_error_is_one_line_on_stderr_with_an_exit_code(tiny, arguments, code, message):
    done = woolly(*(tiny if a == "TINY" else a for a in arguments))
    assert done.returncode == code
    assert done.stdout == ""
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("woolly: error: ")
    assert done.stderr.count("\n") == 1


def test_closed_pipe_is_not_an_error(tiny):
    command = f"{sys.executable} -c 'from woolly.cli import main; main()' plan {tiny} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("step")
    assert done.stderr == ""


def test_model_without_prompt_reads_stdin(tiny):
    piped = woolly("run", tiny, "--seed", "1", "-n", "8", stdin="hello")
    assert piped.returncode == 0
    assert piped.stdout == woolly("run", tiny, "hello", "--seed", "1", "-n", "8").stdout


def test_non_utf8_stdin_is_rejected(tiny):
    command = [sys.executable, "-c", "from woolly.cli import main; main()", "run", str(tiny), "-"]
    done = fork_server.run(command, input=b"caf\xe9", capture_output=True)
    assert done.returncode == 2
    assert b"not UTF-8 (byte 3)" in done.stderr


def test_full_disk_gives_a_one_line_error(tiny):
    command = f"{sys.executable} -c 'from woolly.cli import main; main()' plan {tiny} > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "woolly: error: No space left on device\n"


def test_hostile_file_name_or_key_cannot_control_the_terminal(tiny, tmp_path):
    from woolly.gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "y[bold].gguf")
    writer.add("general.architecture", "llama")
    writer.add("evil\x1b[31m", "\x1b]0;title\x07[red]")
    writer.add("not.a.number", float("nan"))
    writer.write()
    for options in ((), ("--json",)):
        done = woolly("show", tmp_path / "y[bold].gguf", *options)
        assert done.returncode == 0
        assert "y[bold].gguf" in done.stdout
        assert "\x1b" not in done.stdout
        assert "[red]" in done.stdout


def test_plan_folds_equal_layers(tiny):
    folded, whole = woolly("plan", tiny).stdout, woolly("plan", tiny, "--all").stdout
    assert "(1 more layer like this one)" in folded
    assert "blk.1." not in folded
    assert "blk.1.ffn_down.weight" in whole
    assert "linears" in woolly("plan", tiny, "--fused").stdout
