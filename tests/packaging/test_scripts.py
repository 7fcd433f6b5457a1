"""The set-up of scripts/run and scripts/test, on a copy of the project with stand-ins for Python, pip and the compiler.

The stand-ins write down each call, so that a test can tell what was done and what was not.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest

from tests.cases.fake_project import PYTHON, make_project

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path):
    return make_project(tmp_path)


def test_readme_scripts_can_be_started():
    for script in ("scripts/run", "scripts/test", ".ci/run"):
        assert os.access(ROOT / script, os.X_OK), script


def test_first_start_creates_the_environment_and_prints_only_the_answer_on_stdout(project):
    result = project.start("run", "Why is  the sky blue?", "--seed", "1")
    assert result.returncode == 0, result.stderr
    assert result.stdout == (
        f"woolly: run Why is  the sky blue? --seed 1 in {project.root.parent}, path none, environment none\n"
    )
    assert result.stderr.splitlines() == [
        "woolly: creating a virtual environment in .venv",
        "woolly: installing Woolly and compiling its native module for this machine",
    ]
    assert project.lines() == ["venv", f"pip . in {project.root}"]


def test_long_build_reports_progress_and_expected_time(project):
    setup = project.root / "scripts" / "setup.sh"
    setup.write_text(setup.read_text().replace("every=10", "every=1"))
    result = project.start("run", PIP_SAYS="  [5/20] Building CXX object one.o", PIP_SLEEPS="3")
    assert re.search(r"^woolly: compiling: 5 of 20 files, about \d+ s left$", result.stderr, re.MULTILINE)
    result = project.start("test", "tests", PIP_SLEEPS="3", PIP_SAYS="Collecting numpy>=1.24 (from woolly-llm==0.1.0)")
    assert re.search(r"^woolly: working for [1-3] s: downloading numpy$", result.stderr, re.MULTILINE)


def test_packages_are_fetched_while_woolly_is_compiled(project):
    result = project.start("run", NEEDS="numpy>=1", PIP_SLEEPS="0.2")
    assert result.returncode == 0, result.stderr
    assert sorted(project.lines()) == [f"pip . in {project.root}", f"pip woolly-packages in {project.root}", "venv"]
    assert (project.root / ".venv" / "woolly-packages").read_text() == "numpy>=1\n"


def test_test_packages_are_fetched_while_woolly_is_compiled(project):
    result = project.start("test", "tests", NEEDS="numpy>=1")
    assert result.returncode == 0, result.stderr
    assert (project.root / ".venv" / "woolly-packages").read_text() == "numpy>=1\npytest>=8\n"


def test_failed_package_downloads_are_reported_after_compilation(project):
    result = project.start("run", NEEDS="numpy>=1", FETCHING_FAILS="1", PIP_SAYS="compiled")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-2:] == ["no such package", "woolly: error: the installation failed: see above"]
    project.calls()
    assert project.start("run", NEEDS="numpy>=1").returncode == 0
    assert project.calls() == ["pip", "pip"]


def test_compiler_output_does_not_wait_for_packages(project):
    began = time.monotonic()
    result = project.start("run", NEEDS="numpy>=1", FETCHING_FAILS="60", PIP_FAILS="1")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-2:] == ["line 100", "woolly: error: the installation failed: see above"]
    assert time.monotonic() - began < 50


def test_second_start_installs_and_prints_nothing(project):
    project.start("run")
    project.calls()
    result = project.start("run", "again")
    assert (result.returncode, result.stderr, project.calls()) == (0, "", [])


def test_pycache_of_a_script_is_not_a_change(project):
    project.start("run")
    project.calls()
    kept = project.root / "native" / "cuda" / "__pycache__" / "compile.pyc"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"bytecode")
    assert (project.start("run").stderr, project.calls()) == ("", [])


def test_kernels_are_built_for_a_gpu_added_later_and_on_request(project):
    project.start("run")
    project.write("nvidia-smi", "#!/bin/sh\n")
    project.calls()
    for wanted in ({}, {"WOOLLY_LEVELS": "all"}, {"WOOLLY_CUDA_TARGETS": "all"}, {}):
        for calls in (["pip"], []):
            assert project.start("run", **wanted).returncode == 0
            assert project.calls() == calls


def test_settings_for_another_python_do_not_leak_in(project):
    leaks = {"PYTHONPATH": "/elsewhere", "PYTHONHOME": "/elsewhere", "VIRTUAL_ENV": "/elsewhere"}
    result = project.start("run", **leaks)
    assert result.stdout.endswith("path none, environment none\n")


@pytest.mark.parametrize("file", ["pyproject.toml", "native/part one.cpp", "native/other.h"])
def test_changed_sources_are_installed_into_the_same_environment(project, file):
    project.start("run")
    project.calls()
    (project.root / file).write_text("changed")
    assert project.start("run").returncode == 0
    assert project.calls() == ["pip"]
    project.start("run")
    assert project.calls() == []


def test_pip_copy_in_place_of_the_sources_is_replaced(project):
    project.start("run")
    project.calls()
    copied = project.root / ".venv" / "lib" / "python3.11" / "site-packages" / "woolly" / "__init__.py"
    copied.parent.mkdir(parents=True)
    copied.touch()
    assert project.start("run").returncode == 0
    assert project.calls() == ["pip"]
    copied.unlink()
    project.start("run")
    assert project.calls() == []


def test_run_and_test_share_one_build(project):
    project.start("run")
    project.calls()
    result = project.start("test", "tests/gguf", "-k", "one thing")
    assert result.stdout.startswith(f"pytest: tests/gguf -k one thing in {project.root},")
    assert project.lines() == [f"pip woolly-test-packages in {project.root}"]
    assert (project.root / ".venv" / "woolly-test-packages").read_text() == "pytest>=8\n"
    project.calls()
    for script in ("run", "test"):
        project.start(script, "tests")
        assert project.calls() == []
    (project.root / "pyproject.toml").write_text("changed")
    project.start("run")
    assert project.lines() == [f"pip . in {project.root}", f"pip woolly-test-packages in {project.root}"]


def test_file_edited_during_the_build_is_built_at_the_next_start(project):
    project.start("run", PIP_EDITS=str(project.root / "native" / "part one.cpp"))
    project.calls()
    project.start("run")
    assert project.calls() == ["pip"]


@pytest.mark.parametrize("damage", ["no command", "no python", "python of another version", "killed"])
def test_broken_environment_is_repaired(project, damage):
    project.start("run")
    project.calls()
    python = project.root / ".venv" / "bin" / "python"
    if damage == "no command":
        (python.parent / "woolly").unlink()
    elif damage == "no python":
        python.unlink()
    elif damage == "python of another version":
        python.rename(project.bin / "python3.99")
        python.symlink_to(project.bin / "python3.99")
    else:
        (project.root / ".venv" / "woolly-unfinished").touch()
    result = project.start("run", "hello")
    assert result.stdout.startswith("woolly: run hello"), result.stderr
    assert project.calls() == (["pip"] if damage == "no command" else ["venv", "pip"])


def test_start_inside_the_broken_environment_repairs_it(project):
    project.start("run")
    project.calls()
    inside = project.root / ".venv" / "bin"
    for name in ("python", "python3"):
        (inside / name).unlink(missing_ok=True)
        (inside / name).write_text("#!/bin/sh\nexit 1\n")
        (inside / name).chmod(0o755)
    (inside.parent / "woolly-unfinished").touch()
    result = project.start("run", PATH=f"{inside}:{project.bin}", VIRTUAL_ENV=str(inside.parent))
    assert result.returncode == 0, result.stderr
    assert project.calls() == ["venv", "pip"]


def test_user_environment_is_kept(project):
    (project.root / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(project.bin / "python3", project.root / ".venv" / "bin" / "python")
    project.start("run")
    assert project.calls() == ["pip"]


def test_moved_project_gets_its_own_environment(project):
    project.start("run")
    project.calls()
    project.root = project.root.rename(project.root.parent / "moved")
    assert project.start("run").returncode == 0
    assert project.calls() == ["venv", "pip"]


def processes_of(session: int) -> list[str]:
    """The command lines of a session's processes that run."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            state, _, _, its_session = (place / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                found.append((place / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGHUP, -1)])
