"""Logits, history, parameters and seed give the tokens of llama.cpp.

`goldens/make_sampling.py` recorded them: each sampler alone, mirostat, and chains in any order, over small and
whole vocabularies.
"""

import json
from pathlib import Path

import pytest

from tests.cases.sampling import golden_rows
from woolly.sampling.params import SamplingParams
from woolly.sampling.sampler import Sampler

CASES = json.loads((Path(__file__).parent.parent / "goldens" / "sampling.json").read_text())


def used(recorded):
    """Without what llama.cpp was given and did not read: that is refused here."""
    values = dict(recorded)
    if not values.get("dynatemp_range"):
        values.pop("dynatemp_exponent", None)
    if values.get("mirostat"):
        values.pop("min_keep", None)
    if values.get("dry_multiplier"):
        values["dry_sequence_breakers"] = ()
    return values


@pytest.mark.parametrize("case", CASES, ids=[str(case["row_seed"]) for case in CASES])
def test_tokens_match_llama_cpp(case):
    values = used(case["params"])
    values["logit_bias"] = {int(token): bias for token, bias in values.get("logit_bias", {}).items()}
    sampler = Sampler(SamplingParams(**values), None, case["history"])
    rows = golden_rows(case["n_vocab"], case["row_seed"], case["scale"], len(case["tokens"]))
    assert [sampler.next(row).token for row in rows] == case["tokens"]
