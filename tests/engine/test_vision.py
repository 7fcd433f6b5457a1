"""Images in prompts: the same text and bits alone, together, in chunks, from the cache and from disk."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cases.chosen import CHOSEN
from tests.cases.families import FAMILIES
from tests.cases.hybrids import HYBRIDS
from tests.cases.latents import LATENTS
from tests.cases.tiny import GRANITE, TINY, write_tiny
from tests.cases.towers import TOWERS, encoder_input, image, write_tower
from woolly.cache.page_folder import PageFolder
from woolly.engine import Engine, load_model
from woolly.engine.loading import memory_estimate
from woolly.engine.multimodal import tower_bytes
from woolly.engine.request_options import RequestOptions
from woolly.errors import RequestError
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.multimodal import EncoderInput, Placeholder, ProcessedItem, make_replacement
from woolly.plan.passes import inject_embeddings
from woolly.runtime import PAGE_SIZE, Options
from woolly.sampling.params import SamplingParams

GOLDENS = Path(__file__).parent.parent / "goldens"
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2)
M_ROPE = {"rope.dimension_sections": [2, 3, 3, 0]}
QWEN2 = replace(TINY["qwen2"], name="qwen2vl-text", architecture="qwen2vl", extra=M_ROPE)
QWEN3 = replace(TINY["qwen3"], name="qwen3vl-text", architecture="qwen3vl", head_dim=16, extra=M_ROPE)
# The text model beside each tower.
PAIRS = {
    "gemma3": FAMILIES["gemma3"],
    "llava": TINY["llama"],
    "cogvlm": FAMILIES["cogvlm"],
    "qwen2vl": QWEN2,
    "qwen2.5vl": QWEN2,
    "qwen3vl": QWEN3,
    "idefics3": TINY["llama"],
    "pixtral": TINY["llama"],
    "internvl": TINY["qwen2"],
    "llava1.6": TINY["llama"],
    "gemma4": FAMILIES["gemma4"],
    "gemma4-e": FAMILIES["gemma4-e"],
    "gemma4-12b": FAMILIES["gemma4"],
    "lfm2": HYBRIDS["lfm2"],
    "minicpmv": TINY["qwen2"],
    "minicpmv4.6": TINY["qwen2"],
    "paddleocr": FAMILIES["paddleocr"],
    "glm4v": replace(FAMILIES["glm4"], name="glm4v-text", extra={"rope.dimension_sections": [1, 1, 2, 0]}),
    "glm-ocr": replace(FAMILIES["glm4"], name="glm-ocr-text", extra={"rope.dimension_sections": [1, 1, 2, 0]}),
    "granite": TINY["granite"],
    "kimivl": LATENTS["deepseek-v3"],
    "kimik25": LATENTS["deepseek-v3"],
    "step3vl": TINY["qwen3"],
    "granite4_vision": replace(TINY["granite"], n_layers=4, extra=GRANITE | {"deepstack_mapping": [0, -1, 1, 2]}),
    "nemotron_v2_vl": HYBRIDS["nemotron_h"],
    "qwen2.5o": QWEN2,
    "exaone4.5": FAMILIES["exaone4"],
    "minimax-m3": CHOSEN["minimax-m3"],
    "phi4": FAMILIES["phi"],
    "youtuvl": LATENTS["deepseek-v3"],
    "dots_ocr": TINY["qwen2"],
    "lightonocr": TINY["qwen3"],
    "deepseekocr": FAMILIES["deepseek2-ocr"],
    "deepseekocr2": FAMILIES["deepseek2-ocr"],
    "hunyuanvl": FAMILIES["hunyuan_vl"],
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Engines by family; models are opened once."""
    loaded = {}

    def make(name, **options):
        if name not in loaded:
            folder = tmp_path_factory.mktemp(name)
            text = write_tiny(PAIRS[name], folder / "text.gguf")
            tower = write_tower(TOWERS[name.removesuffix("-e")], folder / "tower.gguf")
            loaded[name] = load_model(text, "cpu", Options(threads=2), projector=tower)
        one = loaded[name]
        return Engine(one.program, one.tokenizer, tower=one.tower, **{"ctx": 512, "kv_tokens": 2048} | options)

    yield make
    for one in loaded.values():
        one.close()


