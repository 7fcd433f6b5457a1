"""Videos: which frames are shown, bounds, faults in one sentence, and the words of the families' processors."""

import base64
import io
import json
import random
import time
import zlib
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.videos import write_video
from tests.goldens.videos import (
    AFTER,
    BEFORE,
    FILE,
    FOLLOWED,
    LATER,
    LENGTHS,
    ROWS,
    SAID,
    SIZES,
    frames,
    large,
    sampled,
)
from tests.multimodal.fuzz import mutated
from woolly.chat import ImagePart, Message, Modalities, TextPart, VideoPart
from woolly.chat.files import open_files
from woolly.chat.media import process_media
from woolly.chat.message import Message as ReadMessage
from woolly.engine.multimodal.multimodal_input import read_prompt
from woolly.errors import RequestError
from woolly.multimodal import VisionSettings, make_replacement, video
from woolly.multimodal.families.idefics3 import SMOLVLM, _words
from woolly.multimodal.inputs import VideoInput
from woolly.multimodal.processing.transforms import resize
from woolly.multimodal.processing.video import count_frame_rows, process_clip, process_frame, video_sampling
from woolly.multimodal.video import Clip, Frame, is_video

pytest.importorskip("av")

HALF = (0.5, 0.5, 0.5)
SMOL = VisionSettings("image", "idefics3", 64, 16, HALF, HALF, 2, preproc_image_size=256)
QWEN = VisionSettings("image", "qwen3vl_merger", 64, 16, HALF, HALF, 2)
QWEN2 = {name: VisionSettings("image", f"{name}vl_merger", 56, 14, HALF, HALF, 2) for name in ("qwen2", "qwen2.5")}


@pytest.fixture(scope="module")
def clip():
    return write_video()


def read_video(data, sampling=SMOLVLM):
    return video.read_video(data, sampling)


@pytest.fixture(scope="module")
def record():
    with np.load(FILE) as file:
        return dict(file)


def opened(given, tower=SMOL):
    modalities = None if tower is None else Modalities(tower)
    (message,) = open_files([Message("user", (VideoPart(given), TextPart("what?")))], modalities, None, 50)
    return message.content


@pytest.mark.parametrize("rate", [1, 10, 24, 29.97])
def test_frames_are_sampled_like_the_processor(rate):
    for n_frames in (1, 2, 7, 60, 640, 1500, 3001, 9999):
        n = max(1, min(round(n_frames / rate), 64))
        is_long = n_frames / rate - 2 > 64
        ends = (int(rate), int(n_frames - rate)) if is_long else (0, n_frames - 1)
        assert SMOLVLM.sample(n_frames, rate) == np.unique(np.linspace(*ends, n, dtype=int)).tolist()


@pytest.mark.parametrize(("format", "codec"), [("mp4", "mpeg4"), ("mov", "mpeg4"), ("matroska", "mpeg4")])
def test_video_is_frames_with_their_times(format, codec):
    data = write_video(format=format, codec=codec)
    seen = read_video(data)
    assert is_video(data) and seen.seconds == pytest.approx(5)
    assert [frame.seconds for frame in seen.frames] == pytest.approx([0, 1.2, 2.4, 3.6, 4.9])
    for frame in seen.frames:
        assert frame.image.size == (48, 64)
        assert abs(frame.image.pixels.mean() - frame.seconds * 50) < 6


def test_same_file_is_read_once(clip, monkeypatch):
    first = read_video(clip)
    monkeypatch.setattr(video, "run_decoder", lambda *_, **__: pytest.fail("read again"))
    assert read_video(bytes(clip)).frames is first.frames


