"""A model whose file becomes shorter under the server is refused in one sentence, and opened anew."""

import os
import sys

import pytest

from tests.cases.tiny import TINY, write_tiny

BODY = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 3, "temperature": 0, "ignore_eos": True}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows refuses to shorten a mapped file")
@pytest.mark.parametrize("stream", [False, True])
def test_truncated_model_file_is_a_503_and_the_next_request_reopens_it(app_with, tmp_path, stream):
    folder = tmp_path / "models"
    folder.mkdir()
    path = write_tiny(TINY["llama"], folder / "tiny.gguf")
    # Without memory for packed weights every run reads the file.
    with app_with(models_dir=folder, weight_memory="0") as client:
        wanted = client.post("/v1/completions", json=BODY).json()["choices"]
        os.truncate(path, 1000)
        reply = client.post("/v1/completions", json={**BODY, "prompt": [1, 2, 3, 4], "stream": stream})
        assert reply.status_code == (200 if stream else 503)
        assert "model_changed" in reply.text and "changed while it was in use" in reply.text
        assert str(folder) not in reply.text
        assert client.post("/v1/completions", json=BODY).status_code == 422  # the short file is no model
        write_tiny(TINY["llama"], path)
        assert client.post("/v1/completions", json=BODY).json()["choices"] == wanted
