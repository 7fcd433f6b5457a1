"""What a device is called, and which backend it asks for."""

import pytest

from woolly.errors import RequestError
from woolly.runtime import Options, backend_for, parse_devices


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
def test_a_device_is_read(text, numbers):
    assert parse_devices(text) == numbers


@pytest.mark.parametrize("text", ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:0,", "cpu:0", "cuda:1234", "0", 0])
def test_what_is_no_device_is_one_sentence(text):
    with pytest.raises(RequestError, match="cuda:0,1 for several GPUs were expected") as caught:
        Options(device=text)
    assert caught.value.field == "device"


def test_a_device_chooses_the_backend():
    assert backend_for(None) == backend_for("auto") == "auto"
    assert backend_for("cpu") == backend_for("cpu", "cpu") == "cpu"
    assert backend_for("cuda:1") == backend_for("cuda:1", "cuda") == "cuda"
    assert backend_for("auto", "reference") == "reference"
    with pytest.raises(RequestError, match=r"device is 'cuda:1', but backend is 'cpu'; leave one of them out"):
        backend_for("cuda:1", "cpu")