def test_errors_are_one_line(clip, monkeypatch):
    cases = {
        "the video is not in a supported video format; expected MP4, MOV, WebM or MKV": b"#EXTM3U\nfile:///etc/passwd",
        r"the video is a damaged video \(": clip[:500],
        "the video has 700 s, but the limit is 600 s": write_video(n=700, rate=1),
        "the video is larger than 64 MiB": clip + bytes(64 << 20),
    }
    for reason, data in cases.items():
        with pytest.raises(RequestError, match=reason):
            read_video(data)
    monkeypatch.setattr(video, "_MAX_PIXELS", 1000)
    with pytest.raises(RequestError, match="has 64 x 32 pixels per frame, but the limit is 1000"):
        read_video(write_video(n=3, size=(64, 32)))
    monkeypatch.setattr(video, "find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"^videos need the package av: .*\bav\b"):
        read_video(clip + b"x")


def test_frames_are_laid_out_with_the_text_of_the_processor(clip):
    parts = opened(VideoInput(clip))
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    assert texts[0] == (
        "You are provided the following series of five frames from a 0:00:05 [H:MM:SS] video.\n\nFrame from 00:00:"
    )
    assert texts[1:] == [*(f"\nFrame from 00:0{i}:" for i in (1, 2, 3, 4)), "\n\n", "what?"]
    assert sum(isinstance(part, ImagePart) for part in parts) == 5
    prepared = process_media([Message("user", parts)], Modalities(SMOL))
    assert [len(one.inputs) for one in prepared] == [1] * 5  # squashed, not cut
    layout = make_replacement(prepared[0], SMOL)
    assert layout.n_rows == 4 and layout.parts[0] == "<fake_token_around_image><global-img>"
    assert [_words(n) for n in (1, 12, 20, 64)] == ["one", "twelve", "twenty", "sixty-four"]


def test_qwen_samples_frames_like_its_processor(record):
    for n, rate in LENGTHS:
        assert video_sampling(QWEN).sample(n, rate) == record[f"chosen {n} {rate}"].tolist()
    with pytest.raises(RequestError, match="the video has one frame, but this model needs at least 2"):
        video_sampling(QWEN).sample(1, 24.0)


def test_qwen_frames_respect_the_limits_of_its_processor(record):
    assert [video_sampling(QWEN).resize(*size) for size in SIZES] == [tuple(one) for one in record["sizes"].tolist()]
    with pytest.raises(RequestError, match="aspect ratio is 200"):
        video_sampling(QWEN).resize(4, 32, 7000)


def test_frame_pairs_are_cut_into_patches_like_the_processor(record):
    seen = frames()
    _, high, wide = grid = record["grid"].tolist()
    assert grid == [2, 2, 4]
    for i, pair in enumerate((seen[:2], seen[[2, 2]])):
        frame = Frame(0.0, 64, 32, zlib.compress(pair.tobytes()), 2)
        prepared = process_frame(frame, QWEN)
        (encoder_input,) = prepared.inputs
        assert (
            encoder_input.grid_thw == (2, high, wide)
            and count_frame_rows([frame], QWEN) == make_replacement(prepared, QWEN).n_rows == 2
        )
        cut = encoder_input.values.reshape(2, high // 2, 2, wide // 2, 2, 3, 256).transpose(1, 3, 2, 4, 5, 0, 6)
        want = record["patches"].reshape(2, high * wide, -1)[i]
        np.testing.assert_allclose(sampled(cut.reshape(high * wide, -1)), want, rtol=0, atol=2e-7)


def test_resized_frames_match_the_patches_of_the_processor(record):
    height, width = video_sampling(QWEN).resize(len(large()), *large().shape[1:3])
    seen = np.stack([resize(one, height, width, "bicubic") for one in large()])
    _, high, wide = grid = record["resized grid"].tolist()
    assert grid == [3, height // 16, width // 16]
    for i, pair in enumerate((seen[:2], seen[2:4], seen[[4, 4]])):
        (encoder_input,) = process_frame(Frame(0.0, width, height, zlib.compress(pair.tobytes()), 2), QWEN).inputs
        cut = encoder_input.values.reshape(2, high // 2, 2, wide // 2, 2, 3, 256).transpose(1, 3, 2, 4, 5, 0, 6)
        apart = np.abs(sampled(cut.reshape(high * wide, -1)) - record["resized"].reshape(3, high * wide, -1)[i])
        assert apart.max() < 1.01 * 2 / 255 and apart.mean() < 0.1 / 255  # a level of 255 here and there


def test_pair_texts_match_the_processor(record, monkeypatch):
    for n, rate in SAID:
        chosen = record[f"chosen {n} {rate}"].tolist()
        chosen += chosen[-1:] * (len(chosen) % 2)
        seen = [Frame((a + b) / rate / 2, 64, 32, b"", 2, n / rate) for a, b in zip(*[iter(chosen)] * 2, strict=True)]
        monkeypatch.setattr(VideoInput, "read", lambda *_, seen=seen, **__: video.Video(1.0, tuple(seen)))
        *parts, _ = opened(VideoInput(b""), QWEN)
        rows = "<|vision_start|>" + "<|video_pad|>" * ROWS + "<|vision_end|>"
        said = "".join(part.text if isinstance(part, TextPart) else rows for part in parts)
        assert said == record[f"said {n} {rate}"]


def test_qwen_gets_pairs_of_frames_with_their_times(clip):
    parts = opened(VideoInput(clip), QWEN)
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    # Ten frames of fifty, evenly: 0, 5, 11, 16, 22, 27, 33, 38, 44 and 49.
    assert texts == ["<0.2 seconds>", "<1.4 seconds>", "<2.5 seconds>", "<3.5 seconds>", "<4.7 seconds>", "what?"]
    assert [isinstance(part, ImagePart) for part in parts] == [False, True] * 5 + [False]
    prepared = process_media([Message("user", parts)], Modalities(QWEN))
    assert [one.inputs[0].grid_thw for one in prepared] == [
        (2, 4, 4)
    ] * 5  # 48 lines become 64: the nearest even multiple
    assert len({one.digest for one in prepared}) == 5


def test_qwen_frames_are_resized_with_the_image_filter():
    import av
    from PIL import Image

    data = write_video(n=5, rate=2, size=(70, 90))
    with av.open(io.BytesIO(data)) as file:
        plain = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    seen = read_video(data, video_sampling(QWEN)).frames
    assert [frame.temporal_patch_size for frame in seen] == [2, 2, 2]  # the last frame counts twice
    got = [image.pixels for frame in seen for image in frame.images]
    for one, want in zip(got, [*plain, plain[-1]], strict=True):
        np.testing.assert_array_equal(one, np.asarray(Image.fromarray(want).resize((64, 96), Image.Resampling.BICUBIC)))


@pytest.mark.parametrize("settings", QWEN2.values(), ids=QWEN2)
def test_qwen_2_frames_are_sampled_like_its_processor(record, settings):
    sampling = video_sampling(settings)
    for n, rate in LENGTHS:
        assert sampling.sample(n, rate) == record[f"qwen2 chosen {n} {rate}"].tolist()
    assert [sampling.resize(*size) for size in SIZES] == [tuple(one) for one in record["qwen2 sizes"].tolist()]
    with pytest.raises(RequestError, match="the video has one frame, but this model needs at least 2"):
        sampling.sample(1, 24.0)
    with pytest.raises(RequestError, match="aspect ratio is 200"):
        sampling.resize(4, 7000, 28)
    for n, rate in ((59, 0.1), (201, 0.1), (1711, 13.37), *((n, 25.0) for n in range(2, 400))):
        chosen = sampling.sample(n, rate)  # all are there, and pairs
        assert len(chosen) % 2 == 0 and chosen == sorted(set(chosen)) and 0 == chosen[0] <= chosen[-1] < n


def pair(pixels, rate=2.0):
    return Frame(0.0, pixels.shape[2], pixels.shape[1], zlib.compress(pixels.tobytes()), 2, rate=rate)


def test_qwen_2_video_is_cut_into_patches_like_its_processor(record):
    seen = np.ascontiguousarray(frames()[:, :28, :28])
    prepared = process_clip(Clip((pair(seen[:2]), pair(seen[[2, 2]]))), QWEN2["qwen2"])
    assert record["qwen2 grid"].tolist() == [2, 2, 2] and [one.grid_thw for one in prepared.inputs] == [(2, 2, 2)] * 2
    cut = np.stack([one.values.reshape(2, 4, 3, 196).transpose(1, 2, 0, 3) for one in prepared.inputs])
    np.testing.assert_allclose(sampled(cut.reshape(8, -1)), record["qwen2 patches"], rtol=0, atol=2e-7)


@pytest.mark.parametrize("name", QWEN2)
@pytest.mark.parametrize(("n", "height", "width", "rate"), FOLLOWED + LATER)
def test_video_rows_have_mrope_positions_of_seconds_lines_and_columns(record, name, n, height, width, rate):
    pixels = np.zeros((2, 28 * height, 28 * width, 3), np.uint8)
    layout = make_replacement(process_clip(Clip((pair(pixels, rate),) * n), QWEN2[name]), QWEN2[name])
    assert layout.parts[0] == "<|vision_start|>" and layout.parts[-1] == "<|vision_end|>"
    _, inputs = read_prompt((0,) * BEFORE + layout.parts[1:-1] + (0,) * AFTER, b"")
    want = record[f"{name} positions {[n, height, width]} {rate}"]
    last = want[:, :-AFTER].max()
    if (n, height, width, rate) in FOLLOWED:
        assert want[:, -AFTER:].tolist() == [[last + 1, last + 2]] * 3  # where all releases agree
    np.testing.assert_array_equal(inputs.mrope_positions[:, :-AFTER], want[:, :-AFTER])
    assert inputs.mrope_positions[:, -AFTER:].tolist() == [[last + 1, last + 2]] * 3
    assert inputs.mrope_delta == last + 1 + AFTER - inputs.n_prompt


def test_qwen_2_video_is_one_range_of_rows(clip, record):
    (part, text) = opened(VideoInput(clip, where="a"), QWEN2["qwen2.5"])
    assert isinstance(part, ImagePart) and text == TextPart("what?")
    clips = part.image.source
    assert len(clips.frames) == 5 and clips.frames[0].rate == record["qwen2 rates"][LENGTHS.index((50, 10))] == 2.0
    (prepared,) = process_media([Message("user", (part,))], Modalities(QWEN2["qwen2.5"]))
    assert prepared.frame_times == (0, 2, 4, 6, 8)
    assert (
        count_frame_rows(clips.frames, QWEN2["qwen2.5"])
        == make_replacement(prepared, QWEN2["qwen2.5"]).n_rows
        == 5 * 140
    )
    slower = Clip(tuple(replace(one, rate=1.0) for one in clips.frames))
    assert process_clip(slower, QWEN2["qwen2.5"]).digest != prepared.digest  # the same pixels at other times
    with pytest.raises(RequestError, match="the images up to a take 700 tokens, but the context holds 600"):
        process_media([Message("user", (part,))], Modalities(QWEN2["qwen2.5"], ctx=600))


HEAD = {"n_frames": 9, "rate": 3.0, "width": 64, "height": 32}
FRAME = {"numbers": [0, 3], "bytes": 4}


@pytest.mark.parametrize(
    ("head", "frames", "reason"),
    [
        (HEAD | {"n_frames": 1e400}, b"", "the decoder failed"),
        (HEAD | {"width": [3]}, b"", "the decoder failed"),
        (HEAD | {"height": -3}, b"", "9 frames of 64 x -3 pixels"),
        (HEAD | {"rate": float("nan")}, b"", "nan per second"),
        ([HEAD], b"", "the decoder failed"),
        (HEAD, b"[" * 9999, "the decoder failed"),
        (HEAD, json.dumps(FRAME).encode() + b"\nabcd" * 9, "the decoder failed"),
        (HEAD, json.dumps(FRAME | {"bytes": -40}).encode() + b"\n", "the decoder failed"),
        (HEAD, json.dumps(FRAME | {"numbers": []}).encode() + b"\n", "the decoder failed"),
        (HEAD, b'{"end": true}\n', "no frames"),
    ],
)
def test_unexpected_child_output_is_a_damaged_video(clip, monkeypatch, head, frames, reason):
    written = iter([json.dumps(head).encode() + b"\n", frames])
    monkeypatch.setattr(video, "run_decoder", lambda *_, **__: next(written))
    with pytest.raises(RequestError, match=f"is a damaged video .*{reason}"):
        for frame in read_video(clip + bytes([len(frames) % 256, len(reason)]), video_sampling(QWEN)).frames:
            process_frame(frame, QWEN)


def test_both_video_children_respect_the_deadline_of_the_conversation(clip, monkeypatch):
    calls = []
    run = video.run_decoder

    def late(*order, deadline, max_output_bytes, **rest):
        calls.append((deadline, max_output_bytes))
        return run(*order, deadline=deadline if len(calls) < 2 else 0.0, max_output_bytes=max_output_bytes, **rest)

    monkeypatch.setattr(video, "run_decoder", late)
    given, deadline = VideoInput(clip + b"2", where="a"), time.monotonic() + 60
    with pytest.raises(RequestError, match=r"^a: the files of the conversation take too long to decode"):
        given.read(video_sampling(QWEN), deadline=deadline)
    assert [one for one, _ in calls] == [deadline] * 2
    assert 12 * 64 * 64 * 3 < calls[1][1] < 14 * 64 * 64 * 3 + (1 << 16)  # ten frames that nothing compresses
    monkeypatch.setattr(video, "run_decoder", lambda *order, **rest: run(*order, **rest | {"max_output_bytes": 500}))
    with pytest.raises(RequestError, match="takes more than"):
        given.read(video_sampling(QWEN))


def test_models_with_another_video_format_reject_it_by_name(clip):
    given = VideoInput(clip, where="a.b")
    with pytest.raises(RequestError, match=r"^a\.b: models with a projector of type glm4v do not support videos"):
        opened(given, replace(SMOL, projector="glm4v"))
    with pytest.raises(RequestError, match=r"of type qwen2\.5o do not support videos"):
        video_sampling(replace(SMOL, projector="qwen2.5o"))
    with pytest.raises(RequestError, match="of type qwen3vl_merger with audio do not support videos"):  # Qwen 3 Omni
        video_sampling(QWEN, has_audio=True)
    with pytest.raises(RequestError, match=r"^a\.b: this model does not support images, and so no videos"):
        opened(given, None)
    for data, reason in (
        ("https://x/a.mp4", "this server does not fetch remote videos"),
        ("data:image/png;base64,AAAA", "is not a video"),
    ):
        with pytest.raises(RequestError, match=reason):
            opened(VideoInput(data=data))


def test_remote_video_is_fetched_for_a_video_model(clip, monkeypatch):
    asked = []
    monkeypatch.setattr("woolly.multimodal.fetch.fetch", lambda *given, **_: asked.append(given) or clip)
    message = Message("user", (VideoPart(VideoInput(data="https://x/a.mp4", where="a")),))
    with pytest.raises(RequestError, match="do not support videos"):
        open_files([message], Modalities(replace(SMOL, projector="glm4v")), None, 50, allows_remote=True)
    assert not asked
    (opened,) = open_files([message], Modalities(SMOL), None, 50, allows_remote=True)
    assert sum(isinstance(part, ImagePart) for part in opened.content) == 5
    assert asked == [("https://x/a.mp4", "video")]


def test_library_parts_are_read(clip, tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(clip)
    url = "data:video/mp4;base64," + base64.b64encode(clip).decode()
    for part in (
        {"type": "video_url", "video_url": {"url": url}},
        {"type": "video", "video": str(path)},
        {"type": "image", "image": path},
    ):
        (read,) = ReadMessage.of({"role": "user", "content": [part]}).parts
        assert isinstance(read, VideoPart) and len(read.video.read(SMOLVLM).frames) == 5


def test_mutated_files_are_frames_or_one_line_errors(clip):
    chance = random.Random(1)
    for _ in range(10):
        try:
            assert read_video(mutated(clip, chance)).frames[0].image.size
        except RequestError as error:
            assert str(error).count("\n") == 0
