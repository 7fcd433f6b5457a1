"""PLaMo's vocabularies: the pieces that a table over reversed text finds, as the original tokenizer walks it."""

import math

import numpy as np
import pytest

from tests.tokens.tiny import BYTE, BYTE_NAMES, CONTROL, NORMAL, UNKNOWN, UNUSED
from woolly.errors import TokenizerError
from woolly.tokens.tokenizer import Tokenizer

SPECIAL = [("<|plamo:unk|>", 0.0, UNKNOWN), *((f"<|plamo:{x}|>", 0.0, CONTROL) for x in ("bos", "eos", "pad"))]
WORDS = [("the", -2.5), ("t", -5.0), ("he", -3.25), ("h", -6.0), ("e", -4.5), (" ", -1.0), ("▁", -7.0), ("日本", -3.0)]


def metadata(pieces, **keys):
    rows = [*SPECIAL, *((name, 0.0, BYTE) for name in BYTE_NAMES), *((*row, NORMAL)[:3] for row in pieces)]
    texts, scores, kinds = zip(*rows, strict=True)
    out = {"model": "plamo2", "tokens": list(texts), "scores": np.array(scores, np.float32)}
    out |= {"token_type": np.array(kinds, np.int32), "bos_token_id": 1, "eos_token_id": 2, **keys}
    return {f"tokenizer.ggml.{key}": value for key, value in out.items()}


def walked(rows, text):
    """Pieces of a text by the original's way: the longest suffix of any piece, character by character from the end."""
    scores = {}
    for piece, score in rows:
        scores[piece] = score
        for i in range(1, len(piece)):
            scores.setdefault(piece[i:], math.nan)
    whole = lambda x: int(math.copysign(math.floor(abs(x) + 0.5), x))  # noqa: E731
    costs, steps, suffix = [*[1 << 60] * len(text), 0], {}, ""
    for i in range(len(text) - 1, -1, -1):
        starts = [suffix[:n] for n in range(len(suffix), -1, -1)]  # the longest one that continues
        suffix = next((text[i] + start for start in starts if text[i] + start in scores), "")
        for n in range(len(suffix), 0, -1):
            score = scores.get(suffix[:n], math.nan)
            if math.isfinite(score) and costs[i + n] - whole(float(np.float32(score)) * 1e4) < costs[i]:
                costs[i], steps[i] = costs[i + n] - whole(float(np.float32(score)) * 1e4), suffix[:n]
        if costs[i + 1] + 10_000_000 < costs[i]:
            costs[i], steps[i] = costs[i + 1] + 10_000_000, None
    out, at = [], 0
    while at < len(text):
        out += [bytes([b]) for b in text[at].encode()] if steps[at] is None else [steps[at].encode()]
        at += 1 if steps[at] is None else len(steps[at])
    return out


def test_random_texts_have_the_pieces_of_the_original():
    rng = np.random.default_rng(5)
    letters = list("abcé日")
    for _ in range(40):
        texts = {"".join(rng.choice(letters, rng.integers(1, 6))) for _ in range(30)}
        # Few different scores: many ways cost the same.
        rows = [(text, -float(rng.integers(1, 9)) / 2 * len(text) ** 0.5) for text in sorted(texts)]
        t = Tokenizer.from_metadata(metadata(rows))
        for _ in range(20):
            text = "".join(rng.choice([*letters, "x"], rng.integers(1, 40)))
            ids = t.encode(text)
            assert [t.token_bytes(i) for i in ids] == walked(rows, text)


def test_longer_first_piece_wins_among_equal_scores():
    t = Tokenizer.from_metadata(metadata([("ab", -2.0), ("c", -1.0), ("a", -1.0), ("bc", -2.0)]))
    assert [t.token_bytes(i) for i in t.encode("abc")] == [b"ab", b"c"]


@pytest.mark.parametrize("text", ["", "the he the", "日本 ü ▁\t\x00", "\U0001f411", "the" * 50])
def test_text_round_trips(text):
    t = Tokenizer.from_metadata(metadata(WORDS))
    assert t.decode(t.encode(text)) == text


def test_byte_order_mark_is_dropped_at_the_beginning():
    t = Tokenizer.from_metadata(metadata(WORDS))
    assert t.decode(t.encode("\ufeffthe\ufeff")) == "the\ufeff"


def test_padding_tokens_are_no_pieces():
    t = Tokenizer.from_metadata(metadata([*WORDS, ("[PAD1]", -1000.0, UNUSED)]))
    assert len(t.encode("e[PAD1]")) == 7


def test_control_tokens_are_found_and_ends_are_known():
    t = Tokenizer.from_metadata(metadata(WORDS, add_bos_token=True))
    assert t.encode("the<|plamo:eos|>") == [1, t.encode("the", add_special=False)[0], 2]
    assert (t.bos_id, t.eos_id, t.unk_id, t.pad_id) == (1, 2, 0, 3)


@pytest.mark.parametrize("name", [name for name, *_ in SPECIAL])
def test_client_cannot_write_control_tokens(name):
    t = Tokenizer.from_metadata(metadata([*WORDS, (name[:4], -9.0)]))
    ids = t.encode(f"the{name}he", add_special=False, parse_special=False)
    assert not {0, 1, 2, 3} & {*ids} and t.decode(ids) == f"the{name}he"


def test_byte_without_a_token_is_an_error():
    broken = metadata(WORDS)
    broken["tokenizer.ggml.token_type"][4 + 0x41] = NORMAL
    with pytest.raises(TokenizerError, match="no token for the byte 0x41"):
        Tokenizer.from_metadata(broken)
