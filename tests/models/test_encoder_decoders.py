"""Decoders that read an encoder agree with transformers, and no row's bits depend on its batch."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from tests.cases.encoder_decoders import ANSWER, EVERY, READERS, SOURCE, START, STRIDE
from tests.cases.tiny import write_tiny
from woolly import LLM
from woolly.engine.loading.load import load_model
from woolly.engine.multimodal import source_backend
from woolly.engine.pooling.make_pooler import make_pooler
from woolly.errors import ModelError, RequestError, UnsupportedError
from woolly.gguf import open_gguf
from woolly.models import trace, trace_encoder
from woolly.plan.passes import inject_embeddings
from woolly.runtime import Batch, Gpu, Options, get_backend, pages_for
from woolly.runtime.cpu.program import CpuBackend
from woolly.serving import Settings, create_app
from woolly.serving.model_manager.memory_check import estimate
from woolly.serving.settings.options import ModelOptions

GOLDENS = Path(__file__).parent.parent / "goldens"


class Halves:
    """Both halves of a model, and the rows that its encoder makes of SOURCE."""

    n, n_all = len(SOURCE), len(SOURCE) + len(ANSWER)

    def __init__(self, file, backend, **options):
        plan = trace(file)
        self.encoder = trace_encoder(file, plan)
        both = (self.encoder.plan, inject_embeddings(plan, 64))
        reads, self.writes = (get_backend(backend).compile(one, file.tensors, Options(**options)) for one in both)
        self.pages = list(range(pages_for(self.n_all)))
        state = reads.new_state(pages_for(self.n))
        self.rows = reads.run(Batch.of([(SOURCE, 0, self.pages[: state.n_pages])], range(self.n)), state).copy()

    def new_state(self):
        return self.writes.new_state(len(self.pages))

    def logits(self, first, last, state):
        """Logits of the answer's positions, of those from `first` to `last` of all."""
        ids = [0] * self.n + ANSWER
        batch = Batch.of([(ids[first:last], first, self.pages)], range(max(0, self.n - first), last - first))
        attn_ranges = np.array([(min(i, self.n), i + 1) for i in range(first, last)], np.int32)
        batch = replace(batch, attn_ranges=attn_ranges)
        if first < self.n:
            its = slice(first, min(last, self.n))
            at = np.arange(its.stop - first, dtype=np.int32)
            batch = replace(batch, inputs_embeds=self.rows[its].copy(), embeds_rows=at)
        return self.writes.run(batch, state).copy()


@pytest.mark.parametrize("name", READERS)
def test_decoder_with_its_encoder_matches_transformers(name, tmp_path):
    want = np.load(GOLDENS / f"tiny-{name}.npz")["logits"]
    with open_gguf(write_tiny(READERS[name], tmp_path / "tiny.gguf")) as file:
        exact, cpu = Halves(file, "reference"), Halves(file, "cpu", kv_type="f32", threads=2)
        assert exact.encoder.start == START and exact.writes.plan.has_source
        for halves, bound in ((exact, 1e-5), (cpu, 3e-5)):
            logits = halves.logits(0, halves.n_all, halves.new_state())
            ours = logits[::EVERY, ::STRIDE]
            assert (np.linalg.norm(ours - want, axis=1) / np.linalg.norm(want, axis=1)).max() < bound
        for chunk in (1, 7):
            state, firsts = cpu.new_state(), range(0, cpu.n_all, chunk)
            parts = [cpu.logits(first, min(first + chunk, cpu.n_all), state) for first in firsts]
            np.testing.assert_array_equal(np.concatenate(parts), logits)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(READERS["t5-reads-gated"], tmp_path_factory.mktemp("t5") / "tiny.gguf")


PROMPTS = ["Translate this text, which is longer than a page of the cache.", "Say no.", "Translate this text."]


@pytest.fixture(scope="module")
def llm(path):
    with LLM(path, threads=2) as llm:
        yield llm


def test_answers_do_not_depend_on_chunks_batches_or_drafts(path, llm):
    ask = {"max_tokens": 40, "temperature": 0.0, "ignore_eos": True}
    alone = [llm.generate(prompt, **ask) for prompt in PROMPTS]
    again = llm.generate(PROMPTS[0], **ask)
    assert again.token_ids == alone[0].token_ids and again.n_cached_tokens >= 32
    assert alone[0].n_prompt_tokens == len(llm.tokenize(PROMPTS[0])) + 1
    assert len({tuple(one.token_ids) for one in alone}) == 3
    assert [one.token_ids for one in llm.generate(PROMPTS, **ask)] == [one.token_ids for one in alone]
    with LLM(path, threads=1, chunk=5, speculation="prompt_lookup") as other:
        assert [one.token_ids for one in other.generate(PROMPTS, **ask)] == [one.token_ids for one in alone]


