"""Device names, and the backend that each selects."""

import pytest

from woolly.errors import RequestError, UnsupportedError
from woolly.runtime import BACKENDS, Options, backend_for, get_backend, parse_devices


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (None, (0,)),
        ("auto", (0,)),
        ("cpu", ()),
        ("cuda", (0,)),
        ("CUDA:3", (3,)),
        ("cuda:0,1", (0, 1)),
        ("cuda:1, cuda:0", (1, 0)),
        ("cuda:0,0", (0, 0)),
    ],
)
def test_device_name_is_parsed(text, numbers):
    assert parse_devices(text) == numbers


@pytest.mark.parametrize("text", ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:0,", "cpu:0", "cuda:1234", "0", 0])
def test_invalid_device_gives_a_one_line_error(text):
    with pytest.raises(
        RequestError, match=r"cuda:N, metal:N, vulkan:N \(N from 0\), or cuda:0,1 for several GPUs"
    ) as caught:
        Options(device=text)
    assert caught.value.field == "device"


def test_device_selects_the_backend():
    assert backend_for(None) == backend_for("auto") == "auto"
    assert backend_for("cpu") == backend_for("cpu", "cpu") == "cpu"
    assert backend_for("cuda:1") == backend_for("cuda:1", "cuda") == "cuda"
    assert backend_for("auto", "reference") == "reference"
    with pytest.raises(RequestError, match=r"device is 'cuda:1', but backend is 'cpu'; leave one of them out"):
        backend_for("cuda:1", "cpu")


def test_model_is_opened_on_a_device(tmp_path):
    from tests.cases.tiny import TINY, write_tiny
    from woolly import LLM

    write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    with LLM(tmp_path / "tiny.gguf", device="cpu", threads=1) as llm:
        assert (llm.engine.program.about.backend, llm.engine.program.about.device) == ("cpu", "")
        assert llm.engine.program.about.place.startswith("CPU, ")
    with pytest.raises(RequestError, match="device is 'cpu', but backend is 'cuda'"):
        LLM(tmp_path / "tiny.gguf", device="cpu", backend="cuda")
    with pytest.raises(RequestError, match="device is not supported with stages"):
        LLM(tmp_path / "tiny.gguf", device="cpu", stages=["localhost:1"])


class Named:
    """A backend that counts how often it is asked whether it is there."""

    levels = ()

    def __init__(self, name, is_gpu, answer):
        self.name, self.is_gpu, self.answer, self.n_asked = name, is_gpu, answer, 0

    def is_available(self):
        self.n_asked += 1
        return self.answer != "absent"

    def compile(self, plan, tensors, options):
        if self.answer == "refuses":
            raise UnsupportedError("no kernel")
        return self.name


@pytest.mark.parametrize(
    ("cuda", "vulkan", "taken", "n_asked"),
    [
        ("takes", "takes", "cuda", 0),
        ("refuses", "takes", "vulkan", 1),
        ("refuses", "absent", "cpu", 1),
        ("absent", "takes", "vulkan", 1),
        ("absent", "absent", "cpu", 1),
    ],
)
def test_auto_queries_a_gpu_only_if_earlier_backends_reject_the_plan(cuda, vulkan, taken, n_asked, monkeypatch):
    backends = [Named("cuda", True, cuda), Named("vulkan", True, vulkan), Named("cpu", False, "takes")]
    for one in backends:
        monkeypatch.setitem(BACKENDS, one.name, lambda one=one: one)
    assert get_backend("auto").compile(None, {}, Options()) == taken
    assert backends[1].n_asked == n_asked
