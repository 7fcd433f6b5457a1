"""Transcripts of speech-to-text models: output of `woolly transcribe` and `woolly run MODEL --audio FILE`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.progress import print_status, visible
from woolly.errors import StoreError

_HONOURED = ("temperature", "seed")


def find_transcriber(name: str | None) -> bool:
    """True if the name is a speech recognition model, on this machine or in the catalogue.

    Raises GGUFError for an unreadable model file.
    """
    from woolly.gguf import open_gguf
    from woolly.models import transcribes
    from woolly.store import resolve

    if name is None:
        return False
    try:
        path = resolve(name)
    except (StoreError, OSError):  # a prompt, or a model that is not downloaded
        with contextlib.suppress(StoreError):
            return is_named_transcriber(name)
        return False
    with open_gguf(path) as file:
        return transcribes(file.metadata.get("general.architecture"))


def is_named_transcriber(name: str) -> bool:
    """True if the catalogue has a speech recognition model with this name. StoreError for an unknown tag."""
    from woolly.models import transcribes
    from woolly.store import find_in_catalogue, is_path

    named = None if is_path(name) else find_in_catalogue(name)
    return named is not None and transcribes(named.architecture)


def check_transcript(
    files: Sequence[str], speech: Mapping[str, Any], options: Mapping[str, Any], *, as_json: bool
) -> None:
    """Raise UsageError if there is no audio file, or for an option that transcription does not support."""
    if "word_timestamps" in speech and not as_json:
        raise UsageError("--word-timestamps needs --json")
    for option, value in options.items():
        if value and option not in _HONOURED:
            raise UsageError(f"--{option.replace('_', '-')} is not supported by speech-to-text models; omit it")
    if not files:
        raise UsageError("speech-to-text models need an audio file; add --audio FILE")


def not_for_speech(speech: Mapping[str, Any]) -> UsageError:
    """Return the error for speech recognition options with another kind of model."""
    first = next(name for name in ("translate", "word_timestamps", "language") if name in speech)
    advice = "choose whisper:base or parakeet" if first == "word_timestamps" else "say it in the prompt"
    return UsageError(f"--{first.replace('_', '-')} is for speech-to-text models; {advice}")


def transcribe(
    path: str | Path,
    wanted: Mapping[str, Any],
    files: Sequence[str],
    engine: Mapping[str, Any],
    sampling: Mapping[str, Any],
    *,
    as_json: bool,
    verbose: bool,
) -> None:
    """Print the transcript of each audio file by segments. `wanted` has options of `LLM.transcribe`."""
    from woolly.llm import LLM

    options = {**wanted, **{option: sampling[option] for option in _HONOURED if option in sampling}}
    with LLM(path, **engine) as llm:
        for file in files:
            if as_json:
                made = llm.transcribe(file, **options)
                facts = {"text": made.text, "language": made.language, "seconds": made.seconds}
                segments = [asdict(segment) for segment in made.segments]
                click.echo(json.dumps({**facts, "segments": segments, "model": str(llm.path)}, indent=2))
                continue
            for segment in llm.transcribe(file, stream=True, **options):
                text = segment.text.strip()
                click.echo(visible(text) if sys.stdout.isatty() else text)
                if verbose:
                    print_status(f"woolly: {segment.start:.2f} to {segment.end:.2f} s")
