"""The block of a file that guesses tokens saves steps and changes no text."""

import functools
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.mtp import MTP, NEMOTRON, RAW, write_guessing
from tests.cases.tiny import TINY, block, tensors, write_tiny
from tests.engine.test_batching import cases, drive, result, same
from woolly import LLM, ModelError, RequestError, SamplingParams, UnsupportedError
from woolly.engine import Engine, MtpLookupProposer, MtpProposer
from woolly.gguf import open_gguf
from woolly.models import trace, trace_draft
from woolly.runtime import Batch, Options, get_backend
from woolly.tokens import Tokenizer

ALL = MTP | RAW | NEMOTRON
CTX = 192
SIZE = 0.05  # of what layers add: some of the guesses come true
GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
PROMPT = np.random.RandomState(5).randint(0, 256, 70).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mtp")


def compiled(path, backend="cpu"):
    file = open_gguf(path)
    plan = trace(file)
    plan = replace(plan, draft=trace_draft(file, plan))
    return get_backend(backend).compile(plan, file.tensors, Options(threads=1)), Tokenizer.from_metadata(file.metadata)


@functools.cache
def model(name, folder):
    return compiled(write_guessing(MTP[name], folder / f"{name}.gguf", SIZE))


def drafted(path, backend, hidden, tokens, is_normed=False):
    """Logits and hidden states of the block for every row, read in two parts."""
    program, _ = compiled(path, backend)
    state, steps = program.draft.new_state(2), program.draft.running_plan.steps
    (picked,) = (i for i, step in enumerate(steps) if step.op == "output_rows")
    out = []
    for rows in (slice(0, 3), slice(3, None)):
        n = len(tokens[rows])
        batch = Batch.of([(tokens[rows], rows.start, [1, 0])], range(n))
        batch = replace(batch, hidden=np.ascontiguousarray(hidden[rows]), is_hidden_normed=is_normed)
        mine = program.draft.run(batch, state, 0, picked).copy()
        out.append((mine, program.draft.run(batch, state, picked).copy()))
    return [np.concatenate(parts) for parts in zip(*out, strict=True)]


@pytest.mark.parametrize("name", ALL)
def test_reference_and_native_agree(folder, name):
    path = write_tiny(ALL[name], folder / f"{name}-whole.gguf")
    random = np.random.RandomState(3)
    hidden, tokens = random.randn(40, 64).astype(np.float32) * 3, random.randint(0, 256, 40).tolist()
    for is_normed in (False, True):
        wanted = drafted(path, "reference", hidden, tokens, is_normed)
        got = drafted(path, "cpu", hidden, tokens, is_normed)
        for mine, theirs in zip(got, wanted, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-2)


def test_mtp_block_is_a_layer_over_the_projected_pair(folder):
    """The logits equal those of a model with only that layer, whose table holds the projected rows."""
    tiny = MTP["glm4moe"]
    path, whole = write_tiny(tiny, folder / "whole.gguf"), tensors(MTP["glm4moe"])
    own = {k.removeprefix("blk.3."): v for k, v in whole.items() if k.startswith("blk.3.")}
    random = np.random.RandomState(4)
    hidden, tokens = random.randn(30, 64).astype(np.float32), random.randint(0, 256, 30).tolist()

    def norm(x, weight):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5) * weight

    h = norm(norm(hidden, whole["output_norm.weight"]), own["nextn.hnorm.weight"])
    e = norm(whole["token_embd.weight"][tokens], own["nextn.enorm.weight"])
    rows = np.concatenate([e, h], 1) @ own["nextn.eh_proj.weight"].T
    table = np.zeros_like(whole["token_embd.weight"])
    table[: len(rows)] = rows
    alone = {f"blk.0.{k}": v for k, v in own.items() if not k.startswith("nextn")}
    alone |= {"token_embd.weight": table, "output_norm.weight": own["nextn.shared_head_norm.weight"]}
    alone["output.weight"] = whole["token_embd.weight"]  # the model's head is its table
    extra = {k: v for k, v in tiny.extra.items() if k != "nextn_predict_layers"} | {"leading_dense_block_count": 0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.cases.tiny.tensors", lambda tiny: alone)
        one = write_tiny(replace(tiny, n_layers=1, dense=0, extra=extra), folder / "one.gguf")
    with LLM(one, ctx=64, threads=1, backend="reference") as llm:
        wanted, normed = llm.logits(range(30)), llm.hidden(range(30), "output_norm")
    mine, logits = drafted(path, "reference", hidden, tokens)
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-4)
    np.testing.assert_allclose(mine, normed, rtol=0, atol=1e-4)


