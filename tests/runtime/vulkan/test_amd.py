"""benchmarks/amd.py: what kernels take on GPUs of AMD, from what Mesa's compiler prints."""

import pytest

from benchmarks import amd

PRINTED = """radv: a warning
kernel of woolly: attend_one
*** SHADER STATS ***
SGPRs: 128
VGPRs: 96
Spilled VGPRs: 2
Code size: 15972
Pre-Sched VGPRs: 89
kernel of woolly: empty
"""


def test_statistics_are_parsed_kernel_by_kernel():
    found = amd.figures(PRINTED)
    assert found == {"attend_one": {"VGPRs": 96, "Spilled VGPRs": 2, "Code size": 15972}, "empty": {}}


def test_kernels_compile_for_an_absent_gpu(capsys, monkeypatch):
    if amd.manifest() is None:
        pytest.skip("Mesa's driver for Radeon is not here")
    monkeypatch.setattr("sys.argv", ["amd.py", "attend_staged"])
    if amd.main():
        pytest.skip(capsys.readouterr().err)  # no kernels in this build, or a Mesa without a compiler for it
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["vgprs", "spilled", "vgprs"]
    name, registers, spilled, *_ = row.split()
    assert (name, spilled) == ("attend_staged_f16", "0") and 0 < int(registers) <= 128


def test_missing_driver_or_unknown_gpu_gives_a_one_line_error(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["amd.py", "nothing", "--family", "navi99"])
    if amd.manifest() is not None:
        assert amd.main() == 1 and "nothing was compiled for navi99" in capsys.readouterr().err
    monkeypatch.setattr(amd, "manifest", lambda: None)
    assert amd.main() == 1 and "apt-get install mesa-vulkan-drivers" in capsys.readouterr().err
