"""Audio in prompts: the same text and bits alone, together, in chunks, from the cache and from disk."""

from dataclasses import replace

import pytest

from tests.cases.audio_towers import AUDIO_TOWERS, WIDTH, prepared_audio, write_audio_tower
from tests.cases.hybrids import HYBRIDS
from tests.cases.streams import GEMMA3N
from tests.cases.tiny import TINY, write_tiny
from tests.cases.towers import matrix
from tests.engine.test_vision import GREEDY, QWEN2, finish, prompt, said
from woolly.cache.page_folder import PageFolder
from woolly.engine import Engine, load_model
from woolly.errors import RequestError
from woolly.multimodal import Placeholder
from woolly.runtime import Options

# The text model beside each tower. Omni's turns by three positions, which are one for an audio clip.
PAIRS = {"ultravox": TINY["llama"], "qwen2a": TINY["qwen2"], "qwen2.5o": QWEN2, "qwen3a": QWEN2,
         "granite_speech": TINY["granite"], "gemma3na": GEMMA3N, "lfm2a": HYBRIDS["lfm2"]}  # fmt: skip

# A tower whose rows are as wide as its text model.
NARROW = matrix("mm.a.input_projection", GEMMA3N.width, WIDTH, False)
FITTED = {"gemma3na": replace(AUDIO_TOWERS["gemma3na"], root=AUDIO_TOWERS["gemma3na"].root | NARROW)}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Engines by family; models are opened once."""
    loaded = {}

    def make(name, **options):
        if name not in loaded:
            folder = tmp_path_factory.mktemp("audio")
            text = write_tiny(PAIRS[name], folder / "text.gguf")
            tower = write_audio_tower(FITTED.get(name, AUDIO_TOWERS[name]), folder / "e.gguf")
            loaded[name] = load_model(text, "cpu", Options(threads=2), projector=tower)
        one = loaded[name]
        return Engine(one.program, one.tokenizer, tower=one.tower, **{"ctx": 512, "kv_tokens": 2048} | options)

    yield make
    for one in loaded.values():
        one.close()


@pytest.mark.parametrize("name", PAIRS)
def test_audio_has_the_same_bits_alone_batched_chunked_and_cached(name, opened):
    engine, tiny = opened(name), AUDIO_TOWERS[name]
    one, two = prepared_audio(tiny, 8_500), prepared_audio(tiny, 12_000, seed=3)
    first = prompt(engine, "a sheep bleats " * 6, one, "What is it? " * 3)
    second = prompt(engine, "Listen: ", two, "and ", one, "Which?")
    alone = [finish(opened(name), each)[0] for each in (first, second)]
    assert alone[0] != finish(opened(name), prompt(engine, "a sheep bleats " * 6, two, "What is it? " * 3))[0]
    assert finish(engine, first, second) == alone
    n_runs = engine.encoder_scheduler.tower.n_runs
    again = engine.add(engine.new_request(first, GREEDY))
    while again.finish_reason is None:
        engine.step()
    assert said(again) == alone[0] and again.prefix.hit_tokens > 0
    assert engine.encoder_scheduler.tower.n_runs == n_runs
    assert finish(opened(name, chunk=24, max_running=8), second, first) == alone[::-1]


def test_audio_pages_outlive_the_process_on_disk(opened, tmp_path):
    texts = []
    for _ in range(2):
        engine = opened("qwen2a", disk=PageFolder(tmp_path / "pages", "identity", 1 << 30))
        n_runs = engine.encoder_scheduler.tower.n_runs
        texts += finish(engine, prompt(engine, "x" * 64, prepared_audio(AUDIO_TOWERS["qwen2a"], 8_500), "y" * 70))
        engine.close()
    assert texts[0] == texts[1]
    assert engine.disk_stats().read_tokens > 64
    assert engine.encoder_scheduler.tower.n_runs == n_runs


def test_image_is_rejected_by_an_audio_model(opened):
    from tests.cases.towers import image

    engine = opened("qwen2a")
    with pytest.raises(RequestError, match="this model does not support images"):
        engine.new_request((Placeholder(image((1, 8, 8)), 0, 0, 4),), GREEDY)
