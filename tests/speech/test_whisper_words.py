"""Word timestamps of Whisper against transformers: attention, median filter, DTW."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.cases.whisper import waveform, write_whisper
from woolly import LLM
from woolly.errors import RequestError
from woolly.multimodal import EncoderInput, Placeholder, ProcessedItem
from woolly.multimodal.audio import log_mel_whisper
from woolly.sampling import SamplingParams
from woolly.speech import whisper
from woolly.speech.alignment import align, alignment_heads, dtw
from woolly.speech.transcriber import DecodeRequest
from woolly.speech.word_timestamps import WordAligner, split_words

GOLDEN = np.load(Path(__file__).parent.parent / "goldens" / "whisper.npz")
SPOKEN = (50258, 50259, 50359, 50363, 259, 900, 4000, 261, 13, 700, 5000, 50257)


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    with LLM(write_whisper(tmp_path_factory.mktemp("words") / "ggml-tiny.bin"), threads=2, kv_type="f32") as llm:
        yield llm


def test_token_start_times_match_transformers(llm):
    frames = log_mel_whisper(np.pad(waveform(), (0, 480000)), 80)
    window = ProcessedItem.of("audio", [EncoderInput(np.ascontiguousarray(frames[:3000]), (1, 1, 3000))])
    aligner = WordAligner(llm._loaded[0], is_english=False)
    hooked, hooks = aligner.hooks()
    ask = DecodeRequest((Placeholder(window, 0, 0, 1500), *SPOKEN), SamplingParams(temperature=0, max_tokens=1), hooks)
    for _ in range(2):  # a prompt that is in the cache shows as much
        hooked, hooks = aligner.hooks()
        (done,) = llm.driver.complete([[llm.decode_request(DecodeRequest(ask.prompt, ask.params, hooks))]])
        done.checked()
        assert aligner.token_starts(hooked, 3, 1500).tolist() == GOLDEN["begins"].tolist()


def test_transcript_has_words_on_request(llm, monkeypatch):
    monkeypatch.setattr(whisper, "_MAX_NEW_TOKENS", 8)
    plain, timed = (
        llm.transcribe((waveform(34.0), 16000), language="en", temperature=0.0, word_timestamps=timed)
        for timed in (False, True)
    )
    assert [one.tokens for one in plain.segments] == [one.tokens for one in timed.segments]
    assert plain.words == () and [word.text for word in timed.words] == timed.text.split()
    for segment in timed.segments:
        times = [time for word in segment.words for time in (word.start, word.end)]
        assert times == sorted(times) and segment.seek / 100 <= times[0] and times[-1] <= 34.0
    with pytest.raises(RequestError, match="word_timestamps is 1; expected True or False"):
        llm.transcribe((waveform(3.0), 16000), word_timestamps=1)


def _cheapest(cost):
    """Return the lowest path cost, cell by cell."""
    best = np.full((cost.shape[0] + 1, cost.shape[1] + 1), np.inf)
    best[0, 0] = 0
    for i in range(cost.shape[0]):
        for j in range(cost.shape[1]):
            best[i + 1, j + 1] = cost[i, j] + min(best[i, j], best[i, j + 1], best[i + 1, j])
    return best[-1, -1]


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 9), (7, 1), (6, 11), (13, 5)])
def test_dtw_path_is_the_cheapest(n, m):
    cost = np.random.RandomState(n * 31 + m).standard_normal((n, m))
    rows, columns = dtw(cost)
    assert (rows[0], columns[0], rows[-1], columns[-1]) == (0, 0, n - 1, m - 1)
    steps = np.stack([np.diff(rows), np.diff(columns)], axis=1)
    assert set(map(tuple, steps.tolist())) <= {(0, 1), (1, 0), (1, 1)}
    assert cost[rows, columns].sum() == pytest.approx(_cheapest(cost))


def test_tokens_follow_the_rows_they_attend_to():
    scores = np.full((6, 40), -10.0, np.float32)
    for token, (first, last) in enumerate(pairwise((0, 4, 12, 22, 30, 36, 40))):
        scores[token, first:last] = 10.0
    begins = align([scores, scores], 1)
    assert len(begins) == 4 and (np.abs(begins - np.array([0, 12, 22, 30])) <= 2).all()


def test_alignment_heads_of_published_models_are_known_with_a_default():
    known = {"is_english": False, "name": "ggml-base"}
    assert alignment_heads(6, 6, 8, 80, **known)[:3] == ((3, 1), (4, 2), (4, 3))
    assert alignment_heads(6, 6, 8, 80, is_english=True, name="ggml-base.en")[0] == (3, 3)
    assert len(alignment_heads(32, 32, 20, 80, is_english=False, name="ggml-large-v1")) == 9
    assert len(alignment_heads(32, 32, 20, 80, is_english=False, name="ggml-large-v2")) == 23
    assert len(alignment_heads(32, 32, 20, 128, is_english=False, name="ggml-large-v3")) == 10
    assert alignment_heads(4, 32, 20, 128, is_english=False, name="ggml-large-v3-turbo")[-1] == (3, 14)
    assert alignment_heads(2, 32, 20, 128, **known) == tuple((1, head) for head in range(20))
    assert alignment_heads(4, 4, 2, 80, **known) == ((2, 0), (2, 1), (3, 0), (3, 1))


def test_punctuation_belongs_to_adjacent_words():
    pieces = [b" He", b"llo", b",", b' "', b"W", b"ool", b'ly"', b".", b" na", b"\xc3", b"\xaf", b"ve"]
    words = split_words(pieces, [0.1 * i for i in range(len(pieces) + 1)], "en")
    assert [word.text for word in words] == ["Hello,", '"Woolly".', "na\u00efve"]
    assert [round(time, 1) for word in words for time in (word.start, word.end)] == [0.0, 0.3, 0.3, 0.8, 0.8, 1.2]
    apart = split_words(["\u4f60".encode(), "\u597d".encode(), "\u3002".encode()], [0.0, 1.0, 2.0, 3.0], "zh")
    assert [(word.text, word.start, word.end) for word in apart] == [("\u4f60", 0.0, 1.0), ("\u597d\u3002", 1.0, 3.0)]
    assert split_words([b" cut", b"\xe4"], [0.0, 1.0, 2.0], "en")[-1].text == "cut\ufffd"
