"""scripts/test with fake tools: one failure hides no other, and a few failures are retried."""

import json
import os
import subprocess
import sys

import pytest

from tests.packaging.test_scripts import ROOT, project  # noqa: F401 - a fixture


def test_quick_check_skips_slow_tests_and_continues_after_a_failure(project):  # noqa: F811
    for tool in ("ruff", "mypy", "clang-format"):
        project.write(tool, f"#!/bin/sh\nexit {int(tool == 'mypy')}\n")
    result = project.start("test", "quick", "-x")
    assert result.stdout.startswith(
        "pytest: -n logical --maxprocesses 8 --dist loadfile -m not slow --durations=10 --durations-min=1 -x in "
    )
    assert result.stderr.endswith("woolly: error: failed: mypy\n")
    assert result.returncode == 1


def test_rare_tests_run_alone(project):  # noqa: F811
    result = project.start("test", "rare", "-x")
    assert result.stdout.startswith("pytest: -n logical --maxprocesses 8 --dist loadfile -m rare -x in ")
    assert result.returncode == 0 and "ruff" not in result.stderr


@pytest.mark.parametrize(
    ("ends", "n_failed", "again_ends", "says"),
    [
        ("1", "3", "0", "woolly: FLAKY: the tests above failed with others and passed alone"),
        ("1", "3", "1", "woolly: error: failed: pytest"),
        ("1", "4", "0", "woolly: error: failed: pytest"),
        ("2", "1", "0", "woolly: error: failed: pytest"),
    ],
)
def test_a_few_failures_are_retried_alone_and_named(project, ends, n_failed, again_ends, says):  # noqa: F811
    for tool in ("ruff", "mypy", "clang-format"):
        project.write(tool, "#!/bin/sh\nexit 0\n")
    result = project.start("test", PYTEST_ENDS=ends, N_FAILED=n_failed, AGAIN_ENDS=again_ends)
    assert result.stderr.splitlines()[-1].startswith(says)
    assert result.returncode == int("error" in says)
    assert ("--last-failed" in result.stdout) == (ends == "1" and n_failed == "3")


def test_retry_runs_only_failures(tmp_path):
    name = "tests/packaging/test_checks.py::test_retry_runs_only_failures"
    (tmp_path / "v" / "cache").mkdir(parents=True)
    (tmp_path / "v" / "cache" / "lastfailed").write_text(json.dumps({name: True}))
    second = ["--last-failed", "--last-failed-no-failures", "none"]
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "0",
            "--collect-only",
            "-q",
            "-o",
            f"cache_dir={tmp_path}",
            *second,
            "tests/packaging",
        ],
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.stdout.splitlines()[0] == name, result.stdout + result.stderr
    assert result.returncode == 0
