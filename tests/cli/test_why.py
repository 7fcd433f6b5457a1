"""`woolly why` as a person types it: one screen, one piece of advice."""

import json
import sys
from xml.etree import ElementTree

import pytest

from tests.cases import fork_server
from tests.cases.tiny import TINY, write_tiny

KINDS = {"busy", "threads", "kernels", "quantization", "memory", "kv_type", "context", "batch", "nothing"}


def why(*arguments):
    return fork_server.run(
        [sys.executable, "-c", "from woolly.cli import main; main()", "why", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(TINY["qwen2"], tmp_path_factory.mktemp("why") / "tiny.gguf")


def test_why_prints_one_screen_with_times_and_one_advice(tiny, tmp_path):
    plot = tmp_path / "roofline.svg"
    done = why(tiny, "-p", "64", "-b", "4", "-t", "2", "--plot", plot)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert done.stdout.count("What would help most: ") == 1
    for expected in ("pp64", "tg32 @ d64", "x4 @ d64", "qkv", "attention", "gate, up", "logits", "at best", "GB/s"):
        assert expected in done.stdout
    assert "memory" in done.stdout
    assert "tg32 @ d64" in "".join(ElementTree.parse(plot).getroot().itertext())


def test_json_has_measurements_and_advice(tiny):
    done = why(tiny, "-p", "32", "-b", "2", "-d", "100", "-t", "1", "-ctk", "f32", "--weight-memory", "1kB", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert facts["advice"]["kind"] in KINDS
    assert facts["advice"]["gain"] >= 1
    assert facts["situation"]["depth"] == 100
    assert facts["situation"]["kept_bytes"] <= 1000
    assert facts["situation"]["prompt"]["name"] == "pp32 @ d100"
    parts = {part["name"]: part for part in facts["situation"]["one"]["parts"]}
    assert parts["down"]["bound"] in ("memory", "arithmetic")
    assert parts["other"]["bound"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-p", "1"), "-p is 1"),
        (("-b", "0"), "-b is 0"),
        (("-d", "-1"), "-d is -1"),
        (("-b", "1000"), "at most 512"),
        (("-d", "450", "-p", "64"), "the model's context is 512"),
        (("-ctk", "f8"), "-ctk is 'f8'"),
        (("--weight-memory", "lots"), "--weight-memory is 'lots'"),
        (("--plot", "/nowhere/plot.svg"), "/nowhere is not a folder"),
    ],
)
def test_wrong_option_gives_a_one_line_error(tiny, arguments, message):
    done = why(tiny, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("woolly: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
