"""Time of vision towers of real shape: CLIP-L at 336 and SigLIP at 896 pixels, Qwen 2.5 VL at a megapixel.

    python benchmarks/towers.py [--threads 2] [--types F16,Q8_0] [--rounds 3] [--layers N] [--only siglip]
                                [--backend cuda] [--peer PYTHON] [--torch PYTHON]

Weights are random. Prints medians of the seconds of the clock and of the processor, and the share of each op. `--peer`
names a Python that has llama-cpp-python: llama.cpp (mtmd) then encodes images of that size with the same file, in
turn with Woolly, beside a tiny text model of random weights. `--torch` names one that has torch: a forward of the same
shape in 16 bits on the same device, in turn, too, of matrix products and attention alone. Other programs on the
machine change the clock's seconds, hardly those of the processor.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the tiny text models of the tests

from woolly.engine.multimodal import Tower, open_tower
from woolly.gguf import GGUFWriter
from woolly.multimodal import EncoderInput
from woolly.quant import GGMLType
from woolly.quant.encode import quantize
from woolly.runtime import Options

TEXT = 64  # width of the text model: its own work does not count
Took = tuple[float, float]  # seconds of the clock, and of the processor


@dataclass(frozen=True)
class Shape:
    """A tower, and the image that it sees."""

    name: str
    projector: str
    size: tuple[int, int]  # pixels: width, height
    width: int
    n_layers: int
    heads: int
    ffn: int
    patch: int = 14
    period: int = 0  # each layer of this number sees all, the others windows; 0: all see all

    @property
    def n_patches(self) -> int:
        """Patches of an image."""
        return self.size[0] // self.patch * (self.size[1] // self.patch)


SHAPES = (
    Shape("clip-l", "mlp", (336, 336), 1024, 23, 16, 4096),
    Shape("siglip", "gemma3", (896, 896), 1152, 27, 16, 4304),
    Shape("qwen2.5vl", "qwen2.5vl_merger", (1036, 1008), 1280, 32, 16, 3420, period=8),
)


def write(shape: Shape, path: Path, type: GGMLType) -> Path:
    """Writes a tower of random weights and returns its path. Rows that are no multiple of a block stay in F16."""
    random, writer = np.random.default_rng(0), GGUFWriter(path)
    is_qwen, is_clip = shape.period > 0, shape.projector == "mlp"
    keys = {
        "has_vision_encoder": True, "has_text_encoder": False, "projector_type": shape.projector,
        "use_silu" if is_qwen else "use_gelu": True,
        "vision.image_size": 560 if is_qwen else shape.size[0], "vision.patch_size": shape.patch,
        "vision.embedding_length": shape.width, "vision.feed_forward_length": shape.ffn,
        "vision.block_count": shape.n_layers, "vision.projection_dim": TEXT,
        "vision.attention.head_count": shape.heads, "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.image_mean": [0.5] * 3, "vision.image_std": [0.5] * 3,
    }  # fmt: skip
    if is_qwen:
        keys["vision.n_wa_pattern"] = shape.period
    writer.add("general.architecture", "clip")
    for key, value in keys.items():
        writer.add(f"clip.{key}", value)

    made: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}

    def matrix(name: str, rows: int, columns: int, bias: bool = True) -> None:
        own = type if columns % 32 == 0 else GGMLType.F16
        if (rows, columns) not in made:  # layers share their numbers, each in bytes of its own
            values = random.standard_normal((rows, columns), np.float32) * columns**-0.5
            made[rows, columns] = quantize(values, own)
        writer.add_raw_tensor(f"{name}.weight", own, (rows, columns), made[rows, columns])
        if bias:
            writer.add_tensor(f"{name}.bias", np.zeros(rows, np.float32), GGMLType.F32)

    def vectors(name: str, n: int) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(n, np.float32), GGMLType.F32)
        if not is_qwen:
            writer.add_tensor(f"{name}.bias", np.zeros(n, np.float32), GGMLType.F32)

    width = shape.width
    for end in ("", ".1") if is_qwen else ("",):
        filters = random.standard_normal((width, 3, shape.patch, shape.patch), np.float32) * 0.04
        writer.add_tensor(f"v.patch_embd.weight{end}", filters, GGMLType.F16)
    if not is_qwen:
        table = 0.1 * random.standard_normal((shape.n_patches + is_clip, width), np.float32)
        writer.add_tensor("v.position_embd.weight", table, GGMLType.F32)
    for i in range(shape.n_layers):
        for name in ("ln1", "ln2"):
            vectors(f"v.blk.{i}.{name}", width)
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            matrix(f"v.blk.{i}.{name}", width, width)
        for name in ("ffn_up", "ffn_gate") if is_qwen else ("ffn_up",):
            matrix(f"v.blk.{i}.{name}", shape.ffn, width)
        matrix(f"v.blk.{i}.ffn_down", width, shape.ffn)
    if is_clip:
        writer.add_tensor("v.class_embd", np.zeros(width, np.float32), GGMLType.F32)
        vectors("v.pre_ln", width)
        matrix("mm.0", TEXT, width)
        matrix("mm.2", TEXT, TEXT)
    elif is_qwen:
        vectors("v.post_ln", width)
        matrix("mm.0", 4 * width, 4 * width)
        matrix("mm.2", TEXT, 4 * width)
    else:
        writer.add_tensor("v.patch_embd.bias", np.zeros(width, np.float32), GGMLType.F32)
        vectors("v.post_ln", width)
        writer.add_tensor("mm.soft_emb_norm.weight", np.ones(width, np.float32), GGMLType.F32)
        writer.add_tensor("mm.input_projection.weight", np.full((width, TEXT), 0.01, np.float32), GGMLType.F32)
    writer.write()
    return path


def timed(work: Callable[[], object]) -> Took:
    """Return the seconds of a call, in this process."""
    begin, used = time.perf_counter(), _used()
    work()
    return time.perf_counter() - begin, _used() - used


def _used() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def shares(tower: Tower, work: Callable[[], object]) -> str:
    """The share of each op of a tower's plan. A tower for images has one stage."""
    (program,) = tower.programs
    with program.timed() as times:
        work()
    by_op: Counter[str] = Counter()
    for step, one in zip(program.running_plan.steps, times, strict=True):
        by_op[step.op] += one
    return ", ".join(f"{op} {one / sum(times):.0%}" for op, one in by_op.most_common(5))


