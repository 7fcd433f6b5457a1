"""Commands run within the test's own process: quick, and errors come as exceptions. Terminal runs one on a pty."""

import codecs
import os
import pty
import re
import select
import sys
import time

from click.testing import CliRunner

from tests.cases.fork_server import Ready
from woolly.cli.app import app
from woolly.errors import WoollyError


def woolly(*arguments, stdin=""):
    """Standard output of a command that succeeds; an error of the user's input is raised."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    if isinstance(result.exception, WoollyError):
        raise result.exception
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


class Terminal:
    """A command on a terminal of its own, with keys to press and a screen to read. Use it in `with`."""

    def __init__(self, *arguments, home, **environment):
        self._ours, theirs = pty.openpty()
        # The first terminal that the leader of a session opens is the one that its Ctrl-C comes from.
        # A shell that starts the tests in the background has them ignore Ctrl-C, and so would the child.
        own = "import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler); os.setsid()"
        own += "; tty = os.open(os.environ['TTY'], os.O_RDWR); [os.dup2(tty, i) for i in range(3)]"
        command = [sys.executable, "-c", f"{own}; from woolly.cli import main; main()", *map(str, arguments)]
        given = {"WOOLLY_HOME": str(home), "TERM": "xterm", "COLUMNS": "80", "LINES": "24", "TTY": os.ttyname(theirs)}
        # This terminal does not answer when it is asked for the cursor's position.
        given |= {"PROMPT_TOOLKIT_NO_CPR": "1", **environment}
        self._child = Ready(command, env={**os.environ, **given})
        self._theirs = theirs
        self._screen = self._half = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._child.kill()
        self._child.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def press(self, keys):
        os.write(self._ours, keys.encode())

    def until(self, expected, again=""):
        """Wait for a text, and give what came before it; `again` is pressed while it does not come."""
        start = time.monotonic()
        while expected not in self._screen:
            assert time.monotonic() - start < 60, self._screen
            if not self._look(2):
                self.press(again)
        before, _, self._screen = self._screen.partition(expected)
        return before

    def rest(self):
        """Wait for the end of the command and return the rest of its output."""
        start = time.monotonic()
        while self._child.poll() is None or select.select([self._ours], [], [], 0.2)[0]:
            assert time.monotonic() - start < 60, self._screen
            self._look(0.2)
        return self._screen

    def _look(self, seconds):
        """Read new output; True if there was any."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        seen = self._half + self._decoder.decode(os.read(self._ours, 4096))
        # What is read may end in the middle of a command to the terminal.
        whole, self._half = re.fullmatch(r"(.*?)(\x1b(?:\[[0-9;?]*)?)?", seen, re.S).groups("")
        self._screen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x08", "", whole)
        return True

    def ended(self):
        """The exit code; waits for it."""
        return self._child.wait(timeout=60)
