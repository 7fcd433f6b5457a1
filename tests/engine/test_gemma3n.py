"""Images and audio in one prompt of Gemma 3n: the same bits alone, together, in chunks and from the cache."""

from dataclasses import replace

import pytest

from tests.cases.audio_towers import AUDIO_TOWERS, prepared_audio, write_audio_tower
from tests.cases.streams import GEMMA3N
from tests.cases.tiny import write_tiny
from tests.cases.towers import TOWERS, encoder_input, write_tower
from tests.engine.test_audio import FITTED
from tests.engine.test_vision import GREEDY, finish, said
from woolly.engine import Engine, load_model
from woolly.errors import RequestError
from woolly.gguf import GGUFWriter, open_gguf
from woolly.multimodal import Placeholder, ProcessedItem, make_replacement
from woolly.quant import GGMLType
from woolly.runtime import Options

GRID, PATCH = (1, 16, 16), 16
TOWER = replace(
    TOWERS["gemma3n"],
    root=TOWERS["gemma3n"].root | {"mm.input_projection.weight": (GEMMA3N.width, 48)},
    extra=TOWERS["gemma3n"].extra | {"vision.image_size": 256, "vision.patch_size": 1},
)


def join_towers(path, vision, audio):
    """Write both towers to one file, as converters do; return its path."""
    writer, keys = GGUFWriter(path), {}
    for tower, kind in ((vision, "vision"), (audio, "audio")):
        with open_gguf(tower) as file:
            keys |= {key: value for key, value in file.metadata.items() if key != "clip.projector_type"}
            keys[f"clip.{kind}.projector_type"] = file.metadata["clip.projector_type"]
            for name, tensor in file.tensors.items():
                writer.add_tensor(name, tensor.dequantize().reshape(tensor.shape), GGMLType.F32)
    for key, value in keys.items():
        writer.add(key, value)
    writer.write()
    return path


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma3n")
    text = write_tiny(GEMMA3N, folder / "text.gguf")
    vision = write_tower(TOWER, folder / "v.gguf")
    audio = write_audio_tower(FITTED["gemma3na"], folder / "a.gguf")
    one = load_model(text, "cpu", Options(threads=2), projector=join_towers(folder / "both.gguf", vision, audio))
    yield lambda **options: Engine(
        one.program, one.tokenizer, tower=one.tower, **{"ctx": 1024, "kv_tokens": 4096} | options
    )
    one.close()


def shown(seed):
    return ProcessedItem.of("image", [encoder_input(GRID, seed, PATCH)])


def prompt(engine, *parts):
    """Tokens of texts, images and audio; marks are spelled by bytes."""
    tower, out = engine.encoder_scheduler.tower, []
    for part in parts:
        settings = tower.audio if isinstance(part, ProcessedItem) and part.kind == "audio" else tower.vision
        for one in [part] if isinstance(part, str) else make_replacement(part, settings).parts:
            out += [one] if isinstance(one, Placeholder) else [byte % 256 for byte in one.encode()]
    return tuple(out)


def test_image_and_audio_have_the_same_bits_alone_batched_chunked_and_cached(opened):
    engine = opened()
    one, two, audio = shown(0), shown(7), prepared_audio(AUDIO_TOWERS["gemma3na"], 8_500)
    first = prompt(engine, "a sheep " * 8, one, "bleats ", audio, "What is it?")
    second = prompt(engine, "Listen: ", audio, "Look: ", two, "Which?")
    alone = [finish(opened(), each)[0] for each in (first, second)]
    other = prompt(engine, "a sheep " * 8, two, "bleats ", audio, "What is it?")
    assert finish(opened(), other)[0] != alone[0]  # it is looked at
    assert finish(engine, first, second) == alone
    n_runs = engine.encoder_scheduler.tower.n_runs
    again = engine.add(engine.new_request(first, GREEDY))
    while again.finish_reason is None:
        engine.step()
    assert said(again) == alone[0] and again.prefix.hit_tokens > 256
    assert engine.encoder_scheduler.tower.n_runs == n_runs
    assert finish(opened(chunk=40, max_running=8), second, first) == alone[::-1]


def test_image_rows_end_with_the_end_row_of_the_file(opened):
    engine = opened()
    parts = make_replacement(shown(0), engine.encoder_scheduler.tower.vision).parts
    assert [part if isinstance(part, str) else (part.first, part.n) for part in parts] == [
        "\n\n<start_of_image>", (0, 256), (256, 1), "\n\n"
    ]  # fmt: skip
    rows = engine.encoder_scheduler.tower.rows(shown(0).inputs[0], "image")
    assert rows.shape == (257, GEMMA3N.width)
    assert (rows[256] == engine.encoder_scheduler.tower.rows(shown(7).inputs[0], "image")[256]).all()
    with pytest.raises(RequestError, match="16 x 16 patches, not 8 x 16"):
        engine.encoder_scheduler.tower.check(encoder_input((1, 8, 16), 0, PATCH), "image")