# Asked in a process of its own: a line of input is an image, and the answer the seconds that its encoding took.
PEER = """
import ctypes, random, resource, sys, time
import llama_cpp
from llama_cpp import mtmd_cpp as mtmd
text, tower = sys.argv[1].encode(), sys.argv[2].encode()
threads, width, height = (int(one) for one in sys.argv[3:6])
llama_cpp.llama_backend_init()
model = llama_cpp.llama_model_load_from_file(text, llama_cpp.llama_model_default_params())
params = mtmd.mtmd_context_params_default()
params.use_gpu = params.warmup = params.print_timings = False
params.n_threads = threads
context = mtmd.mtmd_init_from_file(tower, model, params)
def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
for line in sys.stdin:
    pixels = random.Random(line).randbytes(3 * width * height)
    bitmap = mtmd.mtmd_bitmap_init(width, height, (ctypes.c_uint8 * len(pixels)).from_buffer_copy(pixels))
    chunks, marker = mtmd.mtmd_input_chunks_init(), mtmd.mtmd_default_marker()
    asked = mtmd.mtmd_input_text(marker, len(marker), True, True)
    if mtmd.mtmd_tokenize(context, chunks, ctypes.byref(asked), (ctypes.c_void_p * 1)(bitmap), 1):
        sys.exit("the image was refused")
    all_chunks = [mtmd.mtmd_input_chunks_get(chunks, i) for i in range(mtmd.mtmd_input_chunks_size(chunks))]
    (chunk,) = [one for one in all_chunks if mtmd.mtmd_input_chunk_get_type(one) == mtmd.MTMD_INPUT_CHUNK_TYPE_IMAGE]
    begin, cpu = time.perf_counter(), used()
    if mtmd.mtmd_encode_chunk(context, chunk):
        sys.exit("the image was not encoded")
    print("took", time.perf_counter() - begin, used() - cpu, flush=True)
"""

# The same products and attention by torch, without norms and activations, which are the smaller part.
TORCH = """
import resource, sys, time
import torch
device, rows, width, layers, heads, ffn, gated, period, threads = (
    sys.argv[1], *(int(one) for one in sys.argv[2:10]))
torch.set_num_threads(threads)
type = torch.float16 if device == "cuda" else torch.bfloat16
make = lambda n, m: torch.randn(n, m, device=device, dtype=type) * m ** -0.5
blocks = [[make(3 * width, width), make(width, width), make((1 + gated) * ffn, width), make(width, ffn)]
          for _ in range(min(layers, 4))]
window = 64
def attend(q, k, v, is_all):
    if is_all:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)
    cut = rows // window * window
    q, k, v = (one[:, :, :cut].reshape(heads, -1, window, width // heads).transpose(0, 1) for one in (q, k, v))
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(1, heads, cut, -1)
    return torch.nn.functional.pad(y, (0, 0, 0, rows - cut))
@torch.inference_mode()
def forward():
    x = torch.randn(rows, width, device=device, dtype=type)
    for i in range(layers):
        qkv, out, up, down = blocks[i % len(blocks)]
        q, k, v = ((x @ qkv.T).view(rows, 3, heads, -1).permute(1, 2, 0, 3)[:, None])
        y = attend(q, k, v, not period or (i + 1) % period == 0)
        x = x + y[0].transpose(0, 1).reshape(rows, width) @ out.T
        h = x @ up.T
        h = torch.nn.functional.silu(h[:, :ffn]) * h[:, ffn:] if gated else torch.nn.functional.gelu(h)
        x = x + h @ down.T
        x = x / x.float().norm(dim=1, keepdim=True).to(x.dtype)
    if device == "cuda":
        torch.cuda.synchronize()
def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
for line in sys.stdin:
    begin, cpu = time.perf_counter(), used()
    forward()
    print("took", time.perf_counter() - begin, used() - cpu, flush=True)
"""