def prompt(engine, *parts):
    """Tokens of texts and layouts of images, as callers give them; marks are spelled by bytes."""
    settings, out = engine.encoder_scheduler.tower.settings, []
    for part in parts:
        shown = [part] if isinstance(part, str) else make_replacement(part, settings).parts
        for one in shown:
            out += [one] if isinstance(one, Placeholder) else [byte % 256 for byte in one.encode()]
    return tuple(out)


def finish(engine, *prompts, params=GREEDY):
    requests = [engine.add(engine.new_request(one, params)) for one in prompts]
    while any(request.finish_reason is None for request in requests):
        engine.step()
    for request in requests:
        assert request.finish_reason == "length", request.error
    return [said(request) for request in requests]


def said(request):
    """The answer and its log-probabilities, to the bit."""
    return request.output, request.logprobs


def input_image(name, seed=0):
    tower = TOWERS[name.removesuffix("-e")]
    grid = tower.grids[0]
    if tower.projector == "gemma4uv":  # rows of one patch
        return ProcessedItem.of("image", [encoder_input(grid, seed, tower.patch)])
    if "vision.image_grid_pinpoints" in tower.extra:  # an overview and two tiles, with padding
        return image(grid, grid, grid, seed=seed, tiles=(1, 2), size=(30, 90))
    if tower.projector == "step3vl":  # two lines of tiles and an overview
        return image(tower.grids[1], tower.grids[1], grid, seed=seed, tiles=(2, 1))
    if tower.projector.startswith("deepseekocr"):  # a tile, and all of it in a tile's size: an overview takes longer
        return image(*[tower.grids[1]] * 2, seed=seed, tiles=(1, 1))
    return image(grid, seed=seed)


@pytest.mark.parametrize("name", PAIRS)
def test_image_has_the_same_bits_alone_batched_chunked_and_cached(name, opened):
    _check_bits(name, opened, input_image(name), input_image(name, seed=7))


def test_two_frames_have_the_same_bits_alone_batched_chunked_and_cached(opened):
    moving = TOWERS["qwen3vl"].grids[-1]
    _check_bits("qwen3vl", opened, image(moving), image(moving, seed=7))
    engine, (encoder_input,) = opened("qwen3vl"), image(moving).inputs
    n = len(encoder_input.values) // 2
    still = ProcessedItem.of("image", [EncoderInput(encoder_input.values[:n], (1, *moving[1:]))])
    twice = ProcessedItem.of("image", [EncoderInput(np.tile(encoder_input.values[:n], (2, 1)), moving)])
    back = ProcessedItem.of("image", [EncoderInput(np.roll(encoder_input.values, n, axis=0), moving)])
    answers = [finish(engine, prompt(engine, "See ", one, "what?"))[0] for one in (still, twice, image(moving), back)]
    assert answers[0] == answers[1] and answers[1] != answers[2] != answers[3]  # both frames count, in their order


def test_video_has_the_same_bits_alone_batched_chunked_and_cached(opened):
    grid = TOWERS["qwen2.5vl"].grids[-1]

    def clip(*frame_times, seed=0):
        return ProcessedItem.of("image", [*image(grid, seed=seed).inputs] * len(frame_times), frame_times=frame_times)

    _check_bits("qwen2.5vl", opened, clip(0, 2, 5), clip(0, 2, seed=7))
    engine = opened("qwen2.5vl")
    slow, fast = (finish(engine, prompt(engine, "See ", clip(0, n), "what?"))[0] for n in (40, 2))
    assert slow != fast  # the same pixels at other times


