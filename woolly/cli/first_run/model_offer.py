"""Offer of a better model than the included one, and its download while the included model answers."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from woolly import store
from woolly.cli.first_run.state_file import read_state, save_state
from woolly.cli.terminal.progress import bytes_bar, print_status
from woolly.errors import StoreError, WoollyError
from woolly.store import DEFAULT_MODEL
from woolly.store.download import HUB, is_offline

if TYPE_CHECKING:
    from woolly.cli.first_run.recommendation import Recommendation

_PATIENCE = 2.0  # seconds to wait for the hub
_STAYS = ("s", "S", "n", "N", "q", "\x1b")


class Download:
    """Download of a model in a thread while another model answers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._done = self._total = 0
        self._path: Path | None = None
        self._error: BaseException | None = None
        if hasattr(signal, "SIGPIPE"):
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # raised if the server closes the connection
        # A daemon thread, so Ctrl-C ends the program. The next download resumes.
        self._thread = threading.Thread(target=self._fetch, name="woolly-download", daemon=True)
        self._thread.start()

    def wait(self) -> Path:
        """Wait with a progress bar until the file is complete. Return its path, or raise StoreError."""
        try:
            with bytes_bar(f"fetching {self.name}") as bar:
                while self._thread.is_alive():
                    if bar is not None and self._total:
                        bar(self._done, self._total)
                    self._thread.join(0.1)
        except KeyboardInterrupt:
            print_status(f"woolly: {self._done // 10**6} MB are kept, and `woolly pull {self.name}` goes on from there")
            raise
        if self._error is not None:
            raise self._error
        assert self._path is not None
        return self._path

    def _fetch(self) -> None:
        def report(done: int, total: int) -> None:
            self._done, self._total = done, total

        try:
            self._path = store.pull(self.name, progress=report)
        except WoollyError as error:
            self._error = error
        except Exception as error:  # otherwise the answer would wait for a thread that has ended
            self._error = StoreError(f"{self.name} cannot be fetched ({type(error).__name__}: {error})")


def offer() -> Download | None:
    """Ask the user at a terminal whether to download a better model, and start the download if so.

    Does not ask if a model was already chosen, if the hub does not answer within two seconds, or if no better model
    runs here.
    """
    start = read_state()
    if start.is_settled or not start.may_ask_the_hub or not _is_answered():
        return None
    from woolly.cli.first_run.recommendation import recommend  # only needed if no model is named

    found = _Reached.begin()
    better = recommend()
    if better is None or not better.is_fast:
        return None
    if not better.is_here and not found.within(_PATIENCE):
        save_state(unreached=int(time.time()))
        return None
    cost = "it is here" if better.is_here else f"{better.tag.gigabytes} to download ({better.minutes})"
    print_status(
        f"woolly: {DEFAULT_MODEL} is a toy of 98 MB. {better.name} answers far better: {cost}, licence"
        f" {better.tag.licence}, about {better.rate:.0f} tokens/s here."
    )
    if not _is_taken(better):
        save_state(model=DEFAULT_MODEL)
        return None
    save_state(model=better.name)
    if better.is_here:
        return None  # it is the default from now on
    print_status(f"woolly: fetching {better.name}; {DEFAULT_MODEL} answers meanwhile")
    return Download(better.name)


def hint() -> None:
    """Show a command for a better model than the included one, unless the user chose the included model."""
    if read_state().is_settled or not _is_shown():
        return
    from woolly.cli.first_run.recommendation import recommend

    better = recommend()
    if better is not None:
        print_status(f"woolly: {DEFAULT_MODEL} is a toy of 98 MB: {_advice(better)} answers better", dim=True)


def next_steps() -> None:
    """Show three next steps once, after the first answer at a terminal."""
    if read_state().has_answered or not _is_shown():
        return
    print_status(
        "\nwoolly chat           talk with the model\n"
        "woolly serve          a page at http://127.0.0.1:8080, and the APIs of OpenAI, Anthropic and Ollama\n"
        "woolly launch claude  a coding agent with a model of this machine",
        dim=True,
    )
    save_state(has_answered=True)


class _Reached:
    """Request to the hub in a thread, because resolving a host name may take longer than any timeout.

    HF_HUB_OFFLINE disables it.
    """

    def __init__(self) -> None:
        self.is_true = False
        self._thread = threading.Thread(target=self._ask, name="woolly-hub", daemon=True)

    @classmethod
    def begin(cls) -> _Reached:
        asked = cls()
        asked._thread.start()
        return asked

    def within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return self.is_true

    def _ask(self) -> None:
        if is_offline():
            return
        from urllib.error import HTTPError
        from urllib.request import Request, urlopen  # takes a twentieth of all imports; only needed on the first run

        endpoint = os.environ.get("HF_ENDPOINT") or HUB
        with contextlib.suppress(OSError, ValueError):
            request = Request(endpoint, headers={"User-Agent": "woolly"}, method="HEAD")
            try:
                urlopen(request, timeout=_PATIENCE).close()
            except HTTPError as refusal:  # the server answers, even if with an error
                refusal.close()
            self.is_true = True


def _is_taken(better: Recommendation) -> bool:
    """True if the user presses Enter. s keeps the current model."""
    action = f"use {better.name}" if better.is_here else "download"
    click.echo(f"Enter to {action}, s to stay with {DEFAULT_MODEL}: ", err=True, nl=False)
    while True:
        try:
            key = click.getchar()
        except EOFError:
            key = _STAYS[0]
        if key in ("\r", "\n", "y", "Y"):
            click.echo(better.name, err=True)
            return True
        if key in _STAYS:
            click.echo(DEFAULT_MODEL, err=True)
            return False


def _advice(better: Recommendation) -> str:
    if better.is_here:
        return f"woolly run {better.name}"
    return f"woolly pull {better.name} ({better.tag.gigabytes}, fits here, about {better.rate:.0f} tokens/s)"


def _is_answered() -> bool:
    """True if the user can be asked: input and messages use a terminal."""
    return sys.stdin is not None and sys.stdin.isatty() and _is_shown()


def _is_shown() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
