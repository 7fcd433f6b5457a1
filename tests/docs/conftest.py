"""A machine as a reader of the docs has it: a home with the default model, a folder with a few files, one server."""

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.cases import fast_woolly
from tests.cases.texts import READERS
from tests.cases.tiny import TINY, write_tiny
from tests.docs.blocks import ROOT, Block
from woolly.quant import GGMLType

# Wide, for a machine that does much else; a hang ends here.
TIMEOUT = 600
_NUMBERS = itertools.count()
SERVE = "woolly serve -m smollm2\n"  # the one server that all examples over HTTP ask


@dataclass
class Desk:
    """Working folder and environment in which the blocks of one page run."""

    folder: Path
    home: Path
    url: str
    commands: Path | None = None  # what a shell finds before all others
    written: str | None = ""  # by the block before, where it could be run
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("WOOLLY_", "XDG_", "HF_"))}
        first = [str(self.commands)] if self.commands else []
        path = os.pathsep.join([*first, str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = {**keep, "HOME": str(self.home), "PATH": path}

    def here(self, text: str) -> str:
        """Replace ports in commands by the port of the test server."""
        address = self.url.removeprefix("http://")
        text = re.sub(r"(127\.0\.0\.1|localhost):8080", address, text)
        text = re.sub(r"^(woolly chat [\w.:-]+)(?= *(#|$))", r"\1 </dev/null", text, flags=re.M)  # a terminal's
        return re.sub(r"^woolly (ps|stop)\b", rf"woolly \1 --url {self.url}", text, flags=re.M)

    def shell(self, block: Block) -> None:
        """Runs it with sh, which stops at the first command that fails."""
        done = subprocess.run(
            ["sh", "-eu"],
            input=self.here(block.text),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        self.written = done.stdout + done.stderr
        assert (done.returncode != 0) == (block.mark == "fails"), f"ended with {done.returncode}: {self.written}"

    def serve(self, block: Block) -> None:
        """Starts a server, waits until it is ready and stops it; the one of all examples runs already."""
        command = re.sub(r" +#.*", "", block.text)
        if command != SERVE:
            with serving(command, self.folder, self.environment):
                pass


@contextlib.contextmanager
def serving(command: str, folder: Path, environment: dict[str, str]):
    """A server on a free port by a command of the docs; it must end with 0 when it is asked to."""
    log = folder / f"server-{next(_NUMBERS)}.log"
    with log.open("wb") as out:
        line = f"exec {command.rstrip()} --port 0"
        process = subprocess.Popen(["sh", "-c", line], cwd=folder, env=environment, stdout=out, stderr=out)
        try:
            yield _wait(process, log)
            process.terminate()
            assert process.wait(TIMEOUT) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen, log: Path) -> str:
    """The address of the server, when it is ready; its log tells the port that it has found free."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        if reported := re.search(r"listening.*http://[^\s\"]*:(\d+)\b", log.read_text()):
            url = f"http://127.0.0.1:{reported[1]}"
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=TIMEOUT):
                return url
        time.sleep(0.1)
    raise AssertionError(f"the server was not ready: {log.read_text()}")


@pytest.fixture(scope="session")
def model_home(smollm2, tmp_path_factory):
    """A home to copy: with the default model where `woolly pull` puts it."""
    home = tmp_path_factory.mktemp("home")
    models = home / ".cache" / "woolly" / "models"
    models.mkdir(parents=True)
    for file in smollm2.parent.glob(f"{smollm2.name}*"):
        shutil.copy2(file, models)
    return home


@pytest.fixture(scope="session")
def docs_server(model_home, tmp_path_factory):
    folder, home = tmp_path_factory.mktemp("serving"), tmp_path_factory.mktemp("models") / "home"
    shutil.copytree(model_home, home, copy_function=os.link)
    for name in ("embedder", "ranker"):  # of the pages that ask one server for vectors and ranks too
        write_tiny(READERS[name], home / ".cache" / "woolly" / "models" / f"{name}.gguf")
    desk = Desk(folder, home, "http://127.0.0.1:8080")  # this one by the command that is installed
    # An example that sets no limit is answered by as many words as the model likes: minutes on a busy machine.
    with serving(SERVE, folder, {**desk.environment, "WOOLLY_N_PREDICT": "24"}) as url:
        yield url


@pytest.fixture(scope="session")
def commands(tmp_path_factory):
    """A folder with a `woolly` that needs no time for imports: with them the blocks take twice the processor time."""
    with fast_woolly.opened(tmp_path_factory.mktemp("commands")) as folder:
        yield folder


@pytest.fixture
def desk(model_home, docs_server, commands, tmp_path, monkeypatch):
    """A folder with what the docs speak of: your-model.gguf (and model.gguf), model-F16.gguf, text.txt, docs.

    your-embedder.gguf and your-reranker.gguf are tiny random models.
    """
    home, folder = tmp_path / "home", tmp_path / "folder"
    shutil.copytree(model_home, home, copy_function=os.link)  # so that a page may remove its own
    folder.mkdir()
    model = next((home / ".cache" / "woolly" / "models").glob("*.gguf"))
    for name in ("your-model.gguf", "model.gguf"):
        os.link(model, folder / name)
    write_tiny(replace(TINY["llama"], type=GGMLType.F16, width=256, ffn=256), folder / "model-F16.gguf")
    write_tiny(READERS["embedder"], folder / "your-embedder.gguf")
    write_tiny(READERS["ranker"], folder / "your-reranker.gguf")
    shutil.copy(ROOT / "LICENSE", folder / "text.txt")
    shutil.copytree(ROOT / "docs" / "use", folder / "docs" / "use")
    desk = Desk(folder, home, docs_server, commands)
    monkeypatch.chdir(folder)
    for name in [name for name in os.environ if name not in desk.environment]:
        monkeypatch.delenv(name)
    for name, value in desk.environment.items():
        monkeypatch.setenv(name, value)
    return desk
