"""A model of 3 MB in a wheel on the disk, and pips that fetch it: the tests of the store need no network."""

import hashlib
import os
import random
import textwrap
import zipfile
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest

from woolly.store import WheelModel, wheel_models

CONTENT = random.Random(1).randbytes(3_000_000)


@dataclass(frozen=True)
class Shop:
    model: WheelModel
    wheel: Path
    models: Path  # the folder that models are pulled into
    pip_log: Path  # one line per call of the fake pip: its process id

    @property
    def target(self) -> Path:
        return self.models / self.model.file_name

    def visible(self) -> set[str]:
        """Files in the models folder, without the permanent lock."""
        return {path.name for path in self.models.iterdir() if not path.name.endswith(".lock")}

    def n_downloads(self) -> int:
        return len(self.pip_log.read_text().splitlines()) if self.pip_log.exists() else 0


def write_wheel(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:
        for name, data in members.items():
            wheel.writestr(name, data)
        wheel.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "")


@pytest.fixture
def shop(tmp_path, monkeypatch) -> Shop:
    """A catalogue with the one model `tiny`, served by the real pip out of a local folder."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "tiny_model-1.0-py3-none-any.whl"
    write_wheel(wheel, {"tiny_model/tiny.gguf": CONTENT})
    model = WheelModel(
        name="tiny",
        aliases=("tiny-model",),
        title="a tiny model",
        licence="Apache-2.0",
        file_name="tiny.gguf",
        n_bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        requirement="tiny-model==1.0",
        member="tiny_model/tiny.gguf",
        n_bytes_wheel=wheel.stat().st_size,
    )
    monkeypatch.setattr(wheel_models, "WHEEL_MODELS", MappingProxyType({"tiny": model}))
    monkeypatch.setattr("woolly.store.names.all_families", dict)
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return Shop(model, wheel, tmp_path / "home" / "models", tmp_path / "pip.log")


@pytest.fixture
def fake_pip(shop, tmp_path, monkeypatch):
    """Put a fake pip in front of the real one; the function given back takes the Python that it runs.

    Its default downloads as pip does: the wheel grows in TMPDIR and is then copied to the destination.
    """
    package = tmp_path / "fake" / "pip"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    prologue = f"""
        import os, pathlib, shutil, sys, tempfile, time
        WHEEL = pathlib.Path({str(shop.wheel)!r})
        DEST = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
        with open({str(shop.pip_log)!r}, "a") as log:
            log.write(f"{{os.getpid()}}\\n")

        def download(seconds, then={{}}):  # `then` has what is called after a part, by its number
            data = WHEEL.read_bytes()
            copy = pathlib.Path(tempfile.mkdtemp(), WHEEL.name)
            with copy.open("wb") as file:
                for part, start in enumerate(range(0, len(data), len(data) // 10)):
                    file.write(data[start : start + len(data) // 10])
                    file.flush()
                    time.sleep(seconds / 10)
                    then.get(part, int)()
            DEST.mkdir()
            shutil.copy(copy, DEST)
            shutil.rmtree(copy.parent)
    """

    def behave(action: str = "download(seconds=0)") -> None:
        (package / "__main__.py").write_text(textwrap.dedent(prologue) + action)

    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    behave()
    return behave
