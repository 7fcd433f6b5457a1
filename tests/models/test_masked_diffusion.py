"""Masked diffusion models agree with loops in NumPy; the bits of a text depend on no thread count or other text."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.diffusion import DIFFUSION, MASK
from tests.cases.tiny import write_tiny
from tests.convert.folders import File
from tests.goldens import skeletons
from woolly.errors import ModelError, UnsupportedError
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.plan import MaskedDiffusion
from woolly.runtime import Batch, Options, get_backend

IDS = np.random.RandomState(7).randint(0, 264, 45)


def run(program, *texts):
    pages = [[2 * i, 2 * i + 1] for i in range(len(texts))]
    batch = Batch.of([(ids, 0, own) for ids, own in zip(texts, pages, strict=True)], range(sum(map(len, texts))))
    return program.run(batch, program.new_state(6)).copy()


@pytest.mark.parametrize("name", DIFFUSION)
def test_masked_diffusion_model_matches_numpy(name, tmp_path):
    with open_gguf(write_tiny(DIFFUSION[name], tmp_path / "tiny.gguf")) as file:
        plan = trace(file)
        want = skeletons.logits(File(file), IDS)
        exact = run(get_backend("reference").compile(plan, file.tensors, Options()), IDS)
        programs = [get_backend("cpu").compile(plan, file.tensors, Options(threads=n)) for n in (1, 3)]
        fast = run(programs[0], IDS)
        np.testing.assert_array_equal(run(programs[1], IDS[:9], IDS, IDS[3:])[9:54], fast)
    for ours, bound in ((exact, 1e-5), (fast, 3e-5)):
        error = np.linalg.norm(ours - want, axis=1) / np.linalg.norm(want, axis=1)
        assert error.max() < bound
    assert plan.diffusion == MaskedDiffusion(MASK, is_shifted=not name.startswith("llada"))
    assert not plan.is_causal and plan.result == "logits"


@pytest.mark.parametrize(
    ("more", "extra", "error", "sentence"),
    [
        ({"tokenizer.ggml.mask_token_id": 999}, {}, ModelError, "mask_token_id is 999, which is not a token"),
        ({"tokenizer.ggml.mask_token_id": "x"}, {}, ModelError, "mask_token_id is 'x'; expected a token id"),
        ({"diffusion.shift_logits": 1}, {}, ModelError, "shift_logits is 1; expected true or false"),
        ({}, {"attention.causal": True}, UnsupportedError, "the file says causal"),
    ],
)
def test_masked_diffusion_file_with_wrong_keys_is_rejected(more, extra, error, sentence, tmp_path):
    tiny = DIFFUSION["llada"]
    wrong = replace(tiny, shared_metadata=tiny.shared_metadata | more, extra=tiny.extra | extra)
    with open_gguf(write_tiny(wrong, tmp_path / "tiny.gguf")) as file, pytest.raises(error, match=sentence):
        trace(file)


def test_masked_diffusion_model_without_a_mask_token_is_rejected(tmp_path):
    path = write_tiny(replace(DIFFUSION["dream"], shared_metadata={}), tmp_path / "tiny.gguf")
    with open_gguf(path) as file, pytest.raises(ModelError, match=r"tokenizer\.ggml\.mask_token_id is missing"):
        trace(file)
