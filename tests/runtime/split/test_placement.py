"""Placement on GPUs with little memory: layers, sizes, and the error if nothing fits."""

import logging
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import TINY
from tests.runtime.split.machine import OPTIONS
from woolly.errors import RequestError
from woolly.runtime import Batch, Options, get_backend
from woolly.runtime.gpu.program import GpuProgram
from woolly.runtime.split import SplitProgram

TOKENS = np.random.RandomState(7).randint(0, 264, 11)
LLAMA = replace(TINY["llama"], n_layers=4)
MIXTURE = replace(FAMILIES["qwen3moe"], n_layers=3)


def logits(program):
    state = program.new_state(8, 2)
    parts = [program.run(Batch.of([(TOKENS[:9], 0, [1])], range(9), slots=[(-1, 0)]), state).copy()]
    parts.append(program.run(Batch.of([(TOKENS[9:], 9, [1])], range(2), slots=[(0, 1)]), state))
    return np.concatenate(parts)


def near(got, machine):
    exact = logits(get_backend("reference").compile(machine.plan, machine.file.tensors, Options()))
    return np.linalg.norm(got - exact) < 0.02 * np.linalg.norm(exact)


def test_as_many_layers_as_fit_are_on_the_gpu_with_the_requested_cache(machine, caplog):
    one = machine(LLAMA)
    for n in range(5):
        one.sizes = [one.room_for(lambda atom, n=n: atom.unit < n)] if n else [1000]
        placement = one.place()
        assert sum(s.n_layers for s in placement.shares if s.device != "cpu") == n and not placement.is_whole
        assert sum(share.n_layers for share in placement.shares) == placement.n_layers == 4
        assert placement.bound == f"free memory, {one.sizes[0] / 1e9:,.1f} GB of cuda:0"
        assert placement.shares[-1].has_output and placement.cpu_bytes > 0
        if n:
            one.sizes[0] -= 1
            assert one.place().shares[0].n_layers == (n - 1 if n > 1 else 4)
    one.sizes = [one.room_for(lambda atom: atom.unit < 2)]
    program = one.compile()
    assert isinstance(program, SplitProgram) and near(logits(program), one)
    assert [share.device for share in program.about.shares] == ["cuda:0", "cpu"]
    program.new_state(8)  # there is room for it
    assert re.search(
        r"2 of 4 layers are on cuda:0 \(which takes 0\.\d of 0\.\d GB that are free\); 2 layers and the output are on",
        caplog.text,
    )
    assert "the CPU, which reads 0.0 GB for each token" in caplog.text
    one.sizes = [one.room_for(lambda atom: True)]
    assert isinstance(one.compile(), GpuProgram) and one.place().is_whole
    del program
    assert one.is_closed()


def test_experts_are_the_first_to_stay_on_the_cpu(machine):
    one = machine(MIXTURE)
    one.sizes = [one.room_for(lambda atom: not atom.is_experts or atom.unit < 1)]
    gpu, cpu = one.place().shares
    assert (gpu.n_layers, gpu.n_without_experts, gpu.has_output) == (1, 2, True)
    assert (cpu.n_layers, cpu.has_output, cpu.cache) == (0, False, 0)
    assert "1 of 3 layers are on cuda:0 " in str(one.place()) and "; experts are on the CPU" in str(one.place())
    program = one.compile()
    assert near(logits(program), one)
    one.sizes[0] = one.room_for(lambda atom: not atom.is_experts and atom.unit < 2)
    gpu, cpu = one.place().shares
    assert (gpu.n_layers, gpu.n_without_experts, gpu.has_output, cpu.n_layers) == (0, 2, False, 1)


def test_experts_of_the_first_layers_stay_on_the_cpu_if_asked(machine):
    one = machine(MIXTURE)
    one.sizes = [one.room_for(lambda atom: True)]
    for asked, n_without in (("1", 1), (2, 2), ("all", 3), (99, 3)):
        placement = one.place(n_cpu_moe=asked)
        gpu, cpu = placement.shares
        assert (gpu.n_layers, gpu.n_without_experts, gpu.has_output) == (3 - n_without, n_without, True)
        assert cpu.n_layers == 0 and placement.bound.startswith("n_cpu_moe is ")
    assert one.place(n_cpu_moe=0).is_whole and one.place().is_whole
    one.sizes = [one.room_for(lambda atom: not atom.is_experts or atom.unit == 1)]
    assert one.place(n_cpu_moe=1).shares[0].n_without_experts == 2
    program = one.compile(n_cpu_moe="all")
    assert isinstance(program, SplitProgram) and near(logits(program), one)
    with pytest.raises(RequestError, match="n_cpu_moe is 'x'; expected all or an integer of at least 0"):
        one.place(n_cpu_moe="x")