def _check_bits(name, opened, one, two):
    engine = opened(name)
    long = "a sheep " * 12
    first = prompt(engine, long, one, "What is it? " * 4)
    second = prompt(engine, "Look: ", two, "and ", one, "Which?")
    alone = [finish(opened(name), one_prompt)[0] for one_prompt in (first, second)]
    assert alone[0] != finish(opened(name), prompt(engine, long, two, "What is it? " * 4))[0]  # it is looked at
    assert finish(engine, first, second) == alone
    n_runs = engine.encoder_scheduler.tower.n_runs
    again = engine.add(engine.new_request(first, GREEDY))
    while again.finish_reason is None:
        engine.step()
    assert said(again) == alone[0]
    assert again.prefix.hit_tokens >= len(long) // PAGE_SIZE * PAGE_SIZE
    assert engine.encoder_scheduler.tower.n_runs == n_runs
    most = max((part.n for part in first if isinstance(part, Placeholder) and part.is_bidirectional), default=0)
    assert finish(opened(name, chunk=most + 18, max_running=8), second, first) == alone[::-1]


def test_second_turn_encodes_nothing_again_even_after_eviction(opened):
    engine = opened("qwen2vl")
    before = "a flock of sheep on a hill " * 3
    first = prompt(engine, before, input_image("qwen2vl"), "What is it, and where, and why is it so? ")
    text, _ = finish(engine, first)[0]
    engine.encoder_scheduler._kept.clear()
    n_runs = engine.encoder_scheduler.tower.n_runs
    longer = (*first, *text, *b"And what is behind it?")
    request = engine.add(engine.new_request(longer, GREEDY))
    while request.finish_reason is None:
        engine.step()
    assert engine.encoder_scheduler.tower.n_runs == n_runs
    assert said(request) == finish(opened("qwen2vl"), longer)[0]


def test_only_equal_images_share_pages(opened):
    engine = opened("llava")
    text = "x" * PAGE_SIZE
    one, two = (prompt(engine, text, input_image("llava", seed), text) for seed in (0, 1))
    hits = []
    for each in (one, two, one):
        request = engine.add(engine.new_request(each, GREEDY))
        while request.finish_reason is None:
            engine.step()
        hits.append(request.prefix)
    n_rows = 64
    assert [hit.hit_tokens for hit in hits] == [0, PAGE_SIZE, 2 * PAGE_SIZE + n_rows - PAGE_SIZE]
    assert hits[1].reason == f"diverged at token {PAGE_SIZE}"


def test_image_pages_outlive_the_process_on_disk(opened, tmp_path):
    texts = []
    for _ in range(2):
        folder = PageFolder(tmp_path / "pages", "identity", 1 << 30)
        engine = opened("llava", disk=folder)
        n_runs = engine.encoder_scheduler.tower.n_runs
        each = prompt(engine, "x" * 64, input_image("llava"), "y" * 70)
        texts += finish(engine, each)
        engine.close()
    assert texts[0] == texts[1]
    assert engine.disk_stats().read_tokens > 64
    assert engine.encoder_scheduler.tower.n_runs == n_runs


def test_answers_continue_while_an_image_is_encoded(opened):
    engine = opened("qwen2.5vl")
    engine.encoder_scheduler._work = 0  # one step of the tower's plan in each step of the engine
    talking = engine.add(engine.new_request(list(b"Tell me of sheep"), replace(GREEDY, max_tokens=100)))
    while not talking.output:
        engine.step()
    waiting = engine.add(engine.new_request(prompt(engine, "See ", input_image("qwen2.5vl"), "what?"), GREEDY))
    n = len(talking.output)
    while not waiting.output:
        engine.step()
    assert len(talking.output) > n + 20
    want = finish(opened("qwen2.5vl"), prompt(engine, "See ", input_image("qwen2.5vl"), "what?"))[0]
    while waiting.finish_reason is None:
        engine.step()
    assert said(waiting) == want


