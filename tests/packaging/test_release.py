"""The release says one thing in all its places: version, Pythons, settings, workflows."""

import os
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

import woolly

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent.parent
WORKFLOWS = ROOT / ".github" / "workflows"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WHEELS = PROJECT["tool"]["cibuildwheel"]


def workflow(name):
    # YAML 1.1 reads the key "on" as true.
    return yaml.safe_load((WORKFLOWS / f"{name}.yml").read_text())


def steps(job):
    return [step for step in job["steps"] if "uses" in step]


def artifacts(job):
    return [step["with"]["name"] for step in steps(job) if step["uses"].startswith("actions/upload-artifact@")]


def test_the_built_module_has_the_version_of_the_project_and_the_changelog_tells_of_it():
    version = PROJECT["project"]["version"]
    assert woolly.__version__ == version
    assert re.search(rf"^## .*\b{re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_same_pythons_are_promised_built_and_tested():
    prefix = "Programming Language :: Python :: 3."
    promised = [int(c.removeprefix(prefix)) for c in PROJECT["project"]["classifiers"] if c.startswith(prefix)]
    assert WHEELS["build"] == [f"cp3{minor}-*" for minor in promised]
    assert PROJECT["project"]["requires-python"] == f">=3.{promised[0]}"
    tested = workflow("ci")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert tested == [f"3.{promised[0]}", f"3.{promised[-1]}"]


def test_a_release_has_optimized_kernels_for_every_generation_of_gpus():
    # `scripts/test` builds with "quick", for a generation or none; no wheel may.
    assert WHEELS["linux"]["environment"] == {"WOOLLY_CUDA_TARGETS": "all"}
    assert "quick" not in (ROOT / "scripts" / "wheel").read_text()
    assert "--targets ${targets}" in (ROOT / "native" / "CMakeLists.txt").read_text()


def test_a_wheel_made_by_hand_has_the_settings_of_the_workflow():
    script = (ROOT / "scripts" / "wheel").read_text()
    (command,) = re.findall(r"-m build .*", script)
    words = shlex.split(command)
    by_hand = dict(words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "-C")
    assert by_hand == WHEELS["config-settings"]


def test_what_the_workflows_start_exists():
    runs = [step["run"] for job in workflow("ci")["jobs"].values() for step in job["steps"] if "run" in step]
    assert runs == ["./scripts/test"]
    assert os.access(ROOT / "scripts" / "test", os.X_OK)
    (tried,) = re.findall(r"\{project\}/(\S+)", WHEELS["test-command"])
    assert (ROOT / tried).is_file()


def test_the_script_is_plain_sh_that_parses():
    assert os.access(ROOT / "scripts" / "wheel", os.X_OK)
    subprocess.run(["sh", "-n", ROOT / "scripts" / "wheel"], check=True)


def test_a_release_is_the_sdist_and_the_tested_wheels_and_nothing_of_windows():
    jobs = workflow("release")["jobs"]
    publish = jobs["publish"]
    assert set(publish["needs"]) == {"sdist", "wheels"}
    (download,) = [s for s in steps(publish) if s["uses"].startswith("actions/download-artifact@")]
    taken = {name for name, job in jobs.items() for a in artifacts(job) if fnmatch(a, download["with"]["pattern"])}
    assert taken == {"sdist", "wheels"}
    assert jobs["windows"]["continue-on-error"] is True


def test_wheels_are_built_for_both_linuxes_and_for_macos():
    runners = workflow("release")["jobs"]["wheels"]["strategy"]["matrix"]["runner"]
    assert runners == ["ubuntu-24.04", "ubuntu-24.04-arm", "macos-14"]


@pytest.mark.parametrize("name", ["ci", "release"])
def test_only_the_publishing_job_of_a_tag_may_do_more_than_read(name):
    content = workflow(name)
    assert content["permissions"] == {"contents": "read"}
    for job_name, job in content["jobs"].items():
        if (name, job_name) == ("release", "publish"):
            assert job["permissions"] == {"id-token": "write"}
            assert job["if"] == "github.ref_type == 'tag'"
        else:
            assert "permissions" not in job
        for step in steps(job):
            assert re.fullmatch(r"[\w.-]+/[\w.-]+@(v[\d.]+|release/v1)", step["uses"])
