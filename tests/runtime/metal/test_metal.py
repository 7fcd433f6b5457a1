"""The MetalDevice over objects that stand in for Apple's: bits of the cpu backend, and a sentence for each fault."""

import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.runtime import gpu_report
from tests.runtime.cuda import emulated
from tests.runtime.metal.conftest import KERNELS
from tests.runtime.metal.fake import FAILED, Buffer, FakeMetal
from tests.runtime.metal.text import build, texts
from tests.runtime.vulkan.test_probe import expect_otherwise
from woolly.errors import DeviceError, RequestError
from woolly.gguf import open_gguf
from woolly.llm.bit_identity import identity_of
from woolly.models import trace
from woolly.plan.passes import inject_embeddings
from woolly.quant import GGMLType
from woolly.runtime import BACKENDS, Batch, Options, backend_for, find_gpu, get_backend, name_gpus, parse_devices
from woolly.runtime.gpu import probe
from woolly.runtime.gpu.device import Address
from woolly.runtime.metal import gpu_discovery, libobjc
from woolly.runtime.metal.backend import MetalBackend
from woolly.runtime.metal.context import MetalContext
from woolly.runtime.metal.device import find_level, open_device
from woolly.runtime.metal.stream import MetalStream
from woolly.runtime.split import SplitBackend
from woolly.runtime.vulkan.backend import VulkanBackend

