"""A copy of the project's scripts with stand-ins for Python, pip and the compiler, which write down each call."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# What the scripts may use of the system: in Debian's essential packages, so on every machine.
TOOLS = ["sh", "env", "dirname", "readlink", "find", "cksum", "sort", "sed", "cat", "id", "tail", "rm", "mkdir"]
TOOLS += ["mktemp", "cp", "chmod", "flock", "sleep", "tr", "grep", "paste", "uname", "date"]

# Answers the questions of setup.sh as a good Python does, unless a variable says otherwise.
PYTHON = """\
#!/bin/sh
self=$(readlink -f "$0")
case "$*" in
    "-m venv --without-pip "*)
        echo venv >>"$CALLS"
        mkdir -p "$4/bin"
        cp "$self" "$4/bin/python"
        ;;
    "-m pip "*)
        echo "pip$(for word; do :; done; echo " ${word##*/}") in $PWD" >>"$CALLS"
        [ -z "${PIP_SAYS:-}" ] || echo "$PIP_SAYS"
        [ -z "${PIP_EDITS:-}" ] || echo edited >>"$PIP_EDITS"
        [ -z "${PIP_SLEEPS:-}" ] || sleep "$PIP_SLEEPS"
        case "$* ${FETCHING_FAILS:-}" in
            *"woolly-packages "?*)
                [ "$FETCHING_FAILS" = 1 ] || sleep "$FETCHING_FAILS"
                echo "no such package"
                exit 1
                ;;
        esac
        [ -z "${PIP_FAILS:-}" ] || { i=0; while [ $i -lt 100 ]; do i=$((i + 1)); echo "line $i"; done; exit 1; }
        for command in woolly pytest; do
            cat >"${self%/*}/$command" <<'END'
#!/bin/sh
echo "${0##*/}: $* in $PWD, path ${PYTHONPATH:-none}, environment ${VIRTUAL_ENV:-none}"
case "$*" in
    *--last-failed*) exit "${AGAIN_ENDS:-0}" ;;
    *) exit "${PYTEST_ENDS:-0}" ;;
esac
END
            chmod +x "${self%/*}/$command"
        done
        ;;
    *wanted.py) echo "${GPU_LACKS_KERNELS:-no}" ;;
    *"compile.py --missing")
        [ -z "${GPU_LACKS_KERNELS:-}" ] || echo "compile.py in $PWD" >>"$CALLS"
        [ -z "${COMPILING_SLEEPS:-}" ] || sleep "$COMPILING_SLEEPS"
        [ -z "${COMPILING_FAILS:-}" ]
        ;;
    *lastfailed*) echo "$N_FAILED" ;;
    *tomllib*)
        [ -z "${NEEDS:-}" ] || echo "$NEEDS"
        case "${NEEDS:+$*}" in *" test") echo "pytest>=8" ;; esac
        ;;
    *importlib.metadata*) echo "pytest>=8" ;;
    *_base_executable*) [ -z "${PYTHON_IS_OLD:-}" ] && echo "$self" ;;
    -V) echo "Python 3.9.1" ;;
    *"import pip"*) [ -x "$self" ] ;;
    *ensurepip*) [ -z "${NO_VENV:-}" ] ;;
    *Python.h*) [ -z "${NO_HEADERS:-}" ] ;;
    *) echo "unexpected: $*" >&2; exit 99 ;;
esac
"""


@dataclass
class FakeProject:
    root: Path
    bin: Path
    calls_file: Path

    def write(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def environment(self, **variables: str) -> dict[str, str]:
        return {"PATH": str(self.bin), "CALLS": str(self.calls_file), **variables}

    def start(self, script: str, *arguments: str, cwd: Path | None = None, **variables: str):
        return subprocess.run(
            [self.root / "scripts" / script, *arguments],
            env=self.environment(**variables),
            cwd=cwd or self.root.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def calls(self) -> list[str]:
        """The first word of each call since the last question."""
        calls = self.lines()
        self.calls_file.write_text("")
        return [call.split()[0] for call in calls]

    def lines(self) -> list[str]:
        return self.calls_file.read_text().splitlines()


def make_project(tmp_path: Path) -> FakeProject:
    root = tmp_path / "a folder with spaces"
    shutil.copytree(ROOT / "scripts", root / "scripts")
    (root / "native").mkdir()
    (root / "native" / "part one.cpp").write_text("int one;")
    (root / "pyproject.toml").write_text("[project]")
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool):
            (tools / tool).symlink_to(found)
    project = FakeProject(root, tools, tmp_path / "calls")
    project.calls_file.touch()
    project.write("python3", PYTHON)
    project.write("c++", "#!/bin/sh\nexit 0\n")
    return project
