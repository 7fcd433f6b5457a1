"""Answer of a single prompt, printed while generated or as JSON, and the reason if it is cut."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from woolly.cli.parse.template_options import keywords_of
from woolly.cli.terminal.answer import EMPTY, Timing, is_template_missing, show_plain, stats_of
from woolly.cli.terminal.human_readable import plural
from woolly.cli.terminal.progress import print_status
from woolly.engine import Completion
from woolly.llm import LLM
from woolly.sampling import SamplingParams


@dataclass(frozen=True)
class OnePrompt:
    """Prompt, parameters and output format of an answer."""

    text: str
    params_of: Callable[[LLM | None], SamplingParams]
    engine: Mapping[str, Any]
    system: str | None
    raw: bool
    images: Sequence[str]
    audio: Sequence[str]
    as_json: bool
    verbose: bool
    template: Mapping[str, Any]  # options of the chat template and of reasoning

    def answer(self, path: str | Path) -> None:
        """Print the answer of a model."""
        with LLM(path, **self.engine) as llm:
            params = self.params_of(llm)
            stream = self._stream(llm, params)
            timing = Timing.begin()
            if self.as_json:
                for _ in stream:
                    timing.tick()
                done = stream.completion
                facts = {"text": done.text, "finish_reason": done.finish_reason}
                facts |= {"model": str(llm.path), "seed": done.seed, **timing.facts(done)}
                click.echo(json.dumps(facts, indent=2))
            else:
                show_plain(stream, timing)
            if not self.raw and is_template_missing(llm.template, stream.completion.text):
                print_status(f"woolly: {EMPTY}; --raw continues the text")
            if stream.completion.finish_reason == "length":
                self._report_cut(stream.completion, params, llm.ctx)
            if self.verbose:
                print_status(stats_of(timing.facts(stream.completion)))

    def _stream(self, llm: LLM, params: SamplingParams) -> Any:
        if self.raw:
            return llm.generate(self.text, params, stream=True)
        messages = [{"role": "system", "content": self.system}] if self.system is not None else []
        messages.append({"role": "user", "content": self.text})
        images, audio = self.images or None, self.audio or None
        more = keywords_of(dict(self.template), llm)
        return llm.chat(messages, params, stream=True, split_reasoning=False, images=images, audio=audio, **more)

    def _report_cut(self, completion: Completion, params: SamplingParams, ctx: int) -> None:
        if params.max_tokens is None or len(completion.token_ids) < params.max_tokens:
            print_status(f"woolly: the answer is cut: the context of {ctx} tokens is full; --ctx asks for more")
        # Structured output is read by programs, and an incomplete answer does not have the structure.
        elif self.verbose or params.structure is not None or (sys.stderr is not None and sys.stderr.isatty()):
            print_status(f"woolly: the answer is cut after {plural(params.max_tokens, 'token')}; -n asks for more")
