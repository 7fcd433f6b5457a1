"""Metal's text of the archive, compiled by the host's C++ compiler and run as kernels of native/cuda/emulated.

It proves the text, its barriers and its memory, not Apple's compiler.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.runtime.cuda import emulated
from woolly.errors import DeviceError
from woolly.runtime.vulkan.kernel_archive import open_archive

SHIM = Path(__file__).parents[3] / "native" / "gpu" / "emulated"
FLAGS = (*emulated.FLAGS, "-fsigned-char", "-fsingle-precision-constant")
_PLACES = {
    "thread_position_in_threadgroup": "in_group()",
    "threadgroup_position_in_grid": "group()",
    "thread_position_in_grid": "in_grid()",
    "buffer(0)": "&pushed",
}


def texts() -> dict[str, str]:
    """The text of every kernel, by name."""
    try:
        archive = open_archive()
    except DeviceError as error:
        pytest.skip(str(error))
    return {name: archive.kernel("metal", name).decode() for name in archive.names("metal")}


def as_cpp(name: str, text: str) -> str:
    """A kernel in a namespace of its own, and its entry into the table of the emulated GPU."""
    head = re.search(r"\[\[kernel, [^]]*\]\] void main_0\((.*)\)\n", text)
    assert head, name
    places = re.findall(r"\[\[(.*?)\]\]", head[1])
    body = text.partition("using namespace metal;\n")[2]
    body = re.sub(r"^( +)threadgroup (?=\w)", r"\1static ", body, flags=re.M)
    body = re.sub(r"\s*\[\[.*?\]\]", "", body)
    given = ", ".join(_PLACES[place] for place in places)
    call = f"Args_0 pushed; std::memcpy(&pushed, *args, sizeof(pushed)); main_0({given});"
    return (
        f"namespace metal::kernel_{name} {{\n{body}\n"
        f"static void call(void** args) {{ {call} }}\n"
        f'static const ::emulated::Entered entered("{name}", "l", call);\n}}\n'
    )


def build(names: Iterable[str]) -> ctypes.CDLL:
    """The emulated GPU with these kernels of Metal, made once for each content."""
    if sys.platform != "linux":
        pytest.skip("the emulated GPU runs on Linux")
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    known = texts()
    source = '#include "metal.h"\n' + "".join(as_cpp(name, known[name]) for name in sorted(names))
    folder = Path(tempfile.gettempdir()) / f"woolly-emulated-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    parts = [path.read_bytes() for path in (SHIM / "metal.h", *sorted((emulated.SOURCES / "emulated").iterdir()))]
    library = folder / f"{emulated._checksum(compiler, *FLAGS, source, *parts)}.so"
    if not library.exists():  # asked without the lock, which another process may hold for a minute
        with emulated._alone(folder):
            _compile(compiler, source, library)
    return emulated.load(library)


def _compile(compiler: str, source: str, library: Path) -> None:
    """Makes the library unless another process has made it meanwhile."""
    if library.exists():
        return
    own = [emulated.SOURCES / "emulated" / name for name in ("device.cpp", "memory.cpp")]
    objects = [emulated._compiled(compiler, path, library.parent, ["-DWOOLLY_EMULATED=1"]) for path in own]
    written = library.with_suffix(f".{os.getpid()}.cpp")
    written.write_text(source)
    words = [*shlex.split(compiler), *FLAGS, "-O1", "-DWOOLLY_EMULATED=1", f"-I{SHIM}", f"-I{emulated.SOURCES}"]
    emulated._make(library, [*words, "-shared", str(written), *map(str, objects)])
    written.unlink()
