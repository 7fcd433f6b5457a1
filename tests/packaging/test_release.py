"""The release says one thing in all its places: version, Pythons, settings, workflows."""

import importlib
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
from tests.packaging import smoke

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


def test_built_module_has_the_project_version_and_a_changelog_entry():
    version = PROJECT["project"]["version"]
    assert woolly.__version__ == version
    assert re.search(rf"^## .*\b{re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_promised_built_and_tested_python_versions_agree():
    prefix = "Programming Language :: Python :: 3."
    promised = [int(c.removeprefix(prefix)) for c in PROJECT["project"]["classifiers"] if c.startswith(prefix)]
    assert WHEELS["build"] == [f"cp3{minor}-*" for minor in promised]
    assert PROJECT["project"]["requires-python"] == f">=3.{promised[0]}"
    tested = workflow("ci")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert tested == [f"3.{promised[0]}", f"3.{promised[-1]}"]


def test_release_has_every_isa_and_gpu_generation():
    # A build from source has those of its machine; no wheel may.
    assert WHEELS["linux"]["environment"] == {"WOOLLY_LEVELS": "all", "WOOLLY_CUDA_TARGETS": "all"}
    for system in ("macos", "windows"):
        assert WHEELS[system]["environment"]["WOOLLY_LEVELS"] == "all"
    assert "\nexport WOOLLY_LEVELS=all\n" in (ROOT / "scripts" / "wheel").read_text()
    build = (ROOT / "native" / "CMakeLists.txt").read_text()
    assert "$ENV{WOOLLY_LEVELS}" in build and "--targets ${targets}" in build


def test_gpu_kernel_compiler_is_fetched_only_where_needed(monkeypatch):
    folder = ROOT / PROJECT["build-system"]["backend-path"][0]
    monkeypatch.syspath_prepend(str(folder))
    backend = importlib.import_module(PROJECT["build-system"]["build-backend"])
    assert not any("nvrtc" in need for need in PROJECT["build-system"]["requires"])
    monkeypatch.setattr(backend.compiling, "find_nvrtc", lambda: None)
    for targets, fetched in (("none", False), ("sm_90a", True), ("all", True)):
        monkeypatch.setenv("WOOLLY_CUDA_TARGETS", targets)
        for needs in (backend.get_requires_for_build_wheel, backend.get_requires_for_build_editable):
            assert any("nvrtc" in need for need in needs({})) is fetched
    monkeypatch.setenv("WOOLLY_KERNELS", "kernels.bin")
    assert not any("nvrtc" in need for need in backend.get_requires_for_build_wheel({}))
    monkeypatch.delenv("WOOLLY_KERNELS")
    monkeypatch.delenv("WOOLLY_CUDA_TARGETS")
    # Also on a machine with a GPU: a model's kernels are compiled when it is first opened.
    monkeypatch.setattr(backend.compiling, "own_targets", lambda: ("sm_90a",))
    assert not any("nvrtc" in need for need in backend.get_requires_for_build_wheel({}))
    # People with a GPU and people who run the tests have it, by the same name and version.
    for extra in ("test", "cuda"):
        assert backend.NVRTC in PROJECT["project"]["optional-dependencies"][extra]


def test_extra_all_contains_every_extra_for_users():
    extras = PROJECT["project"]["optional-dependencies"]
    (every,) = extras["all"]
    name, listed = re.fullmatch(r"([\w-]+)\[([\w,]+)\]", every).groups()
    assert name == PROJECT["project"]["name"]
    # NVRTC needs an NVIDIA GPU, Ray is a cluster of its own, and the other two are for developers.
    assert set(listed.split(",")) == set(extras) - {"all", "cuda", "ray", "test", "goldens"}


def test_citation_has_the_project_version_and_license():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["project"]["version"]
    assert citation["license"] == PROJECT["project"]["license"]["text"]


def test_issue_forms_have_labeled_fields():
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert len(forms) >= 3
    for form in forms:
        content = yaml.safe_load(form.read_text())
        assert content["name"] and content["description"]
        for field in content["body"]:
            assert field["type"] in {"input", "textarea", "dropdown", "markdown"}
            assert field["attributes"]["label"] and field["id"]


def test_local_wheel_has_the_settings_of_the_workflow():
    script = (ROOT / "scripts" / "wheel").read_text()
    (command,) = re.findall(r"-m build .*", script)
    words = shlex.split(command)
    by_hand = dict(words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "-C")
    assert by_hand == WHEELS["config-settings"]


def scripts_of(job):
    return "\n".join(step["run"] for step in job["steps"] if "run" in step)


@pytest.mark.parametrize("name", ["ci", "release"])
def test_files_started_by_workflows_exist(name):
    text = "\n".join(scripts_of(job) for job in workflow(name)["jobs"].values()) + WHEELS["test-command"]
    files = re.findall(r"(?<![\w.-])((?:scripts|tests|native|deploy)/[\w./-]+)", text)
    assert len(files) >= 4
    for file in files:
        assert (ROOT / file).is_file(), file
        assert not file.startswith("scripts/") or os.access(ROOT / file, os.X_OK)


@pytest.mark.parametrize("job", ["test", "rare"])
def test_runner_installs_test_packages_as_root(job):
    setup = (ROOT / "scripts" / "setup.sh").read_text()
    wanted = set(" ".join(re.findall(r"no-install-recommends ((?:[a-z][\w-]* )+)\|\|", setup)).split())
    given = set(re.findall(r"[\w-]+", scripts_of(workflow("ci")["jobs"][job])))
    assert {"chromium", "mesa-vulkan-drivers"} <= wanted
    assert wanted - given <= ({"chromium"} if job == "rare" else set())  # which images of x86-64 have


def test_kernel_compiler_options_are_its_own():
    (command,) = re.findall(r"python (native/cuda/compile.py .*)", scripts_of(workflow("release")["jobs"]["kernels"]))
    source = (ROOT / "native" / "cuda" / "compile.py").read_text()
    for option in re.findall(r"--\w+", command):
        assert f'"{option}"' in source
    # NVRTC by the versions that the tests take.
    test = PROJECT["project"]["optional-dependencies"]["test"]
    (wanted,) = [requirement for requirement in test if requirement.startswith("nvidia-cuda-nvrtc")]
    assert f"'{wanted.partition(';')[0]}'" in (WORKFLOWS / "release.yml").read_text()


def test_script_is_valid_posix_sh():
    assert os.access(ROOT / "scripts" / "wheel", os.X_OK)
    subprocess.run(["sh", "-n", ROOT / "scripts" / "wheel"], check=True)


def test_release_is_the_sdist_and_the_tested_wheels():
    jobs = workflow("release")["jobs"]
    for name in ("publish", "page"):
        assert set(jobs[name]["needs"]) == {"sdist", "wheels", "try", "image"}
        (download,) = [s for s in steps(jobs[name]) if s["uses"].startswith("actions/download-artifact@")]
        taken = {n for n, job in jobs.items() for a in artifacts(job) if fnmatch(a, download["with"]["pattern"])}
        assert taken == {"sdist", "wheels"}


SYSTEMS = ["ubuntu-24.04", "ubuntu-24.04-arm", "macos-15", "windows-2025", "windows-11-arm"]


def test_wheels_are_built_and_tested_on_every_system():
    jobs = workflow("release")["jobs"]
    built = jobs["wheels"]["strategy"]["matrix"]["include"]
    assert [one["runner"] for one in built] == SYSTEMS
    tried = jobs["try"]["strategy"]["matrix"]
    assert tried["runner"] == SYSTEMS
    promised = PROJECT["project"]["classifiers"]
    assert tried["python"] == workflow("ci")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert f"Programming Language :: Python :: {tried['python'][-1]}" in promised
    # Each of them names levels that must be there.
    assert {one["runner"] for one in tried["include"] if one["levels"].endswith(" scalar")} == set(SYSTEMS)


def test_cuda_kernels_are_compiled_once_for_wheels_of_systems_with_nvidia_gpus():
    jobs = workflow("release")["jobs"]
    assert artifacts(jobs["kernels"]) == ["kernels", "kernels-vulkan"]
    assert "--targets all" in scripts_of(jobs["kernels"])
    wheels = jobs["wheels"]
    assert wheels["needs"] == ["kernels"]
    assert wheels["env"]["CIBW_ENVIRONMENT_PASS_LINUX"] == "WOOLLY_KERNELS"
    download = downloads(wheels)["kernels"]
    assert f"WOOLLY_KERNELS=$place/{download['with']['path']}/kernels.bin" in scripts_of(wheels)
    cuda = {one["runner"] for one in wheels["strategy"]["matrix"]["include"] if one["cuda"]}
    assert cuda == {"ubuntu-24.04", "ubuntu-24.04-arm", "windows-2025"}


def downloads(job):
    """Steps that download what another job made, by its name."""
    found = [s for s in steps(job) if s["uses"].startswith("actions/download-artifact@")]
    return {one["with"]["name"]: one for one in found}


def test_vulkan_kernels_are_compiled_once_for_the_sdist_and_all_wheels():
    jobs = workflow("release")["jobs"]
    assert "python native/gpu/compile.py" in scripts_of(jobs["kernels"])
    (kept,) = PROJECT["tool"]["scikit-build"]["sdist"]["include"]
    for job in (jobs["sdist"], jobs["wheels"]):
        assert job["needs"] == ["kernels"]
        download = downloads(job)["kernels-vulkan"]
        assert f"{download['with']['path']}/kernels.bin" == kept and not download.get("if")


def test_windows_uses_one_compiler_version_for_both_architectures():
    version = "ziglang==0.16.0"
    for text in (
        WHEELS["windows"]["before-build"],
        (ROOT / "scripts" / "windows").read_text(),
        scripts_of(workflow("ci")["jobs"]["clang"]),
    ):
        assert version in text
    assert "x86_64-windows-gnu" in WHEELS["windows"]["environment"]["CXX"]
    (arm,) = [one for one in WHEELS["overrides"] if one["select"] == "*-win_arm64"]
    assert arm["environment"] == {
        key: value.replace("x86_64", "aarch64") for key, value in WHEELS["windows"]["environment"].items()
    }


# What a job may do beyond reading, and when: a fork has no index that trusts it, and the rest is within its repository.
MAY = {
    "publish": ({"id-token": "write"}, "github.ref_type == 'tag' && vars.PUBLISH == 'pypi'"),
    "page": ({"contents": "write"}, "github.ref_type == 'tag'"),
}


@pytest.mark.parametrize("name", ["ci", "release"])
def test_only_publishing_jobs_of_a_tag_have_write_permissions(name):
    content = workflow(name)
    assert content["permissions"] == {"contents": "read"}
    for job_name, job in content["jobs"].items():
        if name == "release" and job_name in MAY:
            assert (job["permissions"], job["if"]) == MAY[job_name]
        else:
            assert "permissions" not in job
        for step in steps(job):
            assert re.fullmatch(r"[\w.-]+/[\w.-]+@(v[\d.]+|release/v1)", step["uses"])


@pytest.mark.parametrize("name", ["ci", "release"])
def test_fork_needs_no_secret_and_no_runner(name):
    text = (WORKFLOWS / f"{name}.yml").read_text()
    assert "secrets." not in text
    assert "self-hosted" not in text
    for job in workflow(name)["jobs"].values():
        runner = job["runs-on"]
        assert runner == "${{ matrix.runner }}" or runner in SYSTEMS


@pytest.mark.parametrize(
    ("levels", "expected", "holds"),
    [
        ("avx2 scalar", "", True),
        ("avx2 scalar", "avx2 scalar", True),
        ("avx512 avx2 scalar", "avx2 scalar", False),
        ("avx512 avx2 scalar", "--having avx2 scalar", True),
        ("scalar", "--having avx2 scalar", False),
    ],
)
def test_smoke_test_compares_a_build_with_the_named_isas(levels, expected, holds):
    assert smoke.is_as_expected(levels.split(), expected.split()) is holds
