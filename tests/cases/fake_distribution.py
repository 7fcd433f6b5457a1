"""An installed package with an entry point: a folder on the path with a module and the metadata of a distribution."""

from __future__ import annotations

from pathlib import Path


def install(folder: Path, monkeypatch, group: str, entry: str, module: str, source: str) -> None:
    """Installs a distribution for this test, whose only module has this source. `entry` is NAME = VALUE."""
    (folder / f"{module}.py").write_text(source)
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")
    monkeypatch.syspath_prepend(str(folder))
