"""One real server process for all tests of the session, and apps of this process over a tiny random model."""

import contextlib
import functools
import itertools
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import fastapi.dependencies.models
import httpx
import pytest
from fastapi.testclient import TestClient

from tests.cases.fork_server import Ready
from tests.cases.tiny import TINY, write_tiny
from woolly.sampling import Sampler
from woolly.serving import Settings, create_app
from woolly.store import pulled_names

WAIT = 120  # seconds that a busy machine may take for what takes a moment
_MAIN = "from woolly.cli import main; main()"
# A server whose answers take a fifth of a second for each token while there is a file `slow` in its folder.
SLOW_MAIN = """
import time
from pathlib import Path
from woolly.sampling import Sampler
plain = Sampler.next
Sampler.next = lambda *given: (Path("slow").exists() and time.sleep(0.2), plain(*given))[1]
from woolly.cli import main
main()
"""
_NUMBERS = itertools.count()


@dataclass
class Server:
    """A running `woolly serve`: `url`, and `client()` for httpx; both are closed by the fixture."""

    url: str
    process: subprocess.Popen
    model: Path
    log: Path

    @property
    def name(self) -> str:
        """The model's name."""
        return pulled_names(self.model.parent, self.model)[0]

    @property
    def address(self) -> tuple[str, int]:
        """For plain sockets."""
        return "127.0.0.1", int(self.url.rpartition(":")[2])

    @property
    def memory(self) -> int:
        """Bytes that the process keeps in memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))

    @contextlib.contextmanager
    def slowly(self):
        """Slows the answers of a server of `SLOW_MAIN` down, so that they are sure to be under way."""
        file = self.log.parent / "slow"
        file.touch()
        try:
            yield
        finally:
            file.unlink(missing_ok=True)

    def log_with(self, *texts: str) -> str:
        """The log, as soon as it has these: a request's line is written when its reply has been sent."""
        end = time.monotonic() + WAIT
        while not all(text in self.log.read_text() for text in texts) and time.monotonic() < end:
            time.sleep(0.01)
        return self.log.read_text()

    def client(self, **options) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=WAIT, **options)

    def async_client(self, **options) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=WAIT, **options)


def _port(process: subprocess.Popen, log: Path) -> int:
    """The port that the server has found free, as its log tells."""
    end = time.monotonic() + WAIT
    while (reported := re.search(r"listening.*http://[^\s\"]*:(\d+)\b", log.read_text())) is None:
        assert process.poll() is None and time.monotonic() < end, log.read_text()
        time.sleep(0.02)
    return int(reported[1])


@contextlib.contextmanager
def serving(model: Path, folder: Path, *flags: str, ctx: int = 2048, wait: bool = True, main: str = ""):
    """Starts `woolly serve` on a free port and waits until it is ready, unless told not to."""
    number = next(_NUMBERS)
    log = (folder / f"server-{number}.log").open("wb")
    command = [sys.executable, "-c", main or _MAIN, "serve", "-m", str(model), "--port", "0", *flags]
    # A session database of its own, so that no test sees another's; a seed, so that no answer depends on a draw.
    for flag, value in (("--ctx", ctx), ("--sessions-file", folder / f"sessions-{number}.db"), ("--seed", 20)):
        if flag not in flags:  # an option may be given once
            command += [flag, str(value)]
    process = Ready(command, stdout=log, stderr=log, cwd=folder)
    try:
        server = Server(f"http://127.0.0.1:{_port(process, Path(log.name))}", process, model, Path(log.name))
        end = time.monotonic() + WAIT
        while wait:
            assert process.poll() is None and time.monotonic() < end, Path(log.name).read_text()
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{server.url}/health", timeout=WAIT).status_code == 200:
                    break
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(WAIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


@pytest.fixture(scope="session")
def server(smollm2, tmp_path_factory):
    with serving(smollm2, tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_tiny(TINY["llama"], folder / "tiny.gguf")
    return folder


@pytest.fixture
def app_with(tiny_folder, tmp_path):
    """Makes an app of this process with settings of the test's own; `with app_with(...) as client:`."""

    return functools.partial(_app, tiny_folder, tmp_path)


def _app(models, folder, **settings):
    own = {"sessions_file": folder / "sessions.db", "usage_file": folder / "usage.db", "models_dir": models}
    own |= {"threads": 1, "strict_models": True}
    return TestClient(create_app(Settings(**{**own, **settings})))


class Brake:
    """A fifth of a second for each token of this process, until it is let go: an answer is sure to be under way."""

    def __init__(self, monkeypatch):
        self._is_off = threading.Event()
        plain = Sampler.next

        def slowly(*given):
            self._is_off.wait(0.2)
            return plain(*given)

        monkeypatch.setattr(Sampler, "next", slowly)

    def let_go(self):
        self._is_off.set()


@pytest.fixture
def brake(monkeypatch):
    brake = Brake(monkeypatch)
    yield brake
    brake.let_go()


@pytest.fixture(scope="module", autouse=True)
def _forgotten():
    """Lets go of the apps of a file: FastAPI remembers 4,096 functions of theirs, and with each all that an app has."""
    yield
    for found in vars(fastapi.dependencies.models).values():
        if hasattr(found, "cache_clear"):
            found.cache_clear()


@pytest.fixture(scope="module")
def client(tiny_folder, tmp_path_factory):
    """An app that the tests of a file share, as one takes 0.2 s; what needs one of its own has `app_with`."""
    with _app(tiny_folder, tmp_path_factory.mktemp("client")) as client:
        yield client
