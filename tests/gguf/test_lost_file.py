"""A model's file that becomes shorter while it is mapped fails its own requests and leaves the process alive."""

import os
import signal
import subprocess
import sys

import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, SamplingParams
from woolly.errors import ModelError
from woolly.gguf import open_gguf

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows refuses to shorten a mapped file")

FEW = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)

FOREIGN = """
import mmap, os, sys
from woolly import _native
from woolly.gguf import open_gguf
model = open_gguf(sys.argv[1])  # its handler is there
with open(sys.argv[2], "w+b") as file:
    file.write(bytes(100_000))
    file.flush()
    mapped = mmap.mmap(file.fileno(), 100_000)
    os.truncate(sys.argv[2], 0)
    print(mapped[50_000])
"""

LATER = """
import faulthandler, os, sys
from woolly import LLM, SamplingParams
from woolly.errors import ModelError
few = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
with LLM(sys.argv[1], weight_memory=0) as llm:
    for _ in range(3):
        faulthandler.enable()
        llm.generate([1, 2, 3], few)
        faulthandler.disable()
    faulthandler.enable()
    os.truncate(sys.argv[1], 1000)
    try:
        llm.generate([1, 2, 3, 4], few)
    except ModelError as error:
        print(error, flush=True)
"""

SENT = """
import os, signal, sys
from woolly.gguf import open_gguf
model = open_gguf(sys.argv[1])
os.kill(os.getpid(), signal.SIGBUS)
"""


def run(*arguments):
    """A child process of its own: its signals end nothing else."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_lost_file_fails_its_model_and_others_continue(tmp_path, backend):
    path = write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    other = write_tiny(TINY["llama"], tmp_path / "other.gguf")
    # Without memory for packed weights every run reads the file.
    with LLM(path, backend=backend, weight_memory=0) as llm, LLM(other, backend=backend) as second:
        wanted = llm.generate([1, 2, 3], FEW).token_ids
        os.truncate(path, 1000)
        for _ in range(2):
            with pytest.raises(ModelError, match="changed while in use; replace files by renaming"):
                llm.generate([1, 2, 3, 4], FEW)
        with pytest.raises(ModelError, match="changed while in use"):
            llm.logits([1, 2])
        assert second.generate([1, 2, 3], FEW).token_ids == wanted
    write_tiny(TINY["llama"], path)
    with LLM(path, backend=backend) as llm:
        assert llm.generate([1, 2, 3], FEW).token_ids == wanted


def test_file_replaced_by_rename_continues(tmp_path):
    path = write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    with LLM(path, weight_memory=0) as llm:
        wanted = llm.generate([1, 2, 3], FEW).token_ids
        (tmp_path / "shorter").write_bytes(b"GGUF")
        (tmp_path / "shorter").replace(path)
        assert llm.generate([1, 2, 3], FEW).token_ids == wanted


def test_many_files_can_be_opened_one_after_the_other(tmp_path):
    path = write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    for _ in range(5000):  # more than there are watches
        with open_gguf(path) as file:
            assert file.check() is None


@pytest.mark.parametrize("option", ["-u", "-Xfaulthandler"])
def test_other_addresses_are_left_to_the_previous_handler(tmp_path, option):
    path = write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    ended = run(option, "-c", FOREIGN, path, tmp_path / "foreign")
    assert ended.returncode == -signal.SIGBUS
    assert ("Bus error" in ended.stderr) == (option == "-Xfaulthandler")


def test_later_handler_does_not_end_the_process(tmp_path):
    path = write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    ended = run("-c", LATER, path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "changed while in use" in ended.stdout
    # Other addresses still reach that handler, and end the process as they would without the model.
    later = FOREIGN.replace("with open(", "import faulthandler; faulthandler.enable(); model.check()\nwith open(")
    ended = run("-c", later, write_tiny(TINY["llama"], path), tmp_path / "foreign")
    assert ended.returncode == -signal.SIGBUS
    assert "Bus error" in ended.stderr


def test_sent_signal_is_not_swallowed(tmp_path):
    path = write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    ended = run("-c", SENT, path)
    assert ended.returncode == -signal.SIGBUS
