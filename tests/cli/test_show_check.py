"""`woolly show --check` reads all weights and hashes the file."""

import hashlib
import json

import numpy as np
import pytest

from tests.cli.terminal import woolly
from woolly.errors import GGUFError
from woolly.gguf import open_gguf


def test_sound_file_is_read_and_hashed(tiny_model):
    sha256 = hashlib.sha256(tiny_model.read_bytes()).hexdigest()
    check = json.loads(woolly("show", tiny_model, "--check", "--json"))["check"]
    with open_gguf(tiny_model) as file:
        assert check == {
            "tensors": len(file.tensors), "not_read": [], "sha256": {tiny_model.name: sha256}, "in_catalogue": [],
        }  # fmt: skip
    shown = woolly("show", tiny_model, "--check")
    assert "all values are finite" in shown and sha256 in shown


def test_tensors_with_nan_are_named(tiny_model, tmp_path):
    data = bytearray(tiny_model.read_bytes())
    with open_gguf(tiny_model) as file:
        norm = file.tensors["output_norm.weight"]
        assert norm.type.name == "F32"
    data[norm.offset : norm.offset + 8] = np.array([np.nan, -np.inf], np.float32).tobytes()
    (tmp_path / "bad.gguf").write_bytes(data)
    reported = r"bad\.gguf: 1 tensor with NaN or infinite values, output_norm\.weight \(2 values\); download the file"
    with pytest.raises(GGUFError, match=reported):
        woolly("show", tmp_path / "bad.gguf", "--check")
