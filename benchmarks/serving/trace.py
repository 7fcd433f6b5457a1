"""Traces of requests: read from a file in Mooncake's format, or made up with its published figures."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

BLOCK = 512  # tokens that one id of a trace stands for, with all tokens before them

# Mooncake's trace of conversations: 12,031 requests in 59 minutes, 12,035 tokens of a prompt and 343 of an answer on
# average, one first block for all of them. A cache without bounds would know 37 % of all tokens of prompts.
N_REQUESTS = 12_031
SECONDS = 3_537.0
_TEXT, _SPREAD = 5_000.0, 1.3  # tokens that a conversation begins with: median, and spread of their logarithm
_MORE, _MORE_SPREAD = 450.0, 1.6  # of each further turn
_ANSWER, _ANSWER_SPREAD = 250.0, 0.8
_GOES_ON = 0.41  # share of turns that another follows
_PAUSE = 180.0  # seconds between two turns, on average
_MAX_PROMPT_TOKENS = 126_000


@dataclass(frozen=True)
class Asked:
    """One request."""

    at: float  # seconds
    n_prompt: int
    n_answer: int
    blocks: tuple[int, ...]  # ids of the full blocks of the prompt, in order


def read_trace(path: Path) -> list[Asked]:
    """The requests of a file of Mooncake's: a line of JSON each."""
    out = []
    for line in path.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        ids = one["hash_ids"][: one["input_length"] // BLOCK]
        out.append(Asked(one["timestamp"] / 1000, one["input_length"], one["output_length"], tuple(ids)))
    return out


def made_up(seed: int = 0, n_requests: int = N_REQUESTS) -> list[Asked]:
    """Conversations whose figures are those that were published; no real text or time is behind them."""
    rng = random.Random(seed)
    ids = itertools.count(1)
    seconds = SECONDS * n_requests / N_REQUESTS
    out: list[Asked] = []
    while len(out) < n_requests:
        at = rng.uniform(-600.0, seconds)  # some began before
        n_prompt, blocks = 0, [0]
        grows = _lognormal(rng, _TEXT, _SPREAD)
        while True:
            n_prompt = min(_MAX_PROMPT_TOKENS, n_prompt + grows)
            blocks += [next(ids) for _ in range(n_prompt // BLOCK - len(blocks))]
            n_answer = min(2000, _lognormal(rng, _ANSWER, _ANSWER_SPREAD))
            if 0.0 <= at < seconds:
                out.append(Asked(at, n_prompt, n_answer, tuple(blocks[: n_prompt // BLOCK])))
            if rng.random() >= _GOES_ON or n_prompt == _MAX_PROMPT_TOKENS:
                break
            at += rng.expovariate(1 / _PAUSE)
            grows = n_answer + _lognormal(rng, _MORE, _MORE_SPREAD)
    return sorted(out[:n_requests], key=lambda asked: asked.at)


def ideal_hits(trace: Iterable[Asked]) -> float:
    """Share of all tokens of prompts that one cache without bounds would know."""
    known: set[int] = set()
    n_known = n_all = 0
    for asked in trace:
        n_known += BLOCK * sum(1 for _ in itertools.takewhile(known.__contains__, asked.blocks))
        n_all += asked.n_prompt
        known.update(asked.blocks)
    return n_known / n_all


def _lognormal(rng: random.Random, median: float, spread: float) -> int:
    return max(1, round(median * 2.718281828459045 ** (spread * rng.gauss(0.0, 1.0))))