def test_interrupted_start_is_not_reused(sent, status, project):
    command, env = project.root / "scripts" / "run", project.environment(PIP_SLEEPS="60", NEEDS="numpy>=1")
    # A shell that runs tests in the background ignores SIGINT, nohup SIGHUP.
    heeds = lambda: sent == signal.SIGKILL or signal.signal(sent, signal.SIG_DFL)  # noqa: E731
    own = {"start_new_session": True, "preexec_fn": heeds}
    with subprocess.Popen([command], env=env, stderr=subprocess.PIPE, **own) as child:
        while sum(line.startswith("pip") for line in project.lines()) < 2:  # one compiles, one fetches
            assert child.poll() is None
            time.sleep(0.02)
        os.killpg(child.pid, sent)
        _, said = child.communicate(timeout=60)
    assert child.returncode == status
    assert not [process for process in processes_of(child.pid) if "pip" in process], "what fetches goes on"
    assert (b"stopped: the next start continues with the files compiled so far" in said) == (sent == signal.SIGINT)
    project.calls()
    assert project.start("run").returncode == 0
    assert project.calls() == ["venv", "pip"]


def test_two_concurrent_starts_install_once(project):
    children = [
        subprocess.Popen(
            [project.root / "scripts" / "run"], env=project.environment(PIP_SLEEPS="1"), stdout=subprocess.DEVNULL
        )
        for _ in range(2)
    ]
    assert [child.wait(timeout=60) for child in children] == [0, 0]
    assert project.calls() == ["venv", "pip"]


