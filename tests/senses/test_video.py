"""Videos: which frames are shown, bounds, faults in one sentence, and the words of SmolVLM's processor."""

import base64
import random
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.videos import write_video
from tests.senses.fuzz import mutated
from woolly.chat import ImagePart, Message, TextPart, VideoPart, Vision
from woolly.chat.files import _words, open_files
from woolly.chat.message import Message as ReadMessage
from woolly.chat.sight import read_pictures
from woolly.errors import RequestError
from woolly.senses import TowerSettings, lay_out, video
from woolly.senses.given import GivenVideo
from woolly.senses.video import is_video, read_video
from woolly.senses.video_child import choose

pytest.importorskip("av")

HALF = (0.5, 0.5, 0.5)
SMOL = TowerSettings("image", "idefics3", 64, 16, HALF, HALF, 2, preproc_image_size=256)


@pytest.fixture(scope="module")
def clip():
    return write_video()


def opened(given, tower=SMOL):
    sight = None if tower is None else Vision(tower)
    (message,) = open_files([Message("user", (VideoPart(given), TextPart("what?")))], sight, None, 50)
    return message.content


@pytest.mark.parametrize("rate", [1, 10, 24, 29.97])
def test_frames_are_chosen_as_the_processor_does(rate):
    for n_frames in (1, 2, 7, 60, 640, 1500, 3001, 9999):
        n = max(1, min(round(n_frames / rate), 64))
        is_long = n_frames / rate - 2 > 64
        ends = (int(rate), int(n_frames - rate)) if is_long else (0, n_frames - 1)
        assert choose(n_frames, rate, 1.0, 64) == np.unique(np.linspace(*ends, n, dtype=int)).tolist()


@pytest.mark.parametrize(("format", "codec"), [("mp4", "mpeg4"), ("mov", "mpeg4"), ("matroska", "mpeg4")])
def test_a_video_is_frames_with_their_times(format, codec):
    data = write_video(format=format, codec=codec)
    seen = read_video(data)
    assert is_video(data) and seen.seconds == pytest.approx(5)
    assert [frame.seconds for frame in seen.frames] == pytest.approx([0, 1.2, 2.4, 3.6, 4.9])
    for frame in seen.frames:
        assert frame.picture.size == (48, 64)
        assert abs(frame.picture.pixels.mean() - frame.seconds * 50) < 6


def test_the_same_file_is_read_once(clip, monkeypatch):
    first = read_video(clip)
    monkeypatch.setattr(video, "run_in_turn", lambda *_, **__: pytest.fail("read again"))
    assert read_video(bytes(clip)).frames is first.frames


def test_faults_are_one_sentence(clip, monkeypatch):
    cases = {
        "the video is no video of a known format; MP4, MOV, WebM or MKV": b"#EXTM3U\nfile:///etc/passwd",
        r"the video is a damaged video \(": clip[:500],
        "the video has 700 s, and at most 600 are taken": write_video(n=700, rate=1),
        "the video has more than 64 MiB": clip + bytes(64 << 20),
    }
    for reason, data in cases.items():
        with pytest.raises(RequestError, match=reason):
            read_video(data)
    monkeypatch.setattr(video, "_MOST_PIXELS", 1000)
    with pytest.raises(RequestError, match="has frames of 64 x 32 pixels, and at most 1000 are taken"):
        read_video(write_video(n=3, size=(64, 32)))
    monkeypatch.setattr(video, "find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"^videos need the package av: .*\bav\b"):
        read_video(clip + b"x")


def test_frames_stand_in_the_words_of_the_processor(clip):
    parts = opened(GivenVideo(clip))
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    assert texts[0] == (
        "You are provided the following series of five frames from a 0:00:05 [H:MM:SS] video.\n\nFrame from 00:00:"
    )
    assert texts[1:] == [*(f"\nFrame from 00:0{i}:" for i in (1, 2, 3, 4)), "\n\n", "what?"]
    assert sum(isinstance(part, ImagePart) for part in parts) == 5
    prepared = read_pictures([Message("user", parts)], Vision(SMOL))
    assert [len(one.pieces) for one in prepared] == [1] * 5  # squashed, not cut
    layout = lay_out(prepared[0], SMOL)
    assert layout.n_rows == 4 and layout.parts[0] == "<fake_token_around_image><global-img>"
    assert [_words(n) for n in (1, 12, 20, 64)] == ["one", "twelve", "twenty", "sixty-four"]


def test_models_that_take_videos_otherwise_refuse_them_by_name(clip):
    given = GivenVideo(clip, where="a.b")
    with pytest.raises(RequestError, match=r"^a\.b: videos are taken by SmolVLM alone, not .* of type qwen3vl_merger"):
        opened(given, replace(SMOL, projector="qwen3vl_merger"))
    with pytest.raises(RequestError, match=r"^a\.b: this model sees no pictures, and so no video"):
        opened(given, None)
    for data, reason in (("https://x/a.mp4", "videos are not fetched"), ("data:image/png;base64,AAAA", "is no video")):
        with pytest.raises(RequestError, match=reason):
            opened(GivenVideo(data=data))


def test_parts_of_the_library_are_read(clip, tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(clip)
    url = "data:video/mp4;base64," + base64.b64encode(clip).decode()
    for part in (
        {"type": "video_url", "video_url": {"url": url}},
        {"type": "video", "video": str(path)},
        {"type": "image", "image": path},
    ):
        (read,) = ReadMessage.of({"role": "user", "content": [part]}).parts
        assert isinstance(read, VideoPart) and len(read.video.read().frames) == 5


def test_mutated_files_are_frames_or_one_sentence(clip):
    chance = random.Random(1)
    for _ in range(10):
        try:
            assert read_video(mutated(clip, chance)).frames[0].picture.size
        except RequestError as error:
            assert str(error).count("\n") == 0
