"""Makes a command line of `woolly serve` of the one that llama.cpp's tests give to llama-server.

Only what cannot be the same is translated: models of the hub become the local files of `models.py`, and defaults of
llama-server become flags. It has no /metrics unless asked, splits its context among the slots that -np counts, lets
pages of every origin ask and every key load models, and offers the models that it has downloaded if none is named, of
which it keeps four. --pooling, which Woolly leaves to the file, chooses a file with that pooling.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.clients.llama_cpp.encoders import EMBEDDERS, RERANKER
from tests.clients.llama_cpp.models import FILES

_EMBEDDER = "ggml-org/models/bert-bge-small/ggml-model-f16.gguf"
_OTHERS = {"ggml-org/models/jina-reranker-v1-tiny-en/ggml-model-f16.gguf": RERANKER}


def translate(arguments: list[str], models: Path) -> list[str]:
    """Returns the arguments of `woolly serve`. SystemExit names a model that is not here."""
    given = list(arguments)
    repo = _take(given, "--hf-repo")
    file = _take(given, "--hf-file")
    url = _take(given, "--model-url")
    pooling = _take(given, "--pooling") or "cls"
    files = {**FILES, **_OTHERS, _EMBEDDER: EMBEDDERS[pooling]}
    if repo is not None or url is not None:
        wanted = url or (repo if file is None else f"{repo}/{file}")
        if wanted not in files:
            raise SystemExit(f"llama tests: the model {wanted} is not here")
        given += ["--model", str(models / files[wanted])]
    elif "--model" not in given and "--models-dir" not in given:
        given += ["--models-dir", str(models)]
        if "--models-max" not in given:
            given += ["--models-max", "4"]
    if "--models-dir" not in given:
        (models / "none").mkdir(exist_ok=True)
        given += ["--models-dir", str(models / "none")]
    if "--cors-origins" not in given:
        given += ["--cors-origins", "*"]
    if "--api-key" in given:
        given += ["--admin-key", given[given.index("--api-key") + 1]]
    if "--metrics" not in given:
        given.append("--no-metrics")
    if "--parallel" in given and "--kv-unified" not in given:
        given.append("--no-kv-unified")
    return [*given, "--sessions-file", str(models / f"sessions-{os.getpid()}.db")]


def _take(given: list[str], name: str) -> str | None:
    """Removes an option with its value and returns the value."""
    if name not in given:
        return None
    at = given.index(name)
    value = given[at + 1]
    del given[at : at + 2]
    return value