def test_replies_report_the_given_prompt(path, tmp_path):
    own = {"models_dir": path.parent, "model": str(path), "backend": "cpu", "threads": 1, "parallel": 1}
    body = {"prompt": PROMPTS[0], "max_tokens": 2, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    with TestClient(create_app(Settings(**own, slot_save_path=tmp_path)), base_url="http://localhost") as client:
        ids = client.post("/tokenize", json={"content": PROMPTS[0], "add_special": True}).json()["tokens"]
        answer = client.post("/v1/completions", json=body).json()
        assert answer["choices"][0]["prompt_token_ids"] == ids
        assert answer["usage"]["prompt_tokens"] == len(ids) + 1  # the answer's first position is computed with them
        cut = client.post("/v1/completions", json=body | {"echo": True, "truncate_prompt_tokens": 9}).json()["choices"]
        assert cut[0]["prompt_token_ids"] == ids[-9:]
        detokenized = client.post("/detokenize", json={"tokens": ids[-9:]}).json()["content"]
        assert cut[0]["text"].startswith(detokenized)
        messages = [{"role": "user", "content": "Say no."}]
        chat = client.post("/v1/chat/completions", json=body | {"messages": messages, "prompt": None}).json()
        assert len(set(chat["prompt_token_ids"])) > 3
        refused = client.post("/slots/0?action=save", json={"filename": "a"})
        assert refused.status_code == 400 and "the last request of slot 0 used an encoder" in refused.text


def test_estimate_ignores_a_gpu_the_model_cannot_use(path, monkeypatch):
    gpu = Gpu(0, "NVIDIA Fake", "sm_90", 8 << 30, 8 << 30, 3e12)
    monkeypatch.setattr("woolly.engine.loading.memory_estimate.find_gpu", lambda number, kind: gpu)
    assert not estimate(path, ModelOptions(ctx=64)).gpus
    seen, budgets = [], []
    monkeypatch.setattr("woolly.engine.loading.load.check_memory", lambda name, needed: seen.append(needed))

    def compile(self, plan, tensors, options, compile=CpuBackend.compile):
        budgets.append(options.weight_memory)
        return compile(self, plan, tensors, options)

    monkeypatch.setattr(CpuBackend, "compile", compile)
    loaded = load_model(path, "auto", Options(threads=1, weight_memory=100_001), checks_memory=True)
    loaded.close()
    assert [one.gpus for one in seen] == [()]
    assert len(budgets) == 2 and all(budgets) and sum(budgets) == 100_001 and loaded.weight_bytes == 100_001


def test_options_that_need_a_decoder_only_model_are_rejected_by_name(llm, path):
    for call in (llm.logits, lambda text: llm.hidden(text, 3), llm.score):
        with pytest.raises(RequestError, match="encoder"):
            call([1, 2, 3] if call is llm.logits else "abc")
    with pytest.raises(RequestError, match="context_shift is not supported by encoder-decoder models"):
        llm.generate("a", context_shift=True)
    with pytest.raises(RequestError, match="encoder-decoder model"):
        make_pooler(llm.engine.program, {}, "mean")
    with pytest.raises(UnsupportedError, match="GPUs do not support encoder-decoder models yet"):
        source_backend("cuda", Options())
    with pytest.raises(RequestError, match="support no draft models"):
        LLM(path, speculation=str(path))


def test_encoder_decoder_file_gives_embeddings_of_its_encoder(path):
    with open_gguf(path) as file:
        plan = trace(file, "embeddings", "mean")
        assert plan.result == "embeddings" and not plan.is_causal and not plan.has_source


def test_start_token_outside_the_vocabulary_is_rejected(tmp_path):
    tiny = READERS["t5-reads"]
    tiny = replace(tiny, extra=tiny.extra | {"decoder_start_token_id": 999})
    with open_gguf(write_tiny(tiny, tmp_path / "a")) as file, pytest.raises(ModelError, match="token_id is 999"):
        trace_encoder(file, trace(file))
