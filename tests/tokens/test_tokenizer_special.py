"""Special tokens: how text is cut at them, which ids have roles, what stands at the ends of a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokens.tiny import CONTROL, NORMAL, UNKNOWN, USER, byte_level, raw_bpe, sentencepiece, unigram
from woolly._native import SpecialSplitter
from woolly.errors import TokenizerError
from woolly.tokens import Tokenizer

Token = tuple[bytes, int, bool, bool, bool]
SPACES = b" \t\n\v\f\r"


def reference(tokens: list[Token], text: bytes, parse_control: bool) -> list[tuple[int, int, int]]:
    """Token by token, longest first, over all fragments that are still text."""
    fragments = [(0, len(text), -1)] if text else []
    for piece, index, always, lstrip, rstrip in sorted(tokens, key=lambda t: (-len(t[0]), t[1])):
        if not (always or parse_control):
            continue
        done = []
        for begin, end, kind in fragments:
            while kind < 0 and begin < end and (at := text.find(piece, begin, end)) >= 0:
                left, right = at, at + len(piece)
                while lstrip and left > begin and text[left - 1] in SPACES:
                    left -= 1
                while rstrip and right < end and text[right] in SPACES:
                    right += 1
                done += [(begin, left, -1)] if left > begin else []
                done.append((at, at + len(piece), index))
                begin = right
            if begin < end or kind >= 0:
                done.append((begin, end, kind))
        fragments = done
    return fragments


TOKENS = st.lists(
    st.tuples(st.binary(min_size=1, max_size=4).map(lambda b: bytes(b"ab <"[c % 4] for c in b)), *[st.booleans()] * 3),
    max_size=8,
    unique_by=lambda row: row[0],
).map(lambda rows: [(text, i, *flags) for i, (text, *flags) in enumerate(rows)])


@given(TOKENS, st.lists(st.sampled_from(list(b"ab <")), max_size=24).map(bytes), st.booleans())
def test_text_is_split_like_the_plain_rule(tokens, text, parse_control):
    assert SpecialSplitter(tokens).split(text, parse_control) == reference(tokens, text, parse_control)


def test_longer_special_tokens_are_matched_first():
    tokenizer = Tokenizer.from_metadata(byte_level([], [("<ab", CONTROL), ("abcd", CONTROL)]))
    assert tokenizer.encode("<abcd", add_special=False) == [ord("<"), 257]
    assert tokenizer.encode("<abc", add_special=False) == [256, ord("c")]


def test_control_tokens_are_parsed_on_request_and_user_defined_ones_always():
    tokenizer = Tokenizer.from_metadata(
        byte_level([], [("<c>", CONTROL), ("<u>", USER), ("<n>", NORMAL), ("<?>", UNKNOWN)])
    )
    assert tokenizer.encode("<c><u>", add_special=False) == [256, 257]
    assert tokenizer.encode("<c><u>", add_special=False, parse_special=False)[-1] == 257
    assert 256 not in tokenizer.encode("<c><u>", add_special=False, parse_special=False)
    assert 258 not in tokenizer.encode("<n>", add_special=False)
    assert tokenizer.encode("<?>", add_special=False) == [259]
    assert 259 not in tokenizer.encode("<?>", add_special=False, parse_special=False)


def test_decode_shows_special_tokens_by_default():
    tokenizer = Tokenizer.from_metadata(byte_level([], [("<c>", CONTROL), ("<u>", USER)]))
    ids = tokenizer.encode("a<c>b<u>", add_special=False)
    assert tokenizer.decode(ids) == "a<c>b<u>"
    assert tokenizer.decode(ids, skip_special=True) == "ab<u>"
    assert tokenizer.control_ids == {256}
    assert [tokenizer.is_special(i) for i in (0, 256, 257)] == [False, True, False]


def test_phi3_tokens_absorb_following_whitespace():
    special = [("<|user|>", USER), ("<|end|>", CONTROL), ("<|endoftext|>", CONTROL)]
    metadata = sentencepiece([("▁", -1.0), ("a", -1.0)], special)
    tokenizer = Tokenizer.from_metadata(metadata | {"general.name": "Phi3 mini"})
    assert [tokenizer.token_text(i) for i in tokenizer.encode("<|user|> \n a<|endoftext|> a", add_special=False)] == [
        "<|user|>", "▁", "a", "<|endoftext|>", "▁", "▁", "a"
    ]  # fmt: skip
    plain = Tokenizer.from_metadata(metadata)
    assert len(plain.encode("<|user|>  a", add_special=False)) == 5


def test_jina_mask_tokens_absorb_preceding_whitespace():
    tokenizer = Tokenizer.from_metadata(byte_level([], [("<mask>", CONTROL)], pre="jina-v2-code"))
    assert tokenizer.encode("a  <mask> b", add_special=False) == [97, 256, 32, 98]
    assert len(Tokenizer.from_metadata(byte_level([], [("<mask>", CONTROL)])).encode("a  <mask>", False)) == 4


def test_thousands_of_tokens_and_a_text_of_only_special_tokens():
    names = [f"<unused{i}>" for i in range(3000)] + ["\n" * n for n in range(1, 30)]
    tokenizer = Tokenizer.from_metadata(byte_level([], [(name, USER) for name in names]))
    text = "".join(names[:3000]) + "\n" * 10_000
    ids = tokenizer.encode(text, add_special=False)
    assert ids[:3000] == list(range(256, 3256))
    assert ids[3000:] == [names.index("\n" * 29) + 256] * (10_000 // 29) + [names.index("\n" * (10_000 % 29)) + 256]


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (byte_level(), (False, False)),
        (byte_level(pre="llama-bpe"), (True, False)),
        (byte_level(pre="llama-bpe", add_bos_token=False), (False, False)),
        (byte_level(pre="tekken"), (True, False)),
        (byte_level(add_bos_token=True, add_eos_token=True), (True, True)),
        (sentencepiece([("a", -1.0)]), (True, False)),
        (sentencepiece([("a", -1.0)], add_bos_token=False, add_eos_token=True), (False, True)),
        (unigram([("a", -1.0)]), (False, True)),
    ],
)
def test_bos_and_eos_follow_the_file_or_the_type(metadata, expected):
    tokenizer = Tokenizer.from_metadata(metadata)
    ids = tokenizer.encode("a", parse_special=False)
    inner = tokenizer.encode("a", add_special=False)
    first, last = expected
    assert (tokenizer.add_bos, tokenizer.add_eos) == expected
    assert ids == [tokenizer.bos_id] * first + inner + [tokenizer.eos_id] * last


def test_second_bos_is_added_to_a_text_with_one():
    tokenizer = Tokenizer.from_metadata(sentencepiece([("a", -1.0)]))
    assert tokenizer.encode("<s>")[:2] == [1, 1]


def test_bos_requested_but_not_named_by_the_file_is_an_error():
    with pytest.raises(TokenizerError, match="beginning token"):
        Tokenizer.from_metadata(byte_level(pre="glm4", add_bos_token=True))
    with pytest.raises(TokenizerError, match="end token"):
        Tokenizer.from_metadata(raw_bpe(["a"], [], add_eos_token=True))


def test_role_ids_come_from_the_file_and_bad_ones_keep_the_default():
    tokenizer = Tokenizer.from_metadata(
        byte_level(eos_token_id=5, padding_token_id=6, unknown_token_id=7, bos_token_id=2**32 - 1)
    )
    assert (tokenizer.eos_id, tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id) == (5, 6, 7, 11)
    assert Tokenizer.from_metadata(byte_level(pre="glm4")).bos_id is None


def stop_texts(*special: tuple[str, int], **keys: int) -> set[str]:
    tokenizer = Tokenizer.from_metadata(byte_level([], special, eos_token_id=0, **keys))
    return {tokenizer.token_text(i) for i in tokenizer.stop_ids} - {"Ā"}


def test_well_known_texts_end_generation_whatever_their_type():
    assert stop_texts(("<|im_end|>", NORMAL), ("<|im_start|>", CONTROL)) == {"<|im_end|>"}
    tokenizer = Tokenizer.from_metadata(byte_level([], [("<|im_end|>", NORMAL)]))
    assert tokenizer.eot_id == 256
    assert tokenizer.control_ids == {256}


def test_html_strikethrough_end_does_not_end_generation():
    assert stop_texts(("</s>", NORMAL)) == set()
    assert stop_texts(("</s>", CONTROL)) == {"</s>"}
    assert stop_texts(("</s>", CONTROL), ("<|tool_response>", CONTROL)) == {"<|tool_response>"}


def test_harmony_continues_after_end_and_shows_its_channels():
    special = [("<|end|>", CONTROL), ("<|return|>", CONTROL), ("<|call|>", CONTROL), ("<|channel|>", CONTROL)]
    assert stop_texts(*special) == {"<|return|>", "<|call|>"}
    tokenizer = Tokenizer.from_metadata(byte_level([], special))
    assert tokenizer.decode([256, 257, 259], skip_special=True) == "<|end|><|channel|>"


def test_named_ends_and_repository_markers_end_generation():
    assert stop_texts(("<x>", CONTROL), ("<y>", CONTROL), eot_token_id=256, eom_token_id=257) == {"<x>", "<y>"}
    assert stop_texts(("<|file_sep|>", CONTROL), ("<|fim_pad|>", CONTROL)) == {"<|file_sep|>", "<|fim_pad|>"}