def test_two_gpus_share_the_layers_by_memory_and_match_one(machine):
    one = machine(LLAMA)
    whole = one.room_for(lambda atom: True)
    one.sizes = [whole, whole]
    want = logits(one.compile())
    program = one.compile(device="cuda:0,1")
    assert [(share.device, share.n_layers) for share in program.about.shares] == [("cuda:0", 2), ("cuda:1", 2)]
    np.testing.assert_array_equal(logits(program).view(np.uint32), want.view(np.uint32))
    one.sizes = [2 * whole, whole]
    assert [share.n_layers for share in one.place(device="cuda:0,1").shares] == [3, 1]
    # Where shares by memory do not fit, one is filled after the other; a GPU that is named twice has its memory once.
    one.sizes = [one.room_for(lambda atom: atom.unit < 1), one.room_for(lambda atom: atom.unit >= 1)]
    assert [share.n_layers for share in one.place(device="cuda:0,1").shares] == [1, 3]
    one.sizes = [2 * whole]
    twice = one.compile(device="cuda:0,0")
    assert [share.device for share in twice.about.shares] == ["cuda:0", "cuda:0"]
    np.testing.assert_array_equal(logits(twice), want)
    with pytest.raises(RequestError, match="device is 'cuda:1', and this machine has 1"):
        one.compile(device="cuda:0,1")


def test_layer_count_is_kept_or_rejected_with_one_that_fits(machine):
    one = machine(LLAMA)
    one.sizes = [one.room_for(lambda atom: atom.unit < 3)]
    for n in (1, 3):
        assert [share.n_layers for share in one.compile(gpu_layers=n).about.shares] == [n, 4 - n]
    assert one.compile(gpu_layers=0).about.backend == "cpu"
    assert isinstance(one.compile("cuda", gpu_layers="auto"), SplitProgram)
    for asked in ({"gpu_layers": 9}, {"gpu_layers": "all"}, {"backend": "cuda"}):
        with pytest.raises(RequestError, match="gpu_layers 3 would fit") as caught:
            one.compile(**asked)
        text = str(caught.value)
        assert re.match(r"emulated has 0\.\d GB free of 0\.\d GB, and 0\.\d GB are needed: 0\.0 GB of weights,", text)
        assert "of a cache of 256 tokens" in text and caught.value.code == "device_memory"
        assert "--gpu-layers 3 would fit" in caught.value.worded({"gpu_layers": "--gpu-layers"})
    cached = [replace(OPTIONS, cache_tokens=n) for n in (256, 512)]
    small, large = (one.counted(options).total(one.atoms) for options in cached)
    one.sizes = [(small + large) // 2]
    with pytest.raises(RequestError, match=r"gpu_layers \d would fit, or ctx 256"):
        one.compile("cuda", cache_tokens=512)
    assert one.is_closed()


def test_weight_memory_limits_the_gpu_and_the_cpu_has_the_rest(machine):
    one = machine(LLAMA)
    one.sizes = [one.room_for(lambda atom: True)]
    budget = one.costs.weights([atom for atom in one.atoms if atom.unit < 2]) + 10_000
    program = one.compile(weight_memory=budget)
    assert [share.n_layers for share in program.about.shares] == [2, 2]
    assert program.weight_stats().n_bytes <= budget
    assert one.place(weight_memory=budget).bound.endswith("and weight_memory, 0.0 GB")
    with pytest.raises(RequestError, match="gpu_layers 2") as caught:
        one.compile("cuda", weight_memory=budget)
    assert caught.value.field == "weight_memory"


def test_unsplittable_model_is_rejected_by_name_and_left_to_the_cpu(machine, caplog):
    one = machine(FAMILIES["gemma3n"])
    one.sizes = [one.room_for(lambda atom: True)]
    with pytest.raises(RequestError, match="this gemma3n model can be split only after 0, 22 layers"):
        one.compile(gpu_layers=5)
    one.sizes = [one.sizes[0] // 2]
    with caplog.at_level(logging.WARNING):
        assert one.compile().about.backend == "cpu"
    assert "none of 22 layers are on a GPU, bounded by free memory" in caplog.text


def test_backends_without_a_gpu_reject_gpu_layers(machine):
    one = machine(LLAMA)
    for backend in ("cpu", "reference"):
        with pytest.raises(RequestError, match=f"gpu_layers is 3, but backend {backend} has no GPU"):
            one.compile(backend, gpu_layers=3)
        for layers in (0, "auto"):
            one.compile(backend, gpu_layers=layers)
    assert [Options(gpu_layers=text).gpu_layers for text in ("7", "Auto", "all", None)] == [7, "auto", "all", None]
    for layers in (-1, 1.5, "many", True, "-1", ""):
        with pytest.raises(RequestError, match="expected auto, all or an integer of at least 0"):
            Options(gpu_layers=layers)