def test_nemotron_block_is_two_layers_over_the_pair_and_a_layer_norm(folder):
    """The hidden rows equal those of a model with attention and experts, whose table holds the projected rows."""
    tiny = NEMOTRON["nemotron_h_moe"]
    path, whole = write_tiny(tiny, folder / "nemotron.gguf"), tensors(tiny)
    own = {k.removeprefix("blk.5."): v for k, v in whole.items() if k.startswith("blk.5.")}
    random = np.random.RandomState(4)
    hidden, tokens = random.randn(30, 64).astype(np.float32), random.randint(0, 256, 30).tolist()

    def norm(x, weight):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5) * weight

    h = norm(norm(hidden, whole["output_norm.weight"]), own["nextn.hnorm.weight"])
    e = norm(whole["token_embd.weight"][tokens], own["nextn.enorm.weight"])
    table = np.zeros_like(whole["token_embd.weight"])
    table[:30] = np.concatenate([e, h], 1) @ own["nextn.eh_proj.weight"].T
    alone = {f"blk.0.{k}": v for k, v in own.items() if k.startswith("attn_")}
    alone |= {f"blk.1.{k}": v for k, v in own.items() if k.startswith(("ffn_", "exp_"))}
    alone |= {"blk.1.attn_norm.weight": own["post_attention_norm.weight"], "token_embd.weight": table}
    alone |= {name: whole[name] for name in ("output_norm.weight", "output.weight")}
    lists = {"feed_forward_length": [0, 24], "attention.head_count_kv": [2, 0], "nextn_predict_layers": 0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.cases.tiny.tensors", lambda tiny: alone)
        one = write_tiny(replace(tiny, n_layers=2, extra=tiny.extra | lists), folder / "two.gguf")
    with LLM(one, ctx=64, threads=1, backend="reference") as llm:
        left = llm.hidden(range(30), "blk.1")
    centred = left - left.mean(axis=1, keepdims=True)
    normed = centred / np.sqrt(np.mean(centred**2, axis=1, keepdims=True) + 1e-5) * own["nextn.shared_head_norm.weight"]
    mine, logits = drafted(path, "reference", hidden, tokens)
    np.testing.assert_allclose(mine, normed, rtol=0, atol=1e-4)
    np.testing.assert_allclose(logits, normed @ whole["output.weight"].T, rtol=0, atol=1e-4)


@functools.cache
def chosen():
    lengths = [len(case.prompt) + case.params.max_tokens for case in cases()]
    return sorted(range(len(lengths)), key=lengths.__getitem__)[-16:]


@functools.cache
def alone(name, folder):
    program, tokenizer = model(name, folder)
    return {i: result(drive(Engine(program, tokenizer, ctx=CTX), [i], 0)[i]) for i in chosen()}


@pytest.mark.parametrize("name", MTP)
@pytest.mark.parametrize(("chunk", "room"), [(5, "plenty"), (32, "tight"), (512, "plenty"), (512, "tight")])
def test_concurrent_requests_give_the_output_of_no_drafts(folder, name, chunk, room, monkeypatch):
    if chunk == 32:  # one grammar in each step: the others are deferred to a later one
        monkeypatch.setattr("woolly.engine.step.deferred_rows.GRAMMAR_SECONDS", 0.0)
    program, tokenizer = model(name, folder)
    engine = Engine(
        program,
        tokenizer,
        ctx=CTX,
        kv_tokens=20 * CTX if room == "plenty" else 320,
        chunk=chunk,
        max_running=6,
        n_snapshots=40 if room == "plenty" else 3,
        draft=MtpProposer(program),
        draft_tokens=5,
    )
    requests = drive(engine, np.random.RandomState(chunk).permutation(chosen()).tolist(), chunk)
    for i, request in requests.items():
        same(result(request), alone(name, folder)[i], cases()[i])
    assert engine.scheduler.pages.n_free == engine.scheduler.pages.n_pages
    assert engine.scheduler.slots.n_free == engine.scheduler.slots.n_slots
    assert not engine.draft._waiting
    if room == "tight":
        assert engine.scheduler.n_preemptions > 0
    n_drafted, n_accepted = (sum(getattr(r, f"n_{x}") for r in requests.values()) for x in ("drafted", "accepted"))
    assert chunk == 5 or 0 < n_accepted < n_drafted


@pytest.mark.parametrize("name", ALL)
def test_always_correct_block_saves_most_steps(folder, name):
    path = write_guessing(ALL[name], folder / f"{name}-right.gguf", 0.0)
    with LLM(path, ctx=256, threads=1, speculation=None) as plain:
        wanted = plain.generate(PROMPT, GREEDY).token_ids
        n_plain = plain.engine.n_steps
    with LLM(path, ctx=256, threads=1) as llm:
        (request,) = llm.prepare(PROMPT, GREEDY)[0]
        (completion,) = llm.driver.complete([[request]])
        assert completion.token_ids == wanted
        assert completion.n_accepted_tokens == completion.n_drafted_tokens > 45
        assert llm.engine.n_steps < n_plain / 4
        # The next turn finds the prefix, and the block's part of it.
        again = llm.generate([*PROMPT, *wanted, 3], GREEDY)
        assert again.n_cached_tokens >= 64
        assert again.n_accepted_tokens == again.n_drafted_tokens > 45


def test_lookup_drafts_while_it_is_right_and_the_block_otherwise(folder, monkeypatch):
    program, tokenizer = model("glm4moe", folder)
    together = Engine(program, tokenizer, ctx=CTX, draft=MtpLookupProposer(program))
    for i, request in drive(together, chosen()[:6], 0).items():
        same(result(request), alone("glm4moe", folder)[i], cases()[i])
    draft = together.draft
    assert not draft._waiting and not draft._records and not draft._lookup._seen
    monkeypatch.setattr(MtpProposer, "propose", lambda self, wanted: [[0] for _ in wanted])
    one, other = Mock(n_shifts=0, context=[1, 2, 3, 4, 1, 2]), Mock(n_shifts=0, context=[5, 6])
    assert draft.propose([(one, 2), (other, 2)]) == [[3, 4], [0]]
    one.context += [9, 1, 2]  # it was wrong, so that it is only watched
    assert draft.propose([(one, 1)]) == [[0]]
    for _ in range(3):
        one.context += [9, 1, 2]
        last = draft.propose([(one, 1)])
    assert last == [[9]]
    draft.forget(one)
    draft.forget(other)
    assert not draft._records


def test_prompt_rows_of_the_block_are_cached(folder):
    """Guesses after a prefix from the cache are those after one that is computed, but for one row of the block."""
    path = write_guessing(MTP["glm4moe"], folder / "again.gguf", 0.25)
    with LLM(path, ctx=256, threads=1, chunk=16) as llm:
        first = llm.generate(PROMPT, GREEDY)
        again = llm.generate(PROMPT, GREEDY)
    assert again.n_cached_tokens == 64
    assert again.token_ids == first.token_ids
    assert abs(again.n_accepted_tokens - first.n_accepted_tokens) <= 6 < first.n_accepted_tokens


def test_shifted_context_and_hooks_work_with_mtp(folder):
    path = write_guessing(MTP["glm4moe"], folder / "glm4moe.gguf", SIZE)
    params = replace(GREEDY, max_tokens=90, context_shift=True, n_keep=3)
    seen = {}
    with (
        LLM(path, ctx=96, threads=1, speculation=None) as plain,
        LLM(path, ctx=96, threads=1, speculation="mtp") as llm,
    ):
        assert llm.generate(PROMPT, params).token_ids == plain.generate(PROMPT, params).token_ids
        for name, one in (("plain", plain), ("mtp", llm)):
            rows = seen.setdefault(name, [])
            one.generate(PROMPT[:20], GREEDY, hooks={"blk.2": lambda at, x, rows=rows: rows.append(x.copy())})
    np.testing.assert_array_equal(np.concatenate(seen["mtp"]), np.concatenate(seen["plain"]))


def test_mtp_is_the_default_if_the_file_has_it_and_rejected_by_name_otherwise(folder):
    path = write_guessing(MTP["glm4moe"], folder / "glm4moe.gguf", SIZE)
    plain = write_tiny(TINY["llama"], folder / "llama.gguf")
    for speculation, kind in (
        *(("auto", MtpProposer), ("mtp", MtpProposer), ("mtp_lookup", MtpLookupProposer)),
        *(("none", type(None)), (None, type(None))),
    ):
        with LLM(path, ctx=64, threads=1, speculation=speculation) as llm:
            assert type(llm.engine.draft) is kind
    with LLM(path, ctx=64, threads=1, speculation="prompt_lookup") as llm:
        assert llm.plan.draft is None
    with LLM(plain, ctx=64, threads=1) as llm:
        assert llm.engine.draft is None
    with pytest.raises(RequestError, match=r"speculation is 'mtp', but .*llama.gguf has no MTP block"):
        LLM(plain, ctx=64, threads=1, speculation="mtp")


def test_unusable_block_is_reported_and_not_needed(folder):
    tiny = MTP["glm4moe"]
    short = replace(tiny, blocks=lambda row, i: {k: v for k, v in block(tiny, i).items() if "hnorm" not in k})
    path = write_tiny(short, folder / "short.gguf")
    with pytest.warns(UserWarning, match=r"speculation is off.*nextn.hnorm.weight is missing"):
        LLM(path, ctx=64, threads=1).close()
    with pytest.raises(ModelError, match=r"nextn.hnorm.weight is missing"):
        LLM(path, ctx=64, threads=1, speculation="mtp")
    more = {"nextn.eh_proj.weight": (64, 128)}
    exaone = FAMILIES["exaone-moe"]
    other = replace(
        exaone,
        extra=exaone.extra | {"nextn_predict_layers": 1},
        blocks=lambda row, i: block(exaone, i) | (more if i == exaone.n_layers - 1 else {}),
    )
    path = write_tiny(other, folder / "exaone.gguf")
    LLM(path, ctx=64, threads=1).close()
    with pytest.raises(UnsupportedError, match="draft blocks of exaone-moe models are not supported yet"):
        LLM(path, ctx=64, threads=1, speculation="mtp")
