"""`woolly transcribe`: transcribes audio files."""

from __future__ import annotations

from typing import Any

from woolly.cli.commands.pull import fetched
from woolly.cli.parse.command import command
from woolly.cli.parse.options import AS_JSON, ENGINE, SPEECH, complete_fetched
from woolly.cli.parse.parameter import Argument, Bundle, Option
from woolly.cli.parse.sampling import SAMPLING
from woolly.cli.parse.usage_errors import UsageError
from woolly.machine.blas import import_numpy

_SAMPLING = Bundle("sampling", tuple(one for one in SAMPLING.options if one.name in ("temperature", "seed")))


@command(
    Argument("model", "MODEL", "A Whisper or Parakeet model.", required=True, complete=complete_fetched),
    Argument("audio", "FILE...", "Audio files.", list, required=True),
    SPEECH,
    Option("--prompt -p", "Preceding text, for the spelling of names (Whisper models).", default=""),
    ENGINE,
    AS_JSON,
    Option("--verbose -v", "Print the times of each segment.", bool, default=False),
    _SAMPLING,
    common="language translate word_timestamps prompt temperature seed as_json verbose",
)
def transcribe(
    model: str,
    audio: tuple[str, ...],
    speech: dict[str, Any],
    prompt: str,
    engine: dict[str, Any],
    as_json: bool,
    verbose: bool,
    sampling: dict[str, Any],
) -> None:
    """Transcribe audio files, for instance: woolly transcribe whisper:base.en talk.mp3.

    Prints one line per segment; --json adds times.
    """
    import_numpy(engine.get("backend"))
    # Imported late, so that --help answers at once.
    from woolly.cli.terminal import transcript

    if not transcript.find_transcriber(model):
        raise UsageError(f"{model} is not a speech-to-text model; choose whisper:base or parakeet")
    transcript.check_transcript(audio, speech, {}, as_json=as_json)  # before downloading
    wanted = {"prompt": prompt, **speech}
    transcript.transcribe(fetched(model), wanted, audio, engine, sampling, as_json=as_json, verbose=verbose)
