"""Classes that another architecture computes, compared with transformers' logits."""

import json

import numpy as np
import pytest

from tests.convert.folders import write_folder
from tests.goldens.make_variants import CLASSES, HERE, IDS, STRIDE, array_of
from woolly import LLM
from woolly.convert import choose_types, open_checkpoint, plan_conversion, write_draft


@pytest.mark.parametrize("name", CLASSES)
def test_logits_equal_those_of_transformers(name, tmp_path, monkeypatch):
    quick = lambda tokens, about: (tokens.keys | {"tokenizer.ggml.pre": tokens.splits[0]}, 0)  # noqa: E731
    monkeypatch.setattr("woolly.convert.conversion_plan.verify_tokenizer", quick)
    golden = np.load(HERE / "variants.npz")
    entry = json.loads(str(golden[f"{name}.json"]))
    arrays = {tensor: array_of(tensor, shape) for tensor, shape in entry["shapes"].items()}
    plan = plan_conversion(open_checkpoint(write_folder(tmp_path / "folder", arrays, entry["config"])))
    write_draft(plan, choose_types(plan, None), tmp_path / "out.gguf", threads=1)
    with LLM(tmp_path / "out.gguf", backend="reference") as llm:
        logits = llm.logits(IDS.tolist())[:, ::STRIDE]
    distances = np.linalg.norm(logits - golden[name], axis=1) / np.linalg.norm(golden[name], axis=1)
    assert distances.max() < 1e-4
