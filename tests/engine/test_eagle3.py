"""A head of EAGLE-3 reads three layers of a model, guesses its tokens, and changes no text."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.eagle3 import WIDTH, eagle3_features, eagle3_logits, eagle3_tensors, guessing_eagle3, write_eagle3
from tests.cases.families import FAMILIES
from tests.cases.tiny import TINY, tensors, write_tiny
from tests.engine.test_batching import drive_with_head
from woolly import LLM, ModelError, SamplingParams, UnsupportedError
from woolly.engine import MtpProposer
from woolly.gguf import open_gguf
from woolly.models import trace, trace_head
from woolly.runtime import Batch, Options, get_backend
from woolly.serving.model_manager.memory_check import estimate
from woolly.serving.settings.options import ModelOptions

TARGET = replace(TINY["llama"], name="llama-eagle3", n_layers=5)
LAYERS = [1, 2, 4]
GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
PROMPT = np.random.RandomState(5).randint(0, 256, 70).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("eagle3")


@pytest.fixture(scope="module")
def target(folder):
    return write_tiny(TARGET, folder / "target.gguf")


@pytest.fixture(scope="module")
def pair(folder):
    """A model whose layers add little to the token's embedding, and a head that hands it on."""
    whole = tensors(TARGET)
    whole["token_embd.weight"] *= 8
    whole["output.weight"] *= 8
    for name, array in whole.items():
        if name.endswith(("attn_output.weight", "ffn_down.weight")):
            whole[name] = array * np.float32(0.05)
        elif "norm.weight" in name:
            whole[name] = np.ones_like(array)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.cases.tiny.tensors", lambda tiny: whole)
        model = write_tiny(TARGET, folder / "right.gguf")
    head = guessing_eagle3(whole["token_embd.weight"], whole["output.weight"])
    return model, write_eagle3(folder / "eagle3-right.gguf", head, LAYERS)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("is_normed", [False, True])
def test_drafts_match_the_published_code(folder, target, backend, is_normed):
    """Features of a text, logits of the head after each row, and those of a row after its own feature."""
    keys = {"norm_before_residual": is_normed, "norm_before_fc": is_normed}
    own = eagle3_tensors()
    head = write_eagle3(folder / f"eagle3-{is_normed}.gguf", own, LAYERS, **keys)
    tokens, table = PROMPT[:24], tensors(TARGET)["token_embd.weight"]
    with LLM(target, ctx=64, threads=1, backend="reference") as llm:
        inputs = [llm.hidden(tokens, f"blk.{layer - 1}") for layer in LAYERS]
    features = eagle3_features(own, inputs, is_normed)
    after = [*tokens[1:], 7]
    logits, following = eagle3_logits(own, features, after, table, is_normed)
    with open_gguf(target) as file, open_gguf(head) as other:
        plan = trace_head(file, trace(file), other)
        assert [value.id for value in plan.values] == list(range(len(plan.values)))
        all_tensors = {**file.tensors, **{f"head.{name}": tensor for name, tensor in other.tensors.items()}}
        options = Options(threads=1, kv_type="f32", max_rows=32)
        program = get_backend(backend).compile(plan, all_tensors, options)
        draft = MtpProposer(program)
        batch = Batch.of([(tokens, 0, [0])])
        rows = program.run(batch, program.new_state(1), 0, draft.step + 1).copy()
        np.testing.assert_allclose(rows, features, rtol=0, atol=2e-3)
        state = program.draft.new_state(1)
        batch = replace(Batch.of([(after, 0, [0])], range(24)), hidden=features.astype(np.float32))
        mine = program.draft.run(batch, state).copy()
        batch = replace(Batch.of([([9], 24, [0])], [0]), hidden=following[-1:].astype(np.float32))
        last = program.draft.run(batch, state).copy()
    size = np.abs(logits).max()
    np.testing.assert_allclose(mine, logits, rtol=0, atol=2e-2 * size)
    wanted = eagle3_logits(own, np.concatenate([features, following[-1:]]), [*after, 9], table, is_normed)[0]
    np.testing.assert_allclose(last, wanted[-1:], rtol=0, atol=2e-2 * size)