def test_failed_installation_shows_the_end_of_pip_output_and_can_be_retried(project):
    result = project.start("run", PIP_FAILS="1")
    assert result.returncode == 1
    assert result.stdout == ""
    shown = result.stderr.splitlines()
    assert shown[2:-1] == [f"line {i}" for i in range(61, 101)]
    assert shown[-1] == "woolly: error: the installation failed: see above"
    project.calls()
    assert project.start("run").returncode == 0
    assert project.calls() == ["pip"]


LACKS = [
    ("c++", {}, "g++", "a C++20 compiler (g++ 10 or newer)"),
    (None, {"NO_HEADERS": "1"}, "python3-dev", "the headers of Python (Python.h)"),
    (None, {"NO_VENV": "1"}, "python3-venv", "the venv module of Python"),
]


@pytest.mark.parametrize(("tool", "variables", "package", "name"), LACKS)
def test_missing_tool_is_named_with_its_install_command(project, tool, variables, package, name):
    if tool is not None:
        project.write(tool, "#!/bin/sh\nexit 1\n")
    project.write("apt-get", "#!/bin/sh\nexit 99\n")
    (project.bin / "id").unlink()
    project.write("id", "#!/bin/sh\necho 1000\n")
    result = project.start("run", **variables)
    assert result.returncode == 1
    assert result.stderr == f"woolly: error: missing {name}: install with: sudo apt-get install -y {package}\n"
    assert project.calls() == []


def test_root_gets_missing_tools_installed(project):
    project.write("c++", "#!/bin/sh\nexit 1\n")
    (project.bin / "id").unlink()
    project.write("id", "#!/bin/sh\necho 0\n")
    apt = f"""\
        #!/bin/sh
        echo "apt-get $*, $DEBIAN_FRONTEND" >>"$CALLS"
        cp "{project.bin}/env" "{project.bin}/g++" && printf '#!/bin/sh\\nexit 0\\n' >"{project.bin}/g++"
    """
    project.write("apt-get", textwrap.dedent(apt))
    result = project.start("run")
    assert result.returncode == 0, result.stderr
    assert result.stderr.splitlines()[0] == "woolly: installing g++ with apt-get"
    assert project.lines()[:3] == [
        "apt-get update, noninteractive",
        "apt-get install -y --no-install-recommends g++, noninteractive",
        "venv",
    ]


def test_system_without_apt_names_missing_tools(project):
    project.write("c++", "#!/bin/sh\nexit 1\n")
    result = project.start("run", NO_HEADERS="1")
    assert result.returncode == 1
    assert result.stderr == (
        "woolly: error: missing a C++20 compiler (g++ 10 or newer), the headers of Python (Python.h): "
        "install with the package manager of this system\n"
    )


