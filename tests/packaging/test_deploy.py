"""Ways to install: the installer with stand-ins for what it calls, and what the files of deploy/ say."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
TOOLS = ["sh", "mkdir", "rm", "cat", "chmod", "cp"]

UV = """#!/bin/sh
echo "${0##*/} $*" >>"$CALLS"
case "$*" in
    "tool dir --bin") echo "$HOME/.local/bin" ;;
esac
"""
# Makes an environment whose pip installs the stand-in for uv.
PYTHON = """#!/bin/sh
echo "python $*" >>"$CALLS"
case "$*" in
    *"import sys"*) [ -z "${OLD_PYTHON:-}" ] ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    *" install "*) [ -z "${NO_INDEX:-}" ] && cp "$UV" "${0%/*}/uv" ;;
esac
"""


@pytest.fixture
def machine(tmp_path):
    """Starts the installer on a machine that has some programs; returns its result and the calls that it made."""
    tools, spare = tmp_path / "bin", tmp_path / "uv"
    tools.mkdir()
    for tool in TOOLS:
        (tools / tool).symlink_to(shutil.which(tool))
    spare.write_text(UV)
    spare.chmod(0o755)
    calls = tmp_path / "calls"

    def start(*arguments, programs=(), **variables):
        calls.write_text("")
        for name in programs:
            (tools / name).write_text(PYTHON if name.startswith("python") else UV)
            (tools / name).chmod(0o755)
        environment = {"PATH": str(tools), "HOME": str(tmp_path), "CALLS": str(calls), "UV": str(spare), **variables}
        command = [tools / "sh", DEPLOY / "install.sh", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.stdout == ""
        return done, calls.read_text().splitlines()

    return start


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ((), "woolly-llm"),
        (("0.1.0",), "woolly-llm==0.1.0"),
        (("dist/a-1-py3-none-any.whl",), "dist/a-1-py3-none-any.whl"),
    ],
)
def test_installed_uv_installs_the_requested_package(machine, arguments, wanted):
    done, calls = machine(*arguments, programs=["uv", "pipx"])
    assert done.returncode == 0
    assert calls == [f"uv tool install --force {wanted}", "uv tool dir --bin"]
    assert "is not on the path" in done.stderr
    assert done.stderr.splitlines()[-1].endswith('"uv tool uninstall woolly-llm" removes it')


def test_folder_on_the_path_needs_no_message(machine, tmp_path):
    done, _ = machine(programs=["uv"], PATH=f"{tmp_path}/bin:{tmp_path}/.local/bin")
    assert "is not on the path" not in done.stderr


def test_pipx_replaces_uv(machine):
    done, calls = machine(programs=["pipx"])
    assert (done.returncode, calls) == (0, ["pipx install --force woolly-llm"])


def test_python_alone_gets_uv_by_pip_once(machine, tmp_path):
    done, calls = machine(programs=["python3.12"])
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in calls] == ["python", "python", "python", "uv", "uv"]
    place = tmp_path / ".local/share/woolly/uv"
    assert calls[1] == f"python -m venv {place}"
    assert calls[2].endswith("install --quiet --only-binary :all: uv")
    _, calls = machine(programs=["python3.12"])
    assert [line.split()[0] for line in calls] == ["uv", "uv", "uv"]


@pytest.mark.parametrize(
    ("arguments", "variables", "sentence"),
    [
        ((), {"OLD_PYTHON": "1"}, "neither uv, nor pipx, nor Python 3.10 or newer is here"),
        ((), {"NO_INDEX": "1"}, "pip could not install uv"),
        (("latest",), {}, "latest is neither a version nor a wheel"),
    ],
)
def test_impossible_installation_gives_a_one_line_error(machine, arguments, variables, sentence):
    done, calls = machine(*arguments, programs=["python3"], **variables)
    assert done.returncode == 1
    assert sentence in done.stderr.splitlines()[-1]
    assert not any(line.startswith("uv") for line in calls)


def test_installers_take_the_same_steps_on_either_system():
    texts = [(DEPLOY / name).read_text() for name in ("install.sh", "install.ps1")]
    for text in texts:
        for said in ("neither uv, nor pipx", "installing uv into", "neither a version nor a wheel", "not on the path"):
            assert said in text
        for option in ("tool", "install", "--force", "--only-binary", ":all:", "dir", "--bin"):
            assert option in text
        assert not re.search(r"\b(curl|wget|irm|Invoke-WebRequest|Invoke-RestMethod)\b", text)  # nothing unchecked


def test_shellcheck_finds_nothing():
    program = shutil.which("shellcheck")
    if program is None:
        pytest.skip("no shellcheck here")
    done = subprocess.run([program, DEPLOY / "install.sh"], capture_output=True, text=True)
    assert done.stdout == ""


def test_no_file_installs_the_unrelated_pypi_package():
    for path in [p for p in DEPLOY.rglob("*") if p.is_file()] + sorted((ROOT / ".github" / "workflows").iterdir()):
        for line in path.read_text().splitlines():
            if re.search(r"(pip|pipx|uv tool|uvx) .*\binstall\b|uvx --from", line):
                assert not re.search(r"(?<![\w/.-])['\"]?woolly(?![\w-])['\"]?(?:\s|$|\))", line), (
                    f"{path.name}: {line}"
                )


def section(path, name="Service"):
    """The settings of a section of a unit, the last of each name."""
    text = (DEPLOY / path).read_text().partition(f"\n[{name}]\n")[2].partition("\n[")[0]
    return dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))


def test_systemd_unit_hides_devices_and_the_drop_in_shows_gpus():
    assert section("woolly.service")["PrivateDevices"] == "yes"
    shown = section("woolly-gpu.conf")
    assert (shown["PrivateDevices"], shown["DevicePolicy"]) == ("no", "closed")
    allowed = re.findall(r"^DeviceAllow=(\S+) rw$", (DEPLOY / "woolly-gpu.conf").read_text(), re.MULTILINE)
    assert allowed == ["char-nvidia*", "char-drm"]
    assert "woolly-gpu.conf" in (DEPLOY / "woolly.service").read_text()


def test_systemd_unit_names_no_file_missing_from_the_wheel():
    assert "Documentation" not in section("woolly.service", "Unit")


def test_systemd_accepts_the_unit_with_its_drop_in(tmp_path):
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd here")
    # systemd wants the program to be there.
    text = (DEPLOY / "woolly.service").read_text().replace("/opt/woolly/venv/bin/woolly", shutil.which("sh"))
    (tmp_path / "woolly.service").write_text(text)
    (tmp_path / "woolly.service.d").mkdir()
    shutil.copy(DEPLOY / "woolly-gpu.conf", tmp_path / "woolly.service.d" / "gpu.conf")
    done = subprocess.run(
        [program, "verify", "--man=no", tmp_path / "woolly.service"], capture_output=True, text=True, timeout=60
    )
    assert not [line for line in done.stderr.splitlines() if "woolly" in line or "gpu.conf" in line]


def test_formula_is_filled_in_by_the_release():
    formula = (DEPLOY / "homebrew" / "woolly-llm.rb").read_text()
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    names = re.findall(r"@\w+@", formula)
    assert sorted(set(names)) == ["@SHA256@", "@VERSION@"]
    for name in set(names):
        assert f"s/{name}/" in release
    assert len([line for line in formula.splitlines() if line.count("@VERSION@") > 1]) == 0  # sed replaces one per line


def test_image_takes_a_wheel_or_a_version_and_compiles_nothing():
    text = (DEPLOY / "Containerfile").read_text()
    assert {"ARG WHEELS=.", "ARG VERSION="} <= set(text.splitlines())
    assert "g++" not in text
    assert "NVIDIA_DRIVER_CAPABILITIES=compute" in text
    build = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert "-f deploy/Containerfile --build-arg WHEELS=dist" in build


def test_compose_file_matches_the_image():
    (service,) = yaml.safe_load((DEPLOY / "compose.yml").read_text())["services"].values()
    image = (DEPLOY / "Containerfile").read_text()
    assert (DEPLOY / service["build"]["dockerfile"]).is_file()
    assert all(f"ARG {name}=" in image for name in service["build"]["args"])
    (port,) = re.findall(r"EXPOSE (\d+)", image)
    assert service["ports"] == [f"127.0.0.1:${{PORT:-8080}}:{port}"]
    folders = {volume.split(":")[-2 if volume.endswith(":ro") else -1] for volume in service["volumes"]}
    (home,) = re.findall(r"WOOLLY_HOME=(\S+)", image)
    assert folders == {"/models", home}
    options = [word for word in service["command"] if word.startswith("-")]
    flags = (DEPLOY.parent / "docs" / "reference" / "settings.md").read_text()
    assert all(f"`{option}`" in flags for option in options)