@contextmanager
def asked(command: list[str]) -> Iterator[Callable[[str], Took]]:
    """A process that is asked line by line."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None and process.stdout is not None

    def ask(line: str) -> Took:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        for reply in process.stdout:
            if reply.startswith("took"):
                clock, used = map(float, reply.split()[1:])
                return clock, used
        raise RuntimeError("the other program ended")

    try:
        yield ask
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


def measure(shape: Shape, path: Path, given: argparse.Namespace, folder: Path) -> None:
    """Prints what each takes for an image, in turn. The first, which packs weights, does not count."""
    tower = open_tower(path, given.backend, Options(threads=given.threads))
    inputs = [_noise(shape, seed) for seed in range(given.rounds + 1)]
    seeds = [str(seed) for seed in range(len(inputs))]
    askers: dict[str, Callable[[int], Took]] = {"woolly": lambda i: timed(lambda: tower.rows(inputs[i]))}
    commands = {}
    if given.peer:
        own = [_text(shape, folder), path, given.threads, *shape.size]
        commands["llama.cpp"] = ([given.peer, "-c", PEER, *map(str, own)], seeds)
    if given.torch:
        device = "cuda" if given.backend == "cuda" else "cpu"
        numbers = (shape.n_patches, shape.width, shape.n_layers, shape.heads, shape.ffn, int(shape.period > 0))
        commands["torch"] = (
            [given.torch, "-c", TORCH, device, *map(str, (*numbers, shape.period, given.threads))],
            seeds,
        )
    took: dict[str, list[Took]] = {}
    with _all_asked(commands) as others:
        askers |= others
        for i in range(given.rounds + 1):
            for name, ask in list(askers.items()):
                try:
                    one = ask(i)
                except RuntimeError as error:
                    print(f"{shape.name}: {name} is left out: {error}")
                    del askers[name]
                    continue
                if i:
                    took.setdefault(name, []).append(one)
    where = tower.programs[0].about.place
    for name, all_took in took.items():
        clock, used = (median(one[i] for one in all_took) for i in (0, 1))
        ratio = "" if name == "woolly" else f", {clock / median(one[0] for one in took['woolly']):.2f} times Woolly's"
        print(f"{path.stem}, {where}: {name} {clock:.3f} s by the clock, {used:.2f} s of the processor{ratio}")
    print(f"{path.stem}: {shares(tower, lambda: tower.rows(inputs[0]))}", flush=True)
    tower.close()


@contextmanager
def _all_asked(commands: dict[str, tuple[list[str], list[str]]]) -> Iterator[dict[str, Callable[[int], Took]]]:
    if not commands:
        yield {}
        return
    name, (command, lines) = next(iter(commands.items()))
    with asked(command) as ask, _all_asked({k: v for k, v in commands.items() if k != name}) as others:
        yield {name: lambda i: ask(lines[i])} | others


def _text(shape: Shape, folder: Path) -> Path:
    from tests.cases.tiny import TINY, write_tiny

    tiny = TINY["llama"]
    if shape.period:
        tiny = replace(TINY["qwen2"], architecture="qwen2vl", extra={"rope.dimension_sections": [2, 3, 3, 0]})
    return write_tiny(tiny, folder / "text.gguf")


def _noise(shape: Shape, seed: int) -> EncoderInput:
    """An image as a tower gets it: the time of its preparation is not counted, here and there."""
    grid = (1, shape.size[1] // shape.patch, shape.size[0] // shape.patch)
    return EncoderInput(
        np.random.default_rng(seed).uniform(-1, 1, (shape.n_patches, 3 * shape.patch**2)).astype("f4"), grid
    )


def main() -> None:
    """Measures each tower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--types", default="F16,Q8_0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=[shape.name for shape in SHAPES])
    parser.add_argument("--layers", type=int, help="as many layers in place of all")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--peer", help="a Python that has llama-cpp-python")
    parser.add_argument("--torch", help="a Python that has torch")
    given = parser.parse_args()
    for shape in SHAPES:
        if given.only not in (None, shape.name):
            continue
        shape = replace(shape, n_layers=given.layers or shape.n_layers)
        for type in given.types.split(","):
            with tempfile.TemporaryDirectory() as name:
                path = write(shape, Path(name, f"{shape.name}-{shape.n_layers}-{type}.gguf"), GGMLType[type])
                measure(shape, path, given, Path(name))


if __name__ == "__main__":
    main()
