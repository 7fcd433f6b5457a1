"""`woolly bench` and `woolly why` name the GPU that they measure, and hold it against its own memory."""

import json

import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.cli.terminal import woolly
from tests.runtime.cuda.emulated import EmulatedDevice
from woolly.cli.commands.why import _screen
from woolly.measure import kernel_probe
from woolly.measure.profiler import profile_model
from woolly.runtime import BACKENDS, Options
from woolly.runtime.cuda import CudaBackend


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A model, on a machine with an emulated GPU."""
    monkeypatch.setitem(BACKENDS, "cuda", lambda: CudaBackend(lambda *_: EmulatedDevice(), lambda: "sm_80"))
    monkeypatch.setattr(kernel_probe, "_GPU_SIDE", 256)
    monkeypatch.setattr(kernel_probe, "_MANY_ROWS", 2)
    monkeypatch.setattr(kernel_probe, "_REPETITIONS", 1)
    write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    return tmp_path / "tiny.gguf"


def test_bench_names_the_gpu(tiny):
    reported = woolly("bench", tiny, "-p", "4", "-n", "2", "-r", "1", "-ub", "16", "--device", "cuda", "-o", "md")
    assert "| CUDA sm_80 |" in reported and "\non emulated\n" in reported and "the GPU's bandwidth 1.0 GB/s" in reported
    (row,) = json.loads(
        woolly("bench", tiny, "-p", "4", "-n", "0", "-r", "1", "-ub", "16", "--backend", "cuda", "--json")
    )
    assert (row["backends"], row["gpu_info"], row["level"], row["bandwidth_gbs"]) == ("CUDA", "emulated", "sm_80", 1.0)


def test_why_uses_the_memory_bandwidth_of_the_gpu(tiny):
    found = profile_model(tiny, Options(max_rows=16), backend="cuda", n_prompt=4, n_sequences=2, seconds=0.01)
    s = found.situation
    assert (found.device, found.bandwidth_gbs, s.level, s.best_level) == ("emulated", 1.0, "sm_80", "sm_80")
    assert s.one.bound == "memory" and found.rate_one == 0.0 < found.rate_many
    # Threads, cores and what else runs here are nothing to a GPU.
    assert s.threads == s.cores and s.busy == 0.0
    lines = _screen(found, 100)
    assert lines[1].startswith("emulated, kernels sm_80 (emulation), on a machine with ")
    assert lines[2] == "memory      1.0 GB/s of its own"
