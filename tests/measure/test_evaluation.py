"""Questions with known answers: what a row is, what is right, and how sure a difference is."""

import json
import math

import pytest

from woolly.errors import RequestError
from woolly.measure.evaluation.comparison import accuracy, compare
from woolly.measure.evaluation.questions import PromptRow, judge, read_rows
from woolly.measure.evaluation.runner import run_rows

CHOICES = {"question": "Which?", "choices": ["one", "two", "three"], "answer": 1}


def rows_of(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return read_rows(path)


@pytest.mark.parametrize(
    ("match", "answer", "text", "right"),
    [
        ("exact", "Paris", " Paris\n", True),
        ("exact", "Paris", "Paris.", False),
        ("regex", r"\bParis\b", "It is Paris, of course.", True),
        ("regex", "^Paris", "It is Paris.", False),
        ("number", 1200, "That makes 3 times 400, so 1,200.0", True),
        ("number", "12", "12 or 13", False),
        ("json", {"a": [1, 2]}, 'Here: {"a": [1, 2]} as asked', True),
        ("json", {"a": 1}, '{"a": "1"}', False),
        ("json", None, "no JSON at all", False),
    ],
)
def test_answers_are_judged_by_kind(match, answer, text, right):
    assert judge(PromptRow("k", "p", answer, match), text) is right


def test_choices_are_numbers_letters_or_texts(tmp_path):
    rows = rows_of(tmp_path, CHOICES, {**CHOICES, "answer": "B"}, {**CHOICES, "answer": "two"})
    assert [row.answer for row in rows] == [1, 1, 1]
    assert rows[0].prompt == "Question: Which?\nAnswer:"
    assert rows[0].choices == (" one", " two", " three")
    assert rows[0].lengths == (3, 3, 5)  # as lm-evaluation-harness counts them, without the space before


def test_choice_lengths_are_characters(tmp_path):
    (row,) = rows_of(tmp_path, {**CHOICES, "choices": ["Köln", "東京", " Rome"]})
    assert row.lengths == (4, 2, 5)  # 5, 6 and 5 bytes


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("{", "line 1 is not valid JSON"),
        ("[]", "not a JSON object"),
        ({"prompt": "x"}, r'has no answer; expected a row such as \{"prompt": '),
        ({"answer": "x"}, "neither question and choices nor a prompt"),
        ({"prompt": "x", "answer": "y", "match": "near"}, "match is 'near'"),
        ({"prompt": "x", "answer": "(", "match": "regex"}, "not a regular expression"),
        ({"prompt": "x", "answer": "y", "match": "number"}, "expected a number"),
        ({**CHOICES, "answer": 3}, "the answer is 3"),
        ({**CHOICES, "choices": ["one"]}, "two or more"),
        ({"prompt": "x", "answer": "y", "tests": "assert"}, "does not run code"),
    ],
)
def test_invalid_row_is_named_with_its_line(tmp_path, row, expected):
    with pytest.raises(RequestError, match=expected):
        rows_of(tmp_path, row)


def test_likeliest_choice_uses_the_complete_text(tiny_llm, tmp_path):
    (row,) = rows_of(tmp_path, CHOICES)
    (outcome,) = run_rows(tiny_llm, [row], tmp_path / "out.jsonl", "m", 4)
    n_prompt = len(tiny_llm.tokenize(row.prompt))
    sums = [math.fsum(tiny_llm.score(row.prompt + choice).logprobs[n_prompt:]) for choice in row.choices]
    assert outcome.answer == row.choices[sums.index(max(sums))].strip()
    assert outcome.right is (sums.index(max(sums)) == row.answer)


def test_run_resumes_from_existing_results(tiny_llm, tmp_path):
    rows = rows_of(tmp_path, CHOICES, {"prompt": "Say something", "answer": ".", "match": "regex"})
    path = tmp_path / "out.jsonl"
    first = run_rows(tiny_llm, rows, path, "m", 4)
    whole = path.read_text()
    lines = whole.splitlines()
    path.write_text("\n".join(lines[:2]) + "\n" + lines[2][:7])  # killed within a line
    assert run_rows(tiny_llm, rows, path, "m", 4) == first

    class Never:
        def __getattr__(self, name):
            raise AssertionError(name)

    assert run_rows(Never(), rows, path, "m", 4) == first
    with pytest.raises(RequestError, match="of another model"):
        run_rows(tiny_llm, rows, path, "n", 4)


def test_other_line_separators_are_characters_of_a_text(tmp_path):
    text = "one\u2028two\u0085three\x1cfour"
    source, path = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text(
        json.dumps({"prompt": text.replace("\x1c", ""), "answer": "x"}, ensure_ascii=False) + "\r\n", "utf-8"
    )
    (row,) = read_rows(source)
    assert row.prompt == text.replace("\x1c", "")
    outcome = {"key": row.key, "right": False, "right_by_length": None, "answer": text}
    kept = [{"of": "m"}, outcome]
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in kept), "utf-8")
    (found,) = run_rows(None, [row], path, "m", 4)  # it is known: no model is asked
    assert found.answer == text


def test_ranges_and_tests_match_textbook_values():
    own = accuracy([True] * 8 + [False] * 2)
    assert (own.share, round(own.low, 3), round(own.high, 3)) == (0.8, 0.49, 0.943)
    pairs = [(True, False)] * 9 + [(False, True)] * 2 + [(True, True)] * 20
    found = compare(*zip(*pairs, strict=True))
    assert (found.only_first, found.only_second) == (9, 2)
    assert found.p_value == pytest.approx(2 * (1 + 11 + 55) / 2**11)
    assert found.difference == pytest.approx(7 / 31)
    assert found.low < found.difference < found.high
    assert compare([True, False], [True, False]).p_value == 1
