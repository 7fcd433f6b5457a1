"""A model that is split between a GPU and the CPU answers as others do."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import TINY
from woolly import LLM, SamplingParams
from woolly.errors import RequestError
from woolly.llm.bit_identity import device_bytes
from woolly.runtime import Options, PortableState, Ranks
from woolly.runtime.split import SplitProgram

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
PROMPT = "sheep and sheep and sheep"


def test_llm_split_over_gpu_and_cpu_gives_one_text(machine):
    one = machine(replace(TINY["llama"], n_layers=3))
    one.sizes = [8 << 30]
    options = {"gpu_layers": 2, "ctx": 128, "threads": 1}
    with LLM(one.file.path, **options) as llm, LLM(one.file.path, **options, speculation="prompt_lookup") as fast:
        program = llm.engine.program
        assert isinstance(program, SplitProgram) and not isinstance(program, Ranks)
        assert [share.n_layers for share in program.about.shares] == [2, 1]
        seen = []
        answer = llm.generate(PROMPT, replace(GREEDY), hooks={"blk.1": lambda _, values: seen.append(values.copy())})
        assert fast.generate(PROMPT, GREEDY).token_ids == answer.token_ids
        ids = [*llm.tokenize(PROMPT), *answer.token_ids[:-1]]
        n = len(answer.token_ids)
        assert np.argmax(llm.logits(ids)[-n:], axis=1).tolist() == list(answer.token_ids)
        np.testing.assert_array_equal(np.concatenate(seen)[: len(ids)], llm.hidden(ids, "blk.1"))
        assert isinstance(llm.engine.state, PortableState) and llm.engine.state.is_portable
        on_gpu, on_cpu = zip(program.about.shares, llm.engine.state.parts, strict=True)
        assert on_cpu[0].weights > 0 and on_cpu[1].n_bytes > 0  # neither counts as the GPU's
        assert device_bytes(llm.engine) == on_gpu[0].weights + on_gpu[0].values + on_gpu[1].n_bytes


def test_part_with_the_head_ranks_logits(machine):
    one = machine(replace(FAMILIES["qwen3moe"], n_layers=2))
    costs = one.counted(Options(max_rows=512, cache_tokens=256))
    one.sizes = [one.room_for(lambda atom: not atom.is_experts, costs)]
    with LLM(one.file.path, ctx=256, kv_tokens=256, threads=1, chunk=64, max_running=1) as llm:
        program = llm.engine.program
        assert isinstance(program, SplitProgram) and isinstance(program, Ranks)
        answer = llm.generate(PROMPT, GREEDY)
        ids = [*llm.tokenize(PROMPT), *answer.token_ids[:-1]]
        assert np.argmax(llm.logits(ids)[-4:], axis=1).tolist() == list(answer.token_ids)


def test_gpu_layers_are_accepted_without_a_gpu_and_rejected_with_stages(tiny_model, tmp_path, caplog, monkeypatch):
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with LLM(tiny_model, gpu_layers=99, ctx=64) as llm:
        assert llm.engine.program.about.backend == "cpu"
    assert "gpu_layers=99 (-ngl 99) has no effect: no GPU is usable, so the CPU runs all layers" in caplog.text
    with pytest.raises(RequestError, match="gpu_layers"):
        LLM(tiny_model, gpu_layers=3, stages=["127.0.0.1:1"], stage_token_file=token)
    with pytest.raises(RequestError, match="gpu_layers is 'many'; expected auto, all or an integer"):
        LLM(tiny_model, gpu_layers="many")
