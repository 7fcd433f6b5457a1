"""Tries the Vulkan backend on the GPU of this machine: the probe, the bits of the cpu backend, tokens per second.

    python benchmarks/vulkan_check.py MODEL.gguf [--device N] [--tokens 140] [--prompts 512 2048] [--anyway]

It needs NumPy, Woolly's native module and woolly/runtime/vulkan/kernels.bin (native/gpu/compile.py), no network and no
loader of Vulkan if the driver's own library is there. WOOLLY_VULKAN_DRIVER names that library.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import Batch, Options, get_backend, pages_for
from woolly.runtime.gpu import probe as probing
from woolly.runtime.vulkan import device as driving
from woolly.runtime.vulkan.device import open_device
from woolly.runtime.vulkan.libvulkan import open_driver
from woolly.runtime.vulkan.physical_device import list_physical


def show_devices() -> None:
    """Prints what Vulkan knows."""
    driver = open_driver()
    for one in list_physical(driver):
        free, total = one.free_bytes(driver)
        print(f"vulkan:{one.number} {one.name}, {one.kind}, {free / 1e9:.1f} GB free of {total / 1e9:.1f} GB")


def go_anyway() -> None:
    """Prints what the probe finds, and goes on."""

    def probe(device: Any, context: Any) -> str:
        print("controls:", ", ".join(sorted(context.physical.controls)))
        for variant in ("double", "plain"):
            context.variant = variant
            found, wanted = probing.results(device)
            context.converts_halves = np.array_equal(found[-1], wanted[-1])
            for name, mine, its in zip(probing.NAMES, found, wanted, strict=True):
                wrong = np.flatnonzero(mine != its)
                some = ", ".join(f"{mine[i]:08x} for {its[i]:08x}" for i in wrong[:4])
                print(f"{variant} {name}: {len(wrong)} of {len(its)} differ {some}")
        return "plain"

    driving.choose_variant = probe


def show_device(number: int) -> None:
    """Prints what the probe finds, and what a launch and a copy take."""
    start = time.perf_counter()
    device = open_device(number)
    print(f"opened in {time.perf_counter() - start:.2f} s; kernels: {device._shared.variant}")
    data = np.ones(1 << 28, np.uint8)
    place = device.allocate(data.nbytes)
    for _ in range(2):
        start = time.perf_counter()
        device.upload(place, data)
        device.wait()
        took = time.perf_counter() - start
    print(f"upload {data.nbytes / took / 1e9:.1f} GB/s")
    start = time.perf_counter()
    for _ in range(100):
        device.mark()
        device.wait()
    print(f"a submission {(time.perf_counter() - start) * 1e4:.1f} us")
    device.close()


def compare(program: Any, other: Any, tokens: np.ndarray, n: int) -> int:
    """Prints whether logits of a prompt and of single tokens after it have the same bits; gives how many have not."""
    states = [one.new_state(pages_for(len(tokens) + 1)) for one in (program, other)]
    pages = range(pages_for(len(tokens) + 1))
    n_wrong = 0
    spans = [(0, n), *((i, i + 1) for i in range(n, len(tokens)))]
    for first, last in spans:
        batch = Batch.of([(tokens[first:last], first, pages)], range(last - first))
        found, wanted = (one.run(batch, state).copy() for one, state in zip((program, other), states, strict=True))
        wrong = int(np.count_nonzero(found.view(np.uint32) != wanted.view(np.uint32)))
        what = "the bits of the cpu backend" if not wrong else f"{wrong} of {found.size} numbers differ"
        more = "" if not wrong else f", by at most {np.abs(found - wanted).max():g} of {np.abs(wanted).max():g}"
        print(f"rows {first} to {last - 1}: {what}{more}", flush=True)
        n_wrong += wrong
    return n_wrong


def bench(program: Any, n_vocab: int, prompts: list[int]) -> None:
    """Prints tokens per second of prompts and of one token after another."""
    longest = max(prompts) + 64
    state, pages = program.new_state(pages_for(longest)), range(pages_for(longest))
    tokens = np.random.default_rng(3).integers(0, n_vocab, longest)
    for n in prompts:
        times = []
        for _ in range(2):
            start = time.perf_counter()
            for first in range(0, n, program.max_rows):
                last = min(n, first + program.max_rows)
                program.run(Batch.of([(tokens[first:last], first, pages)], [last - first - 1]), state)
            times.append(time.perf_counter() - start)
        print(f"prompt of {n}: {n / min(times):,.0f} tokens/s", flush=True)
        times = []
        for i in range(n, n + 32):
            start = time.perf_counter()
            program.run(Batch.of([(tokens[i : i + 1], i, pages)], [0]), state)
            times.append(time.perf_counter() - start)
        print(f"generation after {n}: {1 / statistics.median(times[4:]):,.1f} tokens/s", flush=True)
    batch = Batch.of([(tokens[n : n + 1], n, pages)], [0])
    program.run(batch, state)
    with program.timed() as spent:
        program.run(batch, state)
    by_op: dict[str, float] = {}
    for step, ns in zip(program.running_plan.steps, spent, strict=True):
        by_op[step.op] = by_op.get(step.op, 0) + ns / 1e3
    print(
        "us of one token by op:",
        ", ".join(f"{op} {us:,.0f}" for op, us in sorted(by_op.items(), key=lambda it: -it[1])),
    )


def main() -> int:
    """Runs all; 1 if a bit differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=140, help="of the prompt whose bits are compared")
    parser.add_argument("--prompts", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--anyway", action="store_true", help="go on if the probe finds other bits")
    options = parser.parse_args()
    if options.anyway:
        go_anyway()
    show_devices()
    show_device(options.device)
    file = open_gguf(options.model)
    plan = trace(file)
    n_vocab = plan.values[plan.steps[-1].output].width
    tokens = np.random.default_rng(5).integers(0, n_vocab, options.tokens + 3)
    chosen = Options(kv_type=options.kv_type, device=f"vulkan:{options.device}")
    start = time.perf_counter()
    program = get_backend("vulkan").compile(plan, file.tensors, chosen)
    other = get_backend("cpu").compile(plan, file.tensors, Options(kv_type=options.kv_type))
    print(
        f"{options.model.name} on {program.about.device}: compiled in {time.perf_counter() - start:.1f} s", flush=True
    )
    n_wrong = compare(program, other, tokens, options.tokens)
    if options.prompts:
        bench(program, n_vocab, options.prompts)
    program.close()
    return int(n_wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