@pytest.mark.parametrize(
    ("variables", "compiler", "command"),
    [({}, 1, "xcode-select --install"), ({"NO_HEADERS": "1"}, 0, "brew install python3")],
)
def test_macos_gets_its_own_commands(project, variables, compiler, command):
    (project.bin / "uname").unlink()
    project.write("uname", "#!/bin/sh\necho Darwin\n")
    project.write("c++", f"#!/bin/sh\nexit {compiler}\n")
    result = project.start("run", **variables)
    assert result.returncode == 1
    assert result.stderr.endswith(f": install with: {command}\n")


def test_readlink_without_f_is_enough_to_start(project):
    # That of macOS before 12.3; a link to the script is then not followed.
    (project.bin / "readlink").unlink()
    project.write("readlink", "#!/bin/sh\necho illegal option -- f >&2\nexit 1\n")
    project.write("python3", PYTHON.replace('$(readlink -f "$0")', "$0"))
    result = project.start("run", "hello")
    assert result.stdout.startswith("woolly: run hello"), result.stderr
    assert "illegal" not in result.stderr
    project.calls()
    assert project.start("run").returncode == 0
    assert project.calls() == []


def test_old_python_is_rejected_with_its_version(project):
    result = project.start("run", PYTHON_IS_OLD="1")
    assert result.returncode == 1
    assert "Python 3.10 or newer is required, but this is Python 3.9.1" in result.stderr


def test_newer_python_under_its_own_name_is_found(project):
    project.write("python3.12", PYTHON.replace("${PYTHON_IS_OLD:-}", ""))
    project.start("run", PYTHON_IS_OLD="1")
    assert project.calls() == ["venv", "pip"]


@pytest.mark.parametrize("shell", ["sh", "bash", "dash"])
def test_start_through_a_shell_or_a_symlink_works_from_anywhere(project, shell, tmp_path):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    link = tmp_path / "link"
    link.symlink_to(project.root / "scripts" / "run")
    result = subprocess.run(
        [program, link, "hello"], env=project.environment(), cwd="/", capture_output=True, text=True, timeout=60
    )
    assert result.stdout.startswith("woolly: run hello in /,"), result.stderr


def test_gpu_without_kernels_gets_them_at_installation(project):
    (project.root / "pyproject.toml").write_text('test = ["pytest>=8", "slangpy>=0.43; sys_platform == \'linux\'"]')
    result = project.start("run", GPU_LACKS_KERNELS="yes")
    assert result.returncode == 0, result.stderr
    made = "woolly: compiling kernels for this machine's GPU, which takes minutes and downloads 92 MB"
    assert result.stderr.splitlines()[-1] == made
    assert project.lines()[-2:] == [f"pip slangpy>=0.43 in {project.root}", f"compile.py in {project.root}"]
    project.calls()
    assert (project.start("run", GPU_LACKS_KERNELS="yes").stderr, project.calls()) == ("", [])


def test_interrupted_gpu_compilation_is_repeated(project):
    (project.root / "pyproject.toml").write_text('test = ["slangpy>=0.43"]')
    command, env = project.root / "scripts" / "run", project.environment(GPU_LACKS_KERNELS="yes", COMPILING_SLEEPS="60")
    with subprocess.Popen([command], env=env, stderr=subprocess.DEVNULL, start_new_session=True) as child:
        while not any(line.startswith("compile.py") for line in project.lines()):
            assert child.poll() is None
            time.sleep(0.02)
        os.killpg(child.pid, signal.SIGKILL)
    project.calls()
    assert project.start("run", GPU_LACKS_KERNELS="yes").returncode == 0
    assert project.calls()[-1] == "compile.py"


def test_cpu_answers_if_gpu_kernels_cannot_be_compiled(project):
    (project.root / "pyproject.toml").write_text('test = ["slangpy>=0.43"]')
    result = project.start("run", "again", GPU_LACKS_KERNELS="yes", COMPILING_FAILS="1")
    assert result.returncode == 0
    assert result.stdout.startswith("woolly: run again")
    assert "the kernels for the GPU could not be compiled; the CPU is used instead" in result.stderr.splitlines()[-1]
