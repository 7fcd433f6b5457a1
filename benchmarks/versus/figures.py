"""Workloads that versus.py measures, and the settings of llama.cpp that are worth trying for each."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.versus.comparison import Better
from benchmarks.versus.process import Server

GROUPS = ("prefill", "decode", "batch", "depth", "first-token", "load", "memory")
_NAME = re.compile(r"(pp|tg)(\d+)(?:x(\d+))?(?:@d(\d+))?")
_WORDS = ("sheep", "river", "seven", "green", "under", "table", "winter", "paper", "early", "music", "stone", "after")


class UnknownTestError(Exception):
    """A test was named that does not exist."""


@dataclass(frozen=True)
class Setting:
    """Settings of llama.cpp."""

    flash: str
    unified: bool  # one cache for all sequences, or one for each
    ubatch: int = 512  # most tokens that are computed at once

    @property
    def arguments(self) -> dict[str, Any]:
        return {"flash": self.flash, "unified": self.unified, "ubatch": self.ubatch}

    def __str__(self) -> str:
        return f"flash attention {self.flash}, {'shared' if self.unified else 'split'} cache, ubatch {self.ubatch}"


@dataclass(frozen=True)
class Figure:
    """One thing to measure of both engines."""

    do: str  # prompt, generate or first_token
    n: int  # tokens of each sequence
    sequences: int = 1
    depth: int = 0  # tokens of each sequence that are cached before

    @property
    def name(self) -> str:
        """Name as in llama-bench; x8 stands for 8 concurrent sequences."""
        if self.do == "first_token":
            return f"first token, {self.n} words"
        name = f"{'pp' if self.do == 'prompt' else 'tg'}{self.n}" + (f"x{self.sequences}" if self.sequences > 1 else "")
        return name + (f" @ d{self.depth}" if self.depth else "")

    @property
    def unit(self) -> str:
        return "s" if self.do == "first_token" else "tokens/s"

    @property
    def better(self) -> Better:
        return "less" if self.do == "first_token" else "more"

    @property
    def settings(self) -> list[Setting]:
        """Return the settings of llama.cpp worth trying: one sequence has nothing to share."""
        sizes = (512, 2048) if self.do == "prompt" and self.n > 512 else (512,)
        shared = (True, False)[: self.sequences]
        return [Setting(flash, unified, size) for unified in shared for size in sizes for flash in ("on", "off")]

    def ask(self, server: Server, setting: Setting | None, pause: float, turn: int = 0) -> dict[str, Any]:
        """Asks an engine to do it once, after a pause."""
        arguments: dict[str, Any] = {"n": self.n}
        if self.do == "generate":
            arguments["sequences"] = self.sequences
        if self.depth:
            arguments["depth"] = self.depth
        if self.do == "first_token":
            arguments = {"text": text(self.n, turn)}
        time.sleep(pause)
        return server.ask(self.do, **arguments, **(setting.arguments if setting else {}))

    def value(self, answer: dict[str, Any]) -> float:
        """Tokens per second, or seconds to the first token."""
        seconds = float(answer["seconds"])
        return seconds if self.do == "first_token" else self.n * self.sequences / seconds


def text(n: int, turn: int) -> str:
    """So many words, others in each turn from the first one on: nothing of it may be found in a cache."""
    words = [_WORDS[(i * i + 7 * i * (turn + 1) + turn) % len(_WORDS)] for i in range(n)]
    return f"{turn} " + " ".join(words)


def plan(
    tests: Sequence[str], prompts: Sequence[int], n_generate: int, batches: Sequence[int], depth: int, limit: int
) -> tuple[list[Figure], list[str]]:
    """Figures of the tests that are named, each once, and whether load and memory are among them.

    What does not fit the model's context is left out, but the depth is cut to fit.
    """
    figures: list[Figure] = []
    starts: list[str] = []
    for test in tests:
        if test == "prefill":
            figures += [Figure("prompt", n) for n in prompts]
        elif test == "decode":
            figures.append(Figure("generate", n_generate))
        elif test == "batch":
            figures += [Figure("generate", n_generate, size) for size in batches]
        elif test == "depth":
            n = max(n for n in prompts if n < limit)
            figures.append(Figure("prompt", n, 1, min(depth, limit - n)))
        elif test == "first-token":
            figures.append(Figure("first_token", min(512, limit // 8)))
        elif test in ("load", "memory"):
            starts.append(test)
        elif (found := _NAME.fullmatch(test.replace(" ", ""))) and int(found[2]) > 0:
            do = "prompt" if found[1] == "pp" else "generate"
            if do == "prompt" and found[3]:
                raise UnknownTestError(f"{test}: a prompt is measured for one sequence, as in pp512")
            figures.append(Figure(do, int(found[2]), int(found[3] or 1), int(found[4] or 0)))
        else:
            raise UnknownTestError(
                f"{test!r} is not a test; name some of {', '.join(GROUPS)}, or such as pp512, tg64, tg64x8, pp512@d4096"
            )
    fitting = [figure for figure in dict.fromkeys(figures) if figure.depth + figure.n <= limit]
    return fitting, list(dict.fromkeys(starts))
