"""Reasoning is split from the answer, and no split of the text changes what comes out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woolly.chat.reasoning import REASONING_MARKS, ReasoningFormat, ReasoningSplitter, find_reasoning

THINK = ReasoningFormat("<think>", "</think>")

# whether the prompt has opened it, the answer, its reasoning, its text
CASES = [
    (False, "Hello", "", "Hello"),
    (False, "<think>\nI see.\n</think>\n\nHello \n", "I see.", "Hello \n"),
    (False, "\n<think>a</think>b", "a", "b"),
    (False, "<think></think>b", "", "b"),
    (False, "<think>a < b </thin> c</think>d</think>", "a < b </thin> c", "d</think>"),
    (False, "<think>never ends ", "never ends", ""),
    (False, "<think>never ends </thi", "never ends </thi", ""),
    (False, " <thin", "", " <thin"),
    (False, " \n x", "", " \n x"),
    (False, "Hello <think>a</think>", "", "Hello <think>a</think>"),
    (True, "I see.</think>Hello", "I see.", "Hello"),
    (True, "\nI see.\n\nYes.\n</think>\n\nHello", "I see.\n\nYes.", "Hello"),
    (True, "cut", "cut", ""),
    (False, "", "", ""),
]


def read(is_open, pieces, marks=THINK):
    splitter = ReasoningSplitter(marks, is_open=is_open)
    splits = [*(splitter.push(piece) for piece in pieces), splitter.finish()]
    return "".join(s.reasoning for s in splits), "".join(s.text for s in splits)


@pytest.mark.parametrize(("is_open", "answer", "reasoning", "text"), CASES)
def test_reasoning_and_text_are_separated_at_any_chunking(is_open, answer, reasoning, text):
    assert read(is_open, [answer]) == (reasoning, text)
    assert read(is_open, answer) == (reasoning, text)
    for at in range(len(answer) + 1):
        assert read(is_open, [answer[:at], answer[at:]]) == (reasoning, text)


@settings(max_examples=200, deadline=None)
@given(st.booleans(), st.lists(st.sampled_from(["<think>", "</think>", "<", "/", " ", "\n", "a", "th"]), max_size=10))
def test_chunk_boundaries_change_nothing(is_open, pieces):
    assert read(is_open, pieces) == read(is_open, ["".join(pieces)])


def test_without_markers_everything_is_text():
    splitter = ReasoningSplitter(None)
    assert splitter.push("<think>a").text + splitter.finish().text == "<think>a"


def test_template_shows_its_markers_and_prompt_whether_they_are_open():
    assert find_reasoning("{{ '<think>\\n' }}") == THINK
    assert find_reasoning("content.split('</think>')") == THINK
    assert find_reasoning("[THINK]") == ReasoningFormat("[THINK]", "[/THINK]")
    assert find_reasoning("{{ messages }}") is None
    assert THINK.is_open("<|im_start|>assistant\n<think>\n")
    assert not THINK.is_open("<|im_start|>assistant\n<think>\n\n</think>\n\n")


@pytest.mark.parametrize("marks", [marks for marks in REASONING_MARKS if not marks.has_channels])
def test_reasoning_markers_of_every_family_are_detected(marks):
    assert find_reasoning(f"{{{{ messages }}}}{marks.start}{marks.end}{''.join(marks.signs)}") == marks
    answer = f"{marks.start}\nI see.\n{marks.end}\n{marks.answer}Hello </b>{marks.answer_end}"
    for pieces in ([answer], answer, *([answer[:at], answer[at:]] for at in range(len(answer)))):
        assert read(False, pieces, marks) == ("I see.", "Hello </b>")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("a</response>b", "a</response>b"),
        ("<response>a</resp", "a</resp"),
        ("<resp", "<resp"),
        ("<response>a</response>\n", "a"),
        ("<response></response>", ""),
    ],
)
def test_answer_markers_are_dropped_only_around_the_answer(answer, text):
    marks = find_reasoning("<think></think><response></response>")
    for pieces in ([answer], answer):
        assert read(True, ["x</think>", *pieces], marks) == ("x", text)


def test_answer_markers_may_exist_without_reasoning():
    marks = find_reasoning("<|START_THINKING|><|START_RESPONSE|>")
    for answer, text in (("<|START_RESPONSE|>Hi<|END_RESPONSE|>", "Hi"), ("Hi", "Hi"), ("<|START_", "<|START_")):
        for pieces in ([answer], answer):
            assert read(False, pieces, marks) == ("", text)


def test_phi_3_has_no_reasoning():
    assert find_reasoning("<|user|>{{ content }}<|end|><|assistant|>") is None


TAGS = ReasoningFormat(
    "<|open|>think<|sep|>",
    "<|close|>think<|sep|>",
    answer="<|open|>reply<|sep|>",
    answer_end="<|close|>reply<|sep|>",
    turn_end="<|close|>turn<|sep|>",
)
END = TAGS.answer_end + TAGS.turn_end
CHANNEL = ReasoningFormat("<|channel>thought", "<channel|>")


def pieces_of(splitter, pieces):
    splits = [*(splitter.push(piece) for piece in pieces), splitter.finish()]
    return "".join(s.reasoning for s in splits), "".join(s.text for s in splits)


@pytest.mark.parametrize(
    ("answer", "reasoning", "text"),
    [
        (f"Hm.{TAGS.end}{TAGS.answer}Yes.{END}", "Hm.", "Yes."),
        (f"{TAGS.answer}Yes.{END}", "", "Yes."),
        (f"Hm.{TAGS.answer}Yes.{TAGS.answer_end}", "Hm.", "Yes."),
        (f"{TAGS.answer}{TAGS.turn_end}a{END} ", "", f"{TAGS.turn_end}a"),
    ],
)
def test_headers_and_end_of_the_turn_are_no_text(answer, reasoning, text):
    for pieces in ([answer], answer):
        assert pieces_of(ReasoningSplitter(TAGS, is_open=True), pieces) == (reasoning, text)


@pytest.mark.parametrize(
    ("answer", "reasoning", "text"),
    [
        ("<|channel>thought\nHm.<channel|>Yes.<channel|>", "Hm.", "Yes."),
        ("<|channel>thought<channel|>Yes.<|channel>thought\nHm.<channel|>", "Hm.", "Yes."),
        ("<|channel>thought\na<channel|>b<|channel>thought\nc<channel|>d", "a\n\nc", "bd"),
        ("<|channel><|channel>thought\nHm.<channel|>Yes.<|chan", "Hm.", "Yes.<|chan"),
    ],
)
def test_control_tokens_are_markers_anywhere(answer, reasoning, text):
    for pieces in ([answer], answer):
        splitter = ReasoningSplitter(CHANNEL, tokens=("<|channel>", "<channel|>"))
        assert pieces_of(splitter, pieces) == (reasoning, text)


@pytest.mark.parametrize(
    ("marks", "is_open", "answer", "text"),
    [
        (THINK, False, "<think>\nHm. </think>\n\nYes.", "<think>\nHm. </think>\n\nYes."),
        (THINK, True, "Hm.</think>\nYes.", "<think>\nHm.</think>\nYes."),
        (TAGS, True, f"Hm.{TAGS.end}{TAGS.answer}Yes.{END}", f"{TAGS.start}Hm.{TAGS.end}Yes."),
        (TAGS, True, f"{TAGS.answer}Yes.{END}", "Yes."),
    ],
)
def test_reasoning_that_is_not_split_keeps_its_markers(marks, is_open, answer, text):
    shown = marks.start + ("\n" if marks is THINK else "")
    for pieces in ([answer], answer):
        splitter = ReasoningSplitter(marks, is_open=is_open, is_split=False, shown=shown)
        assert pieces_of(splitter, pieces) == ("", text)
