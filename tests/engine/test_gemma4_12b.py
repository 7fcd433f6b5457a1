"""Images and audio in one prompt of Gemma 4 12B, which has no encoder: the same bits alone, together and in chunks."""

import numpy as np
import pytest

from tests.cases.audio_towers import AUDIO_TOWERS, prepared_audio, write_audio_tower
from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from tests.cases.towers import TOWERS, encoder_input, write_tower
from tests.engine.test_gemma3n import join_towers, prompt
from tests.engine.test_vision import GREEDY, finish, said
from woolly.engine import Engine, load_model
from woolly.errors import RequestError
from woolly.multimodal import ProcessedItem, make_replacement
from woolly.multimodal.image import Image
from woolly.multimodal.processing import image_placeholders, process_image
from woolly.runtime import Options

TOWER = TOWERS["gemma4-12b"]


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma4-12b")
    text = write_tiny(FAMILIES["gemma4"], folder / "text.gguf")
    vision = write_tower(TOWER, folder / "v.gguf")
    audio = write_audio_tower(AUDIO_TOWERS["gemma4ua"], folder / "a.gguf")
    one = load_model(text, "cpu", Options(threads=2), projector=join_towers(folder / "both.gguf", vision, audio))
    yield lambda **options: Engine(
        one.program, one.tokenizer, tower=one.tower, **{"ctx": 512, "kv_tokens": 2048} | options
    )
    one.close()


def shown(seed, grid=TOWER.grids[0]):
    return ProcessedItem.of("image", [encoder_input(grid, seed, TOWER.patch)])


def test_images_and_audio_have_the_same_bits_alone_batched_chunked_and_cached(opened):
    engine, audio = opened(), prepared_audio(AUDIO_TOWERS["gemma4ua"], 8_500)
    first = prompt(engine, "a sheep " * 8, shown(0), "and ", shown(3, (1, 4, 2)), "bleat ", audio, "What is it?")
    second = prompt(engine, "Listen: ", audio, "Look: ", shown(7), "Which?")
    alone = [finish(opened(), each)[0] for each in (first, second)]
    other = prompt(engine, "a sheep " * 8, shown(7), "and ", shown(3, (1, 4, 2)), "bleat ", audio, "What is it?")
    assert finish(opened(), other)[0] != alone[0]
    deaf = prepared_audio(AUDIO_TOWERS["gemma4ua"], 8_500, seed=3)
    assert finish(opened(), prompt(engine, "Listen: ", deaf, "Look: ", shown(7), "Which?"))[0] != alone[1]
    assert finish(engine, first, second) == alone
    n_runs = engine.encoder_scheduler.tower.n_runs
    again = engine.add(engine.new_request(first, GREEDY))
    while again.finish_reason is None:
        engine.step()
    assert said(again) == alone[0] and engine.encoder_scheduler.tower.n_runs == n_runs
    assert finish(opened(chunk=20, max_running=8), second, first) == alone[::-1]


def test_only_rows_of_images_see_later_rows(opened):
    tower = opened().encoder_scheduler.tower
    audio = prepared_audio(AUDIO_TOWERS["gemma4ua"], 8_500)
    begin, rows, end = make_replacement(shown(0), tower.vision).parts
    assert (begin, rows.n, rows.is_bidirectional, rows.grid_thw, end) == ("<|image>", 6, True, None, "<image|>")
    begin, rows, end = make_replacement(audio, tower.audio).parts
    assert (begin, rows.n, rows.is_bidirectional, end) == ("<|audio>", 14, False, "<audio|>")  # 40 ms each


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (4000, 1), (40, 3000), (4320, 7680), (100, 70)])
def test_every_image_size_has_rows_within_the_limit(size, opened):
    """A pixel, a line, a column, a panorama, 8k: of 48 x 48 pixels of a file, 12 x 12 of the tiny one."""
    tower = opened().encoder_scheduler.tower
    processed = process_image(Image(np.full((*size, 3), 128, np.uint8)), tower.vision)
    (one,) = processed.inputs
    n_rows = image_placeholders(size, tower.vision).n_rows
    assert 1 <= n_rows == len(one.values) <= 280
    if max(one.grid_thw) <= 12:  # the position table of the tiny file
        assert len(tower.rows(one, "image")) == n_rows
    else:
        with pytest.raises(RequestError, match="the encoder supports at most 12 x 12"):
            tower.check(one, "image")