def test_correct_head_saves_steps_and_changes_no_text(pair):
    model, head = pair
    with LLM(model, ctx=256, threads=1) as plain:
        wanted = plain.generate(PROMPT, GREEDY).token_ids
        n_plain = plain.engine.n_steps
        assert plain.engine.draft is None
    with LLM(model, ctx=256, threads=1, speculation=head) as llm:
        done = llm.generate(PROMPT, GREEDY)
        assert done.token_ids == wanted
        assert 0 < done.n_drafted_tokens <= 4 * done.n_accepted_tokens
        assert llm.engine.n_steps < n_plain
        again = llm.generate([*PROMPT, *wanted, 3], GREEDY)
        assert again.n_cached_tokens >= 64


def test_concurrent_requests_give_the_output_of_no_drafts(pair):
    requests = drive_with_head(*pair, lambda loaded: MtpProposer(loaded.program, loaded.draft_ids), 8)
    assert sum(request.n_accepted for request in requests) > 0


def test_random_head_changes_no_text(folder, target):
    head = write_eagle3(folder / "eagle3-random.gguf", eagle3_tensors(), LAYERS)
    with LLM(target, ctx=256, threads=1) as plain, LLM(target, ctx=256, threads=1, speculation=head) as llm:
        done = llm.generate(PROMPT, GREEDY)
        assert done.token_ids == plain.generate(PROMPT, GREEDY).token_ids
        assert done.n_drafted_tokens > 0


def test_incompatible_head_gives_a_one_line_error(folder, target):
    own = eagle3_tensors()
    wide = write_eagle3(folder / "wide.gguf", eagle3_tensors(read_width=32), LAYERS, target_hidden_size=32)
    with pytest.raises(ModelError, match=r"wide.gguf is for a model with width 32, but target.gguf has 64"):
        LLM(target, ctx=64, threads=1, speculation=wide)
    far = write_eagle3(folder / "far.gguf", own, [1, 2, 9])
    with pytest.raises(ModelError, match="the head reads layer 9, but the llama model has 5"):
        LLM(target, ctx=64, threads=1, speculation=far)
    two = write_eagle3(folder / "two.gguf", own, [1, 2])
    with pytest.raises(ModelError, match="the draft head has 1 layers and reads 2 model layers; expected 1 and 3"):
        LLM(target, ctx=64, threads=1, speculation=two)
    outside = write_eagle3(folder / "outside.gguf", own | {"d2t": own["d2t"] + 260}, LAYERS)
    with pytest.raises(ModelError, match="d2t has token ids outside the model's vocabulary of 320"):
        LLM(target, ctx=64, threads=1, speculation=outside)
    without = write_eagle3(folder / "without.gguf", {k: v for k, v in own.items() if k != "d2t"}, LAYERS)
    with pytest.raises(ModelError, match="the draft predicts 200 of 320 tokens, but has no d2t table"):
        LLM(target, ctx=64, threads=1, speculation=without)
    more = write_eagle3(folder / "more.gguf", own | {"blk.0.attn_q_norm.weight": np.ones(16, np.float32)}, LAYERS)
    with pytest.raises(ModelError, match="tensors that Woolly's eagle3 model does not use"):
        LLM(target, ctx=64, threads=1, speculation=more)


def test_head_is_not_a_model_and_its_memory_is_counted(folder, target):
    head = write_eagle3(folder / "eagle3-alone.gguf", eagle3_tensors(), LAYERS)
    with pytest.raises(UnsupportedError, match="eagle3 is a draft head for another model; open that model"):
        LLM(head, ctx=64, threads=1)
    needed, plain = (estimate(target, ModelOptions(speculation=one, ctx=64)) for one in (str(head), "none"))
    assert needed.weights - plain.weights == sum(
        array.nbytes for name, array in eagle3_tensors().items() if name not in ("d2t", "enc.output_norm.weight")
    )
    assert needed.cache - plain.cache == 64 * 2 * WIDTH * 2


def test_other_families_are_supported_too(folder):
    for name in ("qwen3", "gpt-oss"):
        tiny = replace((TINY | FAMILIES)[name], n_layers=4)
        path = write_tiny(tiny, folder / f"{name}.gguf")
        head = write_eagle3(folder / f"eagle3-{name}.gguf", eagle3_tensors(), [1, 2, 4])
        with LLM(path, ctx=256, threads=1) as plain, LLM(path, ctx=256, threads=1, speculation=head) as llm:
            done = llm.generate(PROMPT[:20], GREEDY)
            assert done.token_ids == plain.generate(PROMPT[:20], GREEDY).token_ids
            assert done.n_drafted_tokens > 0
