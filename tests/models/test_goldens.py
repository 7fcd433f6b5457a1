"""Logits agree with an independent f32 engine (tests/goldens/make.py says which and how)."""

from pathlib import Path

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from woolly import LLM

GOLDENS = Path(__file__).parent.parent / "goldens"
# Relative to the norm of one position's logit vector; f32 engines that add up in another order differ by about 1e-6.
TOLERANCE = 1e-4


def check(logits, golden):
    assert logits.dtype == np.float32
    assert logits.shape[0] == len(golden["ids"])
    np.testing.assert_array_equal(logits.argmax(axis=1), golden["argmax"])
    difference = np.linalg.norm(logits[:, :: int(golden["stride"])] - golden["logits"], axis=1)
    assert (difference / np.linalg.norm(golden["logits"], axis=1)).max() < TOLERANCE
    # The sampled columns could hide an error elsewhere; the norm of the whole row could not.
    np.testing.assert_allclose(np.linalg.norm(logits.astype(np.float64), axis=1), golden["norm"], rtol=TOLERANCE)


@pytest.mark.parametrize("name", FAMILIES)
def test_tiny_model_matches_transformers(name, tmp_path):
    golden = np.load(GOLDENS / f"tiny-{name}.npz")
    with LLM(write_tiny(FAMILIES[name], tmp_path / "tiny.gguf"), backend="reference") as llm:
        check(llm.logits(golden["ids"].tolist()), golden)


def test_smollm2_matches_transformers(smollm2):
    golden = np.load(GOLDENS / "smollm2.npz")
    with LLM(smollm2, backend="reference") as llm:
        check(llm.logits(golden["ids"].tolist()), golden)