def test_images_of_several_requests_are_one_batch(opened, monkeypatch):
    """Images of other sizes, too, and a second one of the same request, as long as they fit a slice."""
    engine, together = opened("qwen2.5vl"), []
    small = image(TOWERS["qwen2.5vl"].grids[1], seed=2)
    asked = [
        prompt(engine, "See ", one, "what? ", two, "?")
        for one, two in ((input_image("qwen2.5vl"), small), (small, "it"))
    ]
    asked.append(prompt(engine, "And ", input_image("qwen2.5vl", 1), "?"))
    alone = [finish(opened("qwen2.5vl"), one)[0] for one in asked]
    tower = engine.encoder_scheduler.tower
    begin = tower.start_batch
    monkeypatch.setattr(tower, "start_batch", lambda own, kind: together.append(len(own)) or begin(own, kind))
    assert finish(engine, *asked) == alone
    assert together == [3]
    work = tower.batch_work([encoder_input((1, 6, 10)), encoder_input((1, 4, 4))])
    assert work == sum(tower.batch_work([encoder_input(grid)]) for grid in ((1, 6, 10), (1, 4, 4)))
    assert tower.batch_work([encoder_input((1, 6, 10))] * 2000) == math.inf
    many = [encoder_input((1, 4, 4))] * 30  # rows see those of their own image: one slice is enough
    assert begin(many).advance(1.001 * tower.batch_work(many)) is not None


def test_unneeded_encoder_rows_are_dropped(opened):
    engine = opened("gemma3")
    engine.encoder_scheduler._work = 0
    request = engine.add(engine.new_request(prompt(engine, input_image("gemma3", 3), "?"), GREEDY))
    for _ in range(4):
        engine.step()
    assert engine.encoder_scheduler._run is not None
    engine.cancel(request)
    engine.step()
    assert engine.encoder_scheduler._run is None and engine.is_idle
    assert finish(engine, prompt(engine, input_image("gemma3", 4), "?"))


def test_encoder_cache_is_bounded(opened):
    engine = opened("llava")
    one = 64 * 64 * 4
    engine.encoder_scheduler._max_bytes = 2 * one
    for seed in range(4):
        finish(engine, prompt(engine, input_image("llava", 20 + seed), "?"))
        assert engine.encoder_scheduler.n_bytes <= 2 * one


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context_shift": True}, "context_shift cannot be combined with images"),
        ({"prompt_logprobs": 0}, "prompt_logprobs cannot be combined with images"),
    ],
)
def test_options_that_need_tokens_are_rejected(change, message, opened):
    engine = opened("llava")
    with pytest.raises(RequestError, match=message):
        engine.new_request(prompt(engine, input_image("llava"), "?"), replace(GREEDY, **change))


def test_unusable_images_are_rejected(opened, tmp_path):
    engine = opened("gemma3", chunk=8, max_running=6)
    with pytest.raises(RequestError, match="4 rows with bidirectional attention, but a step takes 2"):
        engine.new_request(prompt(engine, input_image("gemma3"), "?"), GREEDY)
    with pytest.raises(RequestError, match="8 x 8 patches, not 4 x 4"):
        engine.new_request(prompt(engine, image((1, 4, 4)), "?"), GREEDY)
    loaded = load_model(write_tiny(TINY["llama"], tmp_path / "llama.gguf"), "cpu", Options(threads=1))
    text_engine = Engine(loaded.program, loaded.tokenizer, ctx=64)
    with pytest.raises(RequestError, match="takes no images or audio"):
        text_engine.new_request(prompt(engine, input_image("gemma3"), "?"), GREEDY, RequestOptions())
    loaded.close()


def test_gemma_4_image_rows_are_bidirectional_only_in_sliding_window_layers(tmp_path):
    for name, has_inputs in (("gemma4", False), ("gemma4-e", True)):
        with open_gguf(write_tiny(FAMILIES[name], tmp_path / f"{name}.gguf")) as file:
            plan = inject_embeddings(trace(file), 64)
        masks = {(step.integer("window") > 0, step.text("mask")) for step in plan.steps if step.op == "attention"}
        assert masks == {(True, "causal" if has_inputs else ""), (False, "causal")}


