"""The cases that go through all kernels."""

import re

from native.cuda import compile
from tests.cases.scans import ALL
from tests.runtime.cuda.emulated import EmulatedDevice
from tests.runtime.cuda.kernel_coverage import DryDevice, Launched, all_cases, fewest, kernels_of, run_case
from woolly.runtime.cuda.backend import CudaBackend
from woolly.runtime.cuda.device import CudaDevice
from woolly.runtime.gpu import graph_runner


def test_dry_run_names_the_launched_kernels(monkeypatch):
    device, launched = EmulatedDevice(), set()
    launch = device.launch
    monkeypatch.setattr(device, "launch", lambda kernel, *rest: launched.add(kernel) or launch(kernel, *rest))
    run_case(CudaBackend(lambda: device), "linears-Q4_K-40x768")
    like = DryDevice(device.kernels_for, device.n_processors, device.shared_bytes)
    assert kernels_of(ALL["linears-Q4_K-40x768"], like) == launched


def test_minimal_cases_launch_all_kernels():
    kernels = {"a": frozenset("xy"), "b": frozenset("yz"), "c": frozenset("xyz"), "d": frozenset("w")}
    assert fewest(kernels, "xyzwv") == ["c", "d"]
    assert fewest(kernels, "y") == ["a"]
    assert fewest(kernels, "v") == fewest({}, "x") == []


def test_hopper_kernels_are_launched():
    """Kernels that were missed before, on a GPU with the multiprocessors of an H100 or H200."""
    cases, device = all_cases(), DryDevice()
    launched = set().union(*(kernels_of(cases[name], device) for name in ("every-Q4_K-512", "every-Q4_K-4096")))
    assert {"linear_rows32__q4_k_16_regs", "linear_rows32__q4_k_32_regs", "linear_wgmma__q4_k_160"} <= launched
    launched = kernels_of(cases["every-moe-Q4_K"], device)
    assert {f"moe_wgmma_{kind}__q4_k_{n}" for kind in ("glu", "plain") for n in (64, 128)} <= launched
    launched = kernels_of(cases["attend-every-128-f16"], device)
    assert {f"attend_{kind}_f16_128" for kind in ("prefill_wgmma", "decode_long", "decode", "decode_batch")} <= launched


def test_4_bit_kernels_are_launched():
    cases, device = all_cases(), DryDevice()
    for kv_type in ("q4", "q8_0/q4", "f16/q4"):
        name, launched = kv_type.replace("/", "_"), kernels_of(cases[f"attend-hadamard-96-{kv_type}"], device)
        few = "attend_stream_q4_96" if kv_type == "q4" else f"attend_hadamard_few_{name}_128"
        assert {f"store_{name}", few, f"attend_hadamard_prefill_{name}_96"} <= launched
        assert "hadamard_heads" in launched


def test_launches_can_be_recorded_temporarily():
    launch = CudaDevice.launch
    with Launched() as launched:
        assert CudaDevice.launch is not launch and graph_runner._MAX_GRAPH_ROWS == 0
    assert CudaDevice.launch is launch and graph_runner._MAX_GRAPH_ROWS > 0 and launched == set()


def test_kernels_excluded_for_hopper_are_exactly_those_never_launched_there():
    device = DryDevice()
    wide, some = (
        set(re.findall(rf"#define {name}_IS_TOO_LARGE_(\w+) 1", (compile.HERE / "linears" / file).read_text()))
        for name, file in (("WGMMA", "linear_wgmma.cu"), ("ROWS32", "linear_rows32.cu"))
    )
    launched = set().union(*(kernels_of(case, device) for name, case in all_cases().items() if "every-" in name))
    assert wide and some
    for kind in compile.kinds():
        assert (f"linear_wgmma__{kind}_160" in launched) == (kind not in wide), kind
        assert (f"linear_rows32__{kind}_16_regs" in launched) == (kind not in some), kind
        assert (f"linear_rows32__{kind}_32_regs" in launched) == (kind not in some), kind
    for type, wide_columns in (("f16", (64, 80, 96, 128)), ("q8_0", (64, 128))):
        for columns in wide_columns:
            assert f"attend_prefill_wgmma_{type}_{columns}" in launched
            assert f"attend_prefill_{type}_{columns}" not in launched
