"""Install commands of optional packages, which depend on how Woolly was installed."""

from __future__ import annotations

import re
import shutil
import sys
from importlib import util
from pathlib import Path

# `woolly` on the package index is another program with a package and command of the same name, so install commands must
# not contain it.
DISTRIBUTION = "woolly-llm"

# Packages of the extras in pyproject.toml, for a source tree without metadata.
_PACKAGES = {
    "mcp": "mcp",
    "parquet": "pyarrow",
    "pdf": "pypdfium2",
    "images": "pillow",
    "ray": "ray",
    "audio": "soundfile",
    "video": "av",
}


def requirement(extra: str) -> str:
    """Return the package of an extra with its version range, such as mcp>=2.3,<3."""
    from importlib import metadata  # imported late: 30 modules, only for missing packages

    try:
        wanted = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        wanted = []
    package = _PACKAGES[extra]
    for line in wanted:
        needed, _, marker = (part.strip() for part in line.partition(";"))
        if re.search(rf"""extra\s*==\s*['"]{extra}['"]""", marker) and re.match(rf"{package}\b", needed):
            return re.sub(r"[\s()]", "", needed)
    return package


def install_command(extra: str) -> str:
    """Return the command that installs the package of an extra into the current environment."""
    quote = '"' if sys.platform == "win32" else "'"
    package = requirement(extra)
    wanted = f"{quote}{package}{quote}" if re.search(r"[<>=!~]", package) else package
    prefix = Path(sys.prefix)
    if (prefix / "pipx_metadata.json").is_file():
        return f"pipx inject {DISTRIBUTION} {wanted}"
    if (prefix / "uv-receipt.toml").is_file():
        return f"uv tool install {DISTRIBUTION} --with {wanted}"
    if util.find_spec("pip") is None:  # uv creates environments without pip
        return f"uv pip install --python {_shown(Path(sys.executable))} {wanted}"
    return f"{_pip(prefix)} install {wanted}"


def _pip(prefix: Path) -> str:
    """Return the pip command of this environment as a shell finds it: `pip` if it is on the path."""
    if sys.prefix == sys.base_prefix:
        return "pip"
    scripts = prefix / ("Scripts" if sys.platform == "win32" else "bin")
    first = shutil.which("pip")
    if first is not None and Path(first).parent == scripts:
        return "pip"
    return _shown(scripts / "pip")


def _shown(path: Path) -> str:
    """Return a path, relative to the working folder if it is inside."""
    here = Path.cwd()
    shown = str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
    return f'"{shown}"' if " " in shown else shown
