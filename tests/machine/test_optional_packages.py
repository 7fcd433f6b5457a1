"""The command that adds an optional package fits how this copy of Woolly was installed."""

import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

from woolly.machine import optional_packages

ROOT = Path(__file__).resolve().parents[2]
REQUIRES = [
    "numpy>=1.24",
    'mcp<3,>=2.3; extra == "mcp"',
    "pytest>=8; extra == 'test'",
    "mcp>=2; extra == 'test'",
    "pyarrow>=15 ; extra == 'parquet'",
]


@pytest.fixture
def prefix(tmp_path, monkeypatch):
    monkeypatch.setattr(metadata, "requires", lambda name: REQUIRES if name == "woolly-llm" else None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env" / "bin" / "python"))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("woolly.machine.optional_packages.util.find_spec", lambda name: object())
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "env" / "bin").mkdir(parents=True)
    return tmp_path / "env"


def test_extra_versions_match_the_metadata(prefix, monkeypatch):
    assert optional_packages.requirement("mcp") == "mcp<3,>=2.3"
    assert optional_packages.requirement("parquet") == "pyarrow>=15"
    assert optional_packages.requirement("ray") == "ray"

    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", absent)
    assert optional_packages.requirement("mcp") == "mcp"
    assert optional_packages.install_command("mcp").endswith("pip install mcp")


def test_every_user_extra_has_its_package():
    listed = re.findall(
        r"^(mcp|parquet|pdf|images|ray|audio|video) = \[\"(\w+)", (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert dict(listed) == optional_packages._PACKAGES


def test_clone_suggests_its_own_pip(prefix, monkeypatch):
    assert optional_packages.install_command("mcp") == f"{prefix}/bin/pip install 'mcp<3,>=2.3'"
    monkeypatch.chdir(prefix.parent)
    assert optional_packages.install_command("mcp") == "env/bin/pip install 'mcp<3,>=2.3'"


def test_activated_environment_suggests_pip(prefix, monkeypatch):
    pip = prefix / "bin" / "pip"
    pip.touch()
    pip.chmod(0o755)
    monkeypatch.setenv("PATH", str(prefix / "bin"))
    assert optional_packages.install_command("mcp") == "pip install 'mcp<3,>=2.3'"


def test_pipx_suggests_inject(prefix):
    (prefix / "pipx_metadata.json").touch()
    assert optional_packages.install_command("mcp") == "pipx inject woolly-llm 'mcp<3,>=2.3'"


def test_uv_tool_suggests_install_with(prefix):
    (prefix / "uv-receipt.toml").touch()
    assert optional_packages.install_command("mcp") == "uv tool install woolly-llm --with 'mcp<3,>=2.3'"


def test_environment_without_pip_suggests_uv(prefix, monkeypatch):
    monkeypatch.setattr("woolly.machine.optional_packages.util.find_spec", lambda name: None)
    assert optional_packages.install_command("mcp") == f"uv pip install --python {prefix}/bin/python 'mcp<3,>=2.3'"


def test_windows_quotes_differently(prefix, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    # From Python 3.12 on it asks Windows itself where to look.
    monkeypatch.setattr("woolly.machine.optional_packages.shutil.which", lambda name: None)
    assert optional_packages.install_command("mcp").endswith('install "mcp<3,>=2.3"')
