"""The rule of commits is checked, and kept."""

import importlib.machinery
import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "commits"


@pytest.fixture(scope="module")
def commits():
    loader = importlib.machinery.SourceFileLoader("commits", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("commits", loader))
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "subject", ["Share full pages between requests", "Pass the batch as one record", "Re-read the file", "Embed tables"]
)
def test_plain_subject_is_accepted(commits, subject):
    assert commits.faults(subject, 100) == []


@pytest.mark.parametrize(
    ("subject", "n_lines", "fault"),
    [
        ("Share full pages between all requests that begin with the same tokens, and say so", 1, "characters"),
        ("Share pages; free them", 1, "two subjects"),
        ("Share pages.", 1, "full stop"),
        ("A page is shared", 1, "not an imperative"),
        ("Shared pages", 1, "not an imperative"),
        ("Sharing pages", 1, "not an imperative"),
        ("Shares pages", 1, "not an imperative"),
        ("share pages", 1, "not an imperative"),
        ("Share pages", 3001, "3,001 changed lines"),
    ],
)
def test_invalid_subject_is_reported(commits, subject, n_lines, fault):
    assert [one for one in commits.faults(subject, n_lines) if fault in one]


def test_all_commits_since_the_check_follow_the_rule():
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is not a clone")
    shallow = subprocess.run(
        ["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if shallow.stdout.strip() != "false":
        pytest.skip("the clone has no history")
    done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