def test_cpu_and_reference_agree(opened, tmp_path):
    for name in ("gemma3", "qwen2vl", "qwen3vl"):
        engine = opened(name)
        text = write_tiny(PAIRS[name], tmp_path / f"{name}.gguf")
        tower = write_tower(TOWERS[name], tmp_path / f"{name}-tower.gguf")
        loaded = load_model(text, "reference", Options(), projector=tower)
        slow = Engine(loaded.program, loaded.tokenizer, ctx=512, tower=loaded.tower)
        each = prompt(engine, "See ", input_image(name), "what?")
        rows = [one.encoder_scheduler.tower.rows(input_image(name).inputs[0]) for one in (engine, slow)]
        np.testing.assert_allclose(*rows, rtol=1e-3, atol=1e-4)
        (slow_answer, slow_logs), (answer, logs) = finish(slow, each)[0], finish(engine, each)[0]
        assert slow_answer == answer
        np.testing.assert_allclose([one.logprob for one in slow_logs], [one.logprob for one in logs], atol=2e-3)
        loaded.close()


def test_tower_step_stops_when_all_its_waiters_have_left(opened, monkeypatch):
    engine = opened("gemma3")
    request, other = (
        engine.add(engine.new_request(prompt(engine, input_image("gemma3", 5), "?"), GREEDY)) for _ in range(2)
    )
    (program,), stopped = engine.encoder_scheduler.tower.programs, []
    plain = program.run
    monkeypatch.setattr(program, "cancel", lambda: stopped.append(True))

    def run(*given):
        # A client leaves while the tower computes, then the last one does.
        request.is_unwanted = True
        engine.abandon()
        assert not stopped
        other.is_unwanted = True
        engine.abandon()
        assert stopped
        return plain(*given)

    monkeypatch.setattr(program, "run", run)
    engine.step()
    assert stopped
    stopped.clear()
    engine.abandon()  # nothing is under way
    assert not stopped
    for one in (request, other):
        engine.cancel(one)


@pytest.mark.parametrize(
    ("name", "grid"),
    [("llava1.6", None), ("cogvlm", None), *((one, (1, 4, 6)) for one in ("qwen2vl", "paddleocr", "hunyuanvl"))],
)
def test_complete_model_matches_transformers(name, grid, opened):
    """Tower, layout and text model together: packed tiles, rows that turn by line and column, matrices of their own."""
    want = np.load(GOLDENS / "vision.npz")[name]
    engine = opened(name)
    one = image(grid) if grid else input_image(name)
    rows = [
        part
        for part in make_replacement(one, engine.encoder_scheduler.tower.settings).parts
        if isinstance(part, Placeholder)
    ]
    asked = (*b"See the sheep: ", *rows, *b" What is it?")
    request = engine.add(engine.new_request(asked, replace(GREEDY, max_tokens=1, logprobs=8)))
    while request.finish_reason is None:
        engine.step()
    (chosen,) = request.logprobs
    assert request.output == [int(want.argmax())]
    for token, logprob in chosen.top:
        assert abs(logprob - want[token]) < 2e-3, (token, logprob)


def test_tower_memory_counts_before_loading(tmp_path, monkeypatch):
    text = write_tiny(QWEN2, tmp_path / "text.gguf")
    tower = write_tower(TOWERS["qwen2vl"], tmp_path / "tower.gguf")
    with open_gguf(text) as file:
        plain, with_tower = (
            memory_estimate.estimate(file, trace(file), "cpu", Options(), 64, None, one) for one in (None, tower)
        )
    assert with_tower.tower == tower_bytes(tower) > 0 and with_tower.total == plain.total + with_tower.tower
    monkeypatch.setattr(memory_estimate, "available_memory", lambda: plain.total + with_tower.tower // 2)
    load_model(text, "cpu", Options(threads=1), ctx=64, checks_memory=True).close()
    with pytest.raises(RequestError, match=r"of cache for 64 tokens, \d\.\d\d GB for images\), but"):
        load_model(text, "cpu", Options(threads=1), ctx=64, checks_memory=True, projector=tower)
