"""Speedup by speculation: the same answers with and without drafts, interleaved, and the ratio of their medians.

    python -m benchmarks.speculation smollm2 [--draft prompt_lookup|FILE] [--rounds 5] [--tokens 96]

`repeats` asks for a text that the prompt holds, `nothing` draws so freely that hardly a guess comes true. The prompts
of `fresh` differ from the first word on and are long beside their answers: a draft model reads each of them anew. A
ratio above 1 is a gain. The texts must be equal.
"""

from __future__ import annotations

import argparse
import statistics
import time

from woolly import LLM, SamplingParams

TEXT = (
    "def area(width, height):\n    if width < 0 or height < 0:\n        raise ValueError('negative')\n"
    "    return width * height\n\n\ndef volume(width, height, depth):\n    if depth < 0:\n"
    "        raise ValueError('negative')\n    return area(width, height) * depth\n"
)
SURE: dict[str, float] = {"temperature": 0.0}
FREE: dict[str, float] = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 7}
REPEAT = f"Repeat this code word by word, and nothing else:\n\n{TEXT}"
# Prompt, sampling, tokens of the answer as a part of those that are asked for, whether each prompt is a new one.
KINDS = {
    "repeats": (REPEAT, SURE, 1.0, False),
    "nothing": ("Write a list of words.", FREE, 1.0, False),
    "fresh repeats": (TEXT * 3 + REPEAT, SURE, 0.5, True),
    "fresh nothing": (TEXT * 4 + "\nWrite a list of words.", FREE, 0.25, True),
}


def main() -> None:
    """Prints one line per kind of prompt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--draft", default="prompt_lookup")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    given = parser.parse_args()
    with (
        LLM(given.model, ctx=2048, speculation=None) as plain,
        LLM(given.model, ctx=2048, speculation=given.draft) as fast,
    ):
        for kind, (prompt, sampling, part, is_fresh) in KINDS.items():
            params = SamplingParams(max_tokens=int(part * given.tokens), ignore_eos=True, **sampling)
            seconds: dict[bool, list[float]] = {False: [], True: []}
            drafted = accepted = 0
            for i in range(given.rounds + 1):
                texts = []
                for is_fast, llm in ((False, plain), (True, fast)):
                    begin = time.perf_counter()
                    answer = llm.chat(f"{i}. {prompt}" if is_fresh else prompt, params)
                    seconds[is_fast].append(time.perf_counter() - begin)
                    texts.append(answer.text)
                assert texts[0] == texts[1], "guesses changed the text"
                drafted += answer.n_drafted_tokens
                accepted += answer.n_accepted_tokens
            one, other = (statistics.median(seconds[is_fast][1:]) for is_fast in (False, True))  # the first warms up
            print(
                f"{kind:<13} {one / other:.2f} times as fast, {accepted} of {drafted} guesses right, texts equal",
                flush=True,
            )


if __name__ == "__main__":
    main()
