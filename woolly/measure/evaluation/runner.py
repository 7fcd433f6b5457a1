"""Evaluation of rows in chunks. Results are written to disk after each chunk."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from woolly.engine import Score
from woolly.errors import RequestError
from woolly.llm import LLM
from woolly.measure.evaluation.questions import ChoiceRow, PromptRow, Row, judge
from woolly.sampling import SamplingParams

# Rows per chunk: enough to fill the batches of a step.
_PART = 16


@dataclass(frozen=True)
class Outcome:
    """Result of one row."""

    key: str
    right: bool
    right_by_length: bool | None  # for choices: by log-probability per character
    answer: str


def run_rows(
    llm: LLM,
    rows: Sequence[Row],
    path: Path,
    of: str,
    max_tokens: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Return the outcome of each row, in order. Outcomes of an earlier run in `path` are reused.

    `of` identifies the model. A file of another model is rejected.
    """
    known = _read(path, of)
    if not path.exists():
        path.write_text(json.dumps({"of": of}) + "\n", encoding="utf-8")
    elif not path.read_bytes().endswith(b"\n"):  # a run was killed while writing a line
        with path.open("a", encoding="utf-8") as file:
            file.write("\n")
    missing = [row for row in {row.key: row for row in rows}.values() if row.key not in known]
    done = len(rows) - len(missing)
    for first in range(0, len(missing), _PART):
        part = missing[first : first + _PART]
        outcomes = _choose(llm, [row for row in part if isinstance(row, ChoiceRow)])
        outcomes += _answer(llm, [row for row in part if isinstance(row, PromptRow)], max_tokens)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(outcome), ensure_ascii=False) + "\n" for outcome in outcomes)
        known |= {outcome.key: outcome for outcome in outcomes}
        done += len(part)
        if progress is not None:
            progress(done, len(rows))
    return [known[row.key] for row in rows]


def _read(path: Path, of: str) -> dict[str, Outcome]:
    if not path.exists():
        return {}
    head, *lines = path.read_text(encoding="utf-8").split("\n")  # split at \n only: lines may contain U+2028
    try:
        if json.loads(head) != {"of": of}:
            raise RequestError(
                f"{path} has results of another model or setting; remove it or choose another file with -o"
            )
    except ValueError:
        raise RequestError(f"{path} is not a file of results; remove it or choose another file with -o") from None
    out = {}
    for line in lines:
        try:
            outcome = Outcome(**json.loads(line))
        except (ValueError, TypeError):
            continue  # incomplete last line of a killed run
        out[outcome.key] = outcome
    return out


def _choose(llm: LLM, rows: Sequence[ChoiceRow]) -> list[Outcome]:
    """Return the likeliest choice of each row, with all rows in one batch of requests."""
    prompts = [[llm.tokenize(row.prompt + choice) for choice in row.choices] for row in rows]
    requests = [[llm.prepare_score(ids) for ids in own] for own in prompts]
    llm.driver.complete([[request] for own in requests for request in own])
    out = []
    for row, own, ids in zip(rows, requests, prompts, strict=True):
        n_prompt = len(llm.tokenize(row.prompt))
        sums = []
        for request, tokens in zip(own, ids, strict=True):
            # A choice may change the prompt's last token, but at least its last token is scored.
            scored = Score.of(request).logprobs[max(1, min(n_prompt, len(tokens) - 1)) :]
            sums.append(math.fsum(value for value in scored if value is not None))
        by_length = [value / length for value, length in zip(sums, row.lengths, strict=True)]
        best, best_by_length = sums.index(max(sums)), by_length.index(max(by_length))
        answer = row.choices[best].strip()
        out.append(Outcome(row.key, best == row.answer, best_by_length == row.answer, answer))
    return out


def _answer(llm: LLM, rows: Sequence[PromptRow], max_tokens: int) -> list[Outcome]:
    """Generate answers at temperature 0, with the chat template if there is one."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    if not rows:
        return []
    prompts = [row.prompt for row in rows]
    if llm.template is None:
        texts = [completion.text for completion in llm.generate(prompts, params)]
    else:
        chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
        texts = [completion.text for completion in llm.chat(chats, params)]
    return [Outcome(row.key, judge(row, text), None, text) for row, text in zip(rows, texts, strict=True)]