TOKENS = np.random.RandomState(7).randint(0, 264, 24)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A model of one layer, in weights of 4 bits."""
    spec = replace(TINY["llama"], width=256, ffn=256, type=GGMLType.Q4_K, head_dim=64, n_layers=1)
    return write_tiny(spec, tmp_path_factory.mktemp("metal") / "tiny.gguf")


def logits(program, chunks):
    state, parts, first = program.new_state(4), [], 0
    for n in chunks:
        parts.append(program.run(Batch.of([(TOKENS[first : first + n], first, [2])], range(n)), state).copy())
        first += n
    return np.concatenate(parts)


def test_metal_source_matches_the_cpu_backend(tiny, metal, fake):
    with open_gguf(tiny) as file:
        plan, options = trace(file), Options(kv_type="f16", threads=1, max_rows=32)
        program, cpu = (one.compile(plan, file.tensors, options) for one in (metal, get_backend("cpu")))
        wanted = logits(cpu, [24])
        for chunks in ([20, 1, 1, 2], [1, 3]):
            found = logits(program, chunks)
            np.testing.assert_array_equal(found.view(np.uint32), wanted[: len(found)].view(np.uint32))
        used = set(fake.launched)
        products = {f"linear_{form}_q4_k" for form in ("one", "two", "four", "many")}
        assert {*products, "attend_f16_128", "pack"} <= used
        assert program.about.backend == "metal" and program.about.place == "Fake M9, metal"
        assert identity_of(program, file).id == identity_of(cpu, file).id
        del program
        split = SplitBackend(metal, True).compile(plan, file.tensors, replace(options, gpu_layers=0))
        np.testing.assert_array_equal(logits(split, [24]).view(np.uint32), wanted.view(np.uint32))


def test_injected_rows_match_the_cpu_backend(tiny, metal, fake):
    random, ends = np.random.default_rng(3), np.arange(1, 21)
    ends[3:9] = 9  # rows of an image see each other
    batch = replace(
        Batch.of([(TOKENS[:20], 0, [2])], range(20)),
        inputs_embeds=random.standard_normal((6, 256), np.float32),
        embeds_rows=np.arange(3, 9, dtype=np.int32),
        attn_ranges=np.stack([np.zeros(20), ends], axis=1).astype(np.int32),
    )
    with open_gguf(tiny) as file:
        plan, options = inject_embeddings(trace(file), 256), Options(kv_type="f16", threads=1, max_rows=32)
        programs = [one.compile(plan, file.tensors, options) for one in (metal, get_backend("cpu"))]
        found, wanted = (one.run(batch, one.new_state(4)).copy() for one in programs)
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))
    assert "scatter_rows" in fake.launched


def test_compiled_kernels_are_found_while_another_process_compiles(native, monkeypatch):
    def held(_):
        raise AssertionError("the lock was asked for")

    monkeypatch.setattr(emulated, "_alone", held)
    assert build(KERNELS) is not None


def test_one_command_reports_on_a_gpu(tiny, fake, monkeypatch, tmp_path):
    def absent(*_):
        raise DeviceError("there is no Vulkan here")

    monkeypatch.setattr(gpu_report, "PROMPT", 8)
    monkeypatch.setattr(gpu_report, "ANSWER", 6)
    monkeypatch.setitem(BACKENDS, "metal", lambda: MetalBackend(lambda *_: open_device(driver=fake)))
    monkeypatch.setitem(BACKENDS, "vulkan", lambda: VulkanBackend(absent))
    assert gpu_report.on_this_machine([tiny], tmp_path / "report.txt", ("attend-80-v40-q4",)) == 0
    text = (tmp_path / "report.txt").read_text()
    for line in (
        "## metal: Fake M9\n",
        "probe of halves: 0 of 65536 differ\n",
        f"kernels compiled: {len(texts())} tried, 0 refused by name, 0 failed",
        "\ncases: 1 tried, 0 refused by name, 0 failed",
        "\ntiles of queries: 1 tried, 0 refused by name, 0 failed",
        "tiny.gguf on Fake M9, metal: prompt of 8 ",
        "## vulkan: there is no Vulkan here\n",
        "\n0 failures in all\n",
    ):
        assert line in text
    assert fake.left() == []


def test_copies_of_every_size_and_offset_arrive(device):
    for n, shift in ((1, 0), (3, 1), (4, 4), (65540, 0), ((8 << 20) + 8, 4)):
        data = np.random.default_rng(n).integers(0, 256, n, np.uint8)
        place = device.allocate(n + 8)
        at, out = Address(place + shift), np.zeros(n, np.uint8)
        device.zero(place, n + 8)  # what is queued keeps the copy from being made at once
        device.upload(at, data)
        data[:] = 0  # it may change after the call
        device.download(at, out)
        device.wait()
        np.testing.assert_array_equal(out, np.random.default_rng(n).integers(0, 256, n, np.uint8))
        device.free(place)


def test_recorded_launches_can_be_replayed(device):
    at = device.allocate(4096)
    data = np.arange(512, dtype=np.uint8)
    args = (at, Address(at + 1024), 100, 5, 2, 1)
    graph = device.capture(lambda: device.launch("pack", (4,), 64, 0, args))
    for shift in range(2):
        device.upload(at, np.roll(data, shift))
        device.replay(graph)
        out = np.zeros((100, 8), np.uint8)
        device.download(at + 1024, out)
        device.wait()
        blocks = np.roll(data, shift)[:500].reshape(100, 5)
        np.testing.assert_array_equal(out[:, :5], np.roll(blocks, -1, axis=1))
    device.forget(graph)


def test_closed_stream_frees_its_memory(device):
    at, before = device.allocate(4096), device.memory()
    beside = device.new_stream()
    beside.launch("pack", (4,), 64, 0, (at, Address(at + 1024), 100, 5, 2, 1))
    beside.close()
    assert device.memory() == before


def test_work_leaves_no_objects_behind(device, fake):
    at = device.allocate(4096)
    args = (at, Address(at + 1024), 100, 5, 2, 1)
    graph, n_objects = device.capture(lambda: device.launch("pack", (4,), 64, 0, args)), set()
    for _ in range(4):
        device.launch("pack", (4,), 64, 0, args)
        device.replay(graph)
        device.reach(device.mark())
        n_objects.add(len(fake.objects))
    assert len(n_objects) == 1


@pytest.mark.parametrize("early", [False, True])
def test_fake_device_detects_a_missing_barrier(early, device):
    at, out = device.allocate(4096), np.zeros(512, np.uint8)
    device.zero(at, 4096)
    device.upload(at, np.arange(500, dtype=np.uint32).astype(np.uint8))
    steps = [(Address(at + 1024 * i), Address(at + 1024 * (i + 1)), 100, 5, 2, 1) for i in range(2)]

    def queue():
        for i, args in enumerate(steps):
            device.launch("pack", (4,), 64, 0, args, early=early and i > 0)

    device.replay(device.capture(queue))
    device.download(at + 2048, out)
    device.wait()
    assert out.any() != early


def test_events_give_times_and_complete(device):
    first = device.mark()
    at = device.allocate(1024)
    device.zero(at, 1024)
    second, third = device.mark(), device.mark()
    device.reach(third)
    assert device.times([first, second])[0] >= 0 and device.times([]) == []


def test_event_times_exclude_idle_time_before_the_work():
    memory = np.zeros(64, np.uint8)
    native = SimpleNamespace(emulated_allocate=lambda _: memory.ctypes.data, emulated_free=lambda _: True)
    fake = FakeMetal(native, {})
    context = MetalContext(fake, fake.devices()[0], None)
    stream, buffer = MetalStream(context), SimpleNamespace(buffer=Buffer(fake, 64).handle)
    marks = [stream.mark(), stream.mark()]  # nothing was done before them
    for n in (1, 2):
        for _ in range(n):
            stream.fill(buffer, 0, 64)
            stream.submit(0)  # half a second each, after another half
        marks.append(stream.mark())
    assert stream.times(marks) == [0, 500_000_000, 1_500_000_000]
    stream.close()
    fake.objects[buffer.buffer].release()
    context.close()
    assert fake.left() == []


def test_out_of_bounds_kernel_is_named(device):
    at = device.allocate(256)
    with pytest.raises(AssertionError, match=r"kernel pack, block .* outside all memory of the device"):
        device.launch("pack", (64,), 64, 0, (at, at, 2000, 5, 2, 1))
        device.wait()
    device._shared.leave()  # a real one would be lost


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (2, "macOS ended work of the GPU that took too long"),
        (3, "the GPU used an address that is not in its memory"),
        (8, "the GPU ran out of memory while it computed"),
        (11, "the GPU was removed"),
        (1, r"the GPU failed: Internal Error \(0000000e\)"),
    ],
)
def test_lost_gpu_repeats_its_error(code, sentence, device, fake):
    fake.faults |= {"status": FAILED, "code": code}
    for _ in range(2):
        with pytest.raises(DeviceError, match=sentence) as caught:
            device.zero(device.allocate(64), 64)
            device.wait()
        assert caught.value.code == "lost"


def test_gpu_lost_while_opening_can_be_opened_again(fake):
    fake.faults |= {"status": FAILED, "code": 2}
    sentence = "Fake M9 failed while its arithmetic was tested: macOS ended work .* too long; try again, or use backend"
    with pytest.raises(DeviceError, match=sentence) as caught:
        open_device(driver=fake)
    assert caught.value.code == "refused" and fake.left() == []
    fake.faults.clear()
    open_device(driver=fake).close()
    assert fake.left() == []


def test_too_large_allocation_is_rejected_with_the_numbers(device, fake):
    fake.faults["newBufferWithLength:options:"] = 0
    with pytest.raises(RequestError, match=r"Fake M9 has .* GB free of 8\.6 GB, and 3\.0 GB more are needed"):
        device.allocate(3_000_000_000)


@pytest.mark.parametrize(
    ("message", "reply", "sentence"),
    [
        ("supportsFamily:", False, "Fake M9 is no GPU of Apple's chips from M1 on"),
        ("newCommandQueue", 0, "Fake M9 provides no command queue"),
        (
            "newLibraryWithSource:options:error:",
            "program_source:7: error:\n  no such type",
            "of Fake M9 does not compile the kernel probe: program_source:7: error: no such type",
        ),
        (
            "newComputePipelineStateWithFunction:error:",
            "too many threads",
            "does not compile the kernel probe: too many",
        ),
        ("blitCommandEncoder", 0, "accepts no more work"),
    ],
)
def test_unusable_gpu_gives_a_one_line_error(message, reply, sentence, fake):
    fake.faults[message] = reply
    with pytest.raises(DeviceError, match=sentence):
        open_device(driver=fake)
    fake.faults.clear()
    assert fake.left() == []


def test_old_system_gives_a_one_line_error(fake):
    fake.version = "12.6"
    with pytest.raises(DeviceError, match=r"macOS 12\.6 is too old for the metal backend: 13 or later"):
        open_device(driver=fake)
    assert fake.left() == []


def test_gpu_numbers_are_validated(fake):
    with pytest.raises(RequestError, match="device is 'metal:3', and Metal knows 1 GPU here: numbers start at 0"):
        open_device(3, driver=fake)
    none = FakeMetal(None, {}, n_gpus=0)
    for opening in (lambda: open_device(driver=none), lambda: find_level(none)):
        with pytest.raises(DeviceError, match="Metal found no GPU"):
            opening()


@pytest.mark.parametrize("which", [i for i, name in enumerate(probe.NAMES) if name != probe.OWN_HALVES])
def test_gpu_with_different_arithmetic_is_rejected_except_near_zero(which, fake, monkeypatch):
    expect_otherwise(monkeypatch, which)
    if probe.NAMES[which] == probe.TINY:
        device = open_device(driver=fake)
        assert device.driver == "Metal of macOS 15.1, with zero in place of numbers below 1.2e-38"
        device.close()
    else:
        with pytest.raises(DeviceError, match=f"computes {probe.NAMES[which]} differently from the CPU"):
            open_device(driver=fake)


def test_forked_child_leaves_the_gpu_alone(device, monkeypatch):
    device._shared.leave()
    with pytest.raises(DeviceError, match="belongs to the parent process, which forked this one"):
        device.allocate(1)
    monkeypatch.setattr(libobjc, "_opened", lambda: (os.getpid() + 1, None))
    with pytest.raises(DeviceError, match="which forked this one; start processes with spawn"):
        libobjc.open_driver()


def test_metal_is_listed_everywhere_and_used_only_by_name(fake, monkeypatch):
    assert parse_devices("metal:1") == (1,) and backend_for("metal") == "metal"
    monkeypatch.setattr(gpu_discovery, "open_driver", lambda: fake)
    found = find_gpu(0, "metal")
    assert (found.name, found.level, found.total) == ("Fake M9", "metal", 8 << 30)
    with pytest.raises(DeviceError, match="Fake M9 shares the memory of the CPU, and is taken by name alone"):
        gpu_discovery.find_gpu()
    assert name_gpus("metal") == [] and fake.left() == []


@pytest.mark.skipif(sys.platform == "darwin", reason="Macs have Metal")
def test_other_systems_have_no_metal():
    with pytest.raises(DeviceError, match="Metal is only available on macOS"):
        open_device()
    assert not get_backend("metal").is_available()
    with pytest.raises(DeviceError, match="Metal is only available on macOS"):
        find_gpu(0, "metal")
    with pytest.raises(DeviceError) as caught:  # what was asked of every kind does not name it
        find_gpu()
    assert "macOS" not in str(caught.value)
