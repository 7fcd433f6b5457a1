"""Streaming: the parts joined are the whole, and no part holds half a character."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.tokens.tiny import CONTROL, USER, byte_level, sentencepiece
from woolly.tokens import StreamDetokenizer, Tokenizer

BYTES = Tokenizer.from_metadata(byte_level(["Ġ a", "Ã ©"], [("<c>", CONTROL), ("<u>", USER)]))
PIECES = Tokenizer.from_metadata(
    sentencepiece([("▁", 0.0), ("▁a", -1.0), ("a", 0.0)], [("<c>", CONTROL), ("<u>", USER)])
)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd▁"), max_size=30)


def stream(tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    detokenizer = StreamDetokenizer(tokenizer, **options)
    return [*(detokenizer.push(i) for i in ids), detokenizer.finish()]


@given(
    st.sampled_from([BYTES, PIECES]).flatmap(
        lambda t: st.tuples(st.just(t), st.lists(st.integers(0, t.n_vocab - 1), max_size=40))
    ),
    st.booleans(),
    st.booleans(),
)
def test_joined_parts_of_any_ids_equal_decode(case, skip_special, strip_prefix):
    tokenizer, ids = case
    options = {"skip_special": skip_special, "strip_prefix": strip_prefix}
    assert "".join(stream(tokenizer, ids, **options)) == tokenizer.decode(ids, **options)


@given(st.sampled_from([BYTES, PIECES]), TEXT)
def test_valid_text_comes_in_complete_characters(tokenizer, text):
    parts = stream(tokenizer, tokenizer.encode(text, add_special=False, parse_special=False))
    assert "".join(parts) == text
    assert all("\ufffd" not in part for part in parts)
    assert parts[-1] == ""


def test_four_byte_character_appears_with_its_last_byte():
    ids = BYTES.encode("😀!", add_special=False)
    assert stream(BYTES, ids) == ["", "", "", "😀", "!", ""]


def test_incomplete_characters_are_replaced_at_the_end():
    first = BYTES.encode("😀", add_special=False)[:2]
    assert stream(BYTES, first) == ["", "", "\ufffd"]


def test_control_tokens_are_omitted_by_default():
    ids = BYTES.encode("a<c>b<u>", add_special=False)
    assert "".join(stream(BYTES, ids)) == "ab<u>"
    assert "".join(stream(BYTES, ids, skip_special=False)) == "a<c>b<u>"


def test_first_space_is_kept_for_a_continued_text():
    ids = PIECES.encode("a a", add_special=False)
    assert "".join(stream(PIECES, ids)) == "a a"
    assert "".join(stream(PIECES, ids, strip_prefix=False)) == " a a"
