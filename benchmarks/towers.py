"""How long towers of real shape take for one picture: CLIP-L at 336 and SigLIP at 896 pixels, random weights in F16.

    python benchmarks/towers.py [--threads 2] [--layers N] [--only siglip] [--peer PYTHON]

Prints seconds of processor time and of the clock, and the share of each op. `--peer` names a Python that has xllamacpp:
llama.cpp then encodes the same picture with the same file, beside a tiny text model of random weights. Other programs
on the machine change the clock's seconds, hardly those of the processor.
"""

from __future__ import annotations

import argparse
import base64
import json
import resource
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np

from woolly.engine.seeing import open_tower
from woolly.gguf import GGUFWriter
from woolly.quant import GGMLType
from woolly.runtime import Options
from woolly.senses import read_picture
from woolly.senses.preparing import prepare

TEXT = 64  # width of the text model: its own work does not count


@dataclass(frozen=True)
class Shape:
    """A tower."""

    name: str
    projector: str
    size: int
    width: int
    n_layers: int
    heads: int
    ffn: int
    patch: int = 14

    @property
    def n_patches(self) -> int:
        """Patches of a picture."""
        return (self.size // self.patch) ** 2


SHAPES = (
    Shape("clip-l", "mlp", 336, 1024, 23, 16, 4096),
    Shape("siglip", "gemma3", 896, 1152, 27, 16, 4304),
)


def write(shape: Shape, path: Path) -> Path:
    """Writes a tower of random weights and returns its path."""
    random, writer = np.random.default_rng(0), GGUFWriter(path)
    keys = {
        "has_vision_encoder": True, "has_text_encoder": False, "projector_type": shape.projector, "use_gelu": True,
        "vision.image_size": shape.size, "vision.patch_size": shape.patch, "vision.embedding_length": shape.width,
        "vision.feed_forward_length": shape.ffn, "vision.block_count": shape.n_layers, "vision.projection_dim": TEXT,
        "vision.attention.head_count": shape.heads, "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.image_mean": [0.5] * 3, "vision.image_std": [0.5] * 3,
    }  # fmt: skip
    if shape.projector == "mlp":
        keys["vision.feature_layer"] = [shape.n_layers]
    writer.add("general.architecture", "clip")
    for key, value in keys.items():
        writer.add(f"clip.{key}", value)

    def matrix(name: str, rows: int, columns: int) -> None:
        values = random.standard_normal((rows, columns), np.float32) * columns**-0.5
        writer.add_tensor(f"{name}.weight", values, GGMLType.F16)
        writer.add_tensor(f"{name}.bias", np.zeros(rows, np.float32), GGMLType.F32)

    def vectors(name: str, n: int) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(n, np.float32), GGMLType.F32)
        writer.add_tensor(f"{name}.bias", np.zeros(n, np.float32), GGMLType.F32)

    width, has_class = shape.width, shape.projector == "mlp"
    filters = random.standard_normal((width, 3, shape.patch, shape.patch), np.float32) * 0.04
    writer.add_tensor("v.patch_embd.weight", filters, GGMLType.F16)
    table = 0.1 * random.standard_normal((shape.n_patches + has_class, width), np.float32)
    writer.add_tensor("v.position_embd.weight", table, GGMLType.F32)
    for i in range(shape.n_layers):
        for name in ("ln1", "ln2"):
            vectors(f"v.blk.{i}.{name}", width)
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            matrix(f"v.blk.{i}.{name}", width, width)
        matrix(f"v.blk.{i}.ffn_up", shape.ffn, width)
        matrix(f"v.blk.{i}.ffn_down", width, shape.ffn)
    if has_class:
        writer.add_tensor("v.class_embd", np.zeros(width, np.float32), GGMLType.F32)
        vectors("v.pre_ln", width)
        matrix("mm.0", TEXT, width)
        matrix("mm.2", TEXT, TEXT)
    else:
        writer.add_tensor("v.patch_embd.bias", np.zeros(width, np.float32), GGMLType.F32)
        vectors("v.post_ln", width)
        writer.add_tensor("mm.soft_emb_norm.weight", np.ones(width, np.float32), GGMLType.F32)
        writer.add_tensor("mm.input_projection.weight", np.full((width, TEXT), 0.01, np.float32), GGMLType.F32)
    writer.write()
    return path


def measure(shape: Shape, path: Path, threads: int, png: bytes) -> None:
    """Prints what Woolly takes for a picture, the second time: the first packs the weights."""
    tower = open_tower(path, "cpu", Options(threads=threads))
    (piece,) = prepare(read_picture(png), tower.settings).pieces
    tower.rows(piece)
    (program,) = tower.programs  # a tower for pictures has one stage
    with program.timed() as times:
        begin, used = time.perf_counter(), _used()
        tower.rows(piece)
        clock, used = time.perf_counter() - begin, _used() - used
    by_op: Counter[str] = Counter()
    for step, one in zip(program.running_plan.steps, times, strict=True):
        by_op[step.op] += one
    shares = ", ".join(f"{op} {one / sum(times):.0%}" for op, one in by_op.most_common(5))
    print(f"{shape.name}: woolly {used:.1f} s of the processor, {clock:.1f} s by the clock ({shares})", flush=True)
    tower.close()


def _used() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# llama.cpp is asked in a process of its own; the second picture counts, less what the text model alone takes.
PEER = """
import json, resource, sys, time
import xllamacpp
text, tower, threads, urls = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.load(open(sys.argv[4]))
params = xllamacpp.CommonParams()
params.model.path, params.mmproj.path, params.n_ctx, params.n_parallel = text, tower, 2048, 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
params.warmup = False
server = xllamacpp.Server(params)
def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
for url in urls:
    parts = [{"type": "text", "text": "a"}] + ([{"type": "image_url", "image_url": {"url": url}}] if url else [])
    begin, cpu = time.perf_counter(), used()
    server.handle_chat_completions({"messages": [{"role": "user", "content": parts}], "max_tokens": 1})
    print("took", used() - cpu, time.perf_counter() - begin, flush=True)
"""


def ask_peer(shape: Shape, path: Path, peer: str, threads: int, pngs: list[bytes], folder: Path) -> None:
    """Prints what llama.cpp takes for the same picture."""
    from tests.cases.tiny import TINY, write_tiny

    text = write_tiny(TINY["llama"], folder / "text.gguf")
    urls = ["", *(f"data:image/png;base64,{base64.b64encode(png).decode()}" for png in pngs)]
    asked = folder / "urls.json"
    asked.write_text(json.dumps(urls))
    command = [peer, "-c", PEER, str(text), str(path), str(threads), str(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    took = [list(map(float, line.split()[1:])) for line in done.stdout.splitlines() if line.startswith("took")]
    if len(took) < len(urls):
        print(f"{shape.name}: llama.cpp failed: {done.stderr.strip().splitlines()[-1:]}")
        return
    print(f"{shape.name}: llama.cpp {took[-1][0]:.1f} s of the processor, {took[-1][1]:.1f} s by the clock", flush=True)


def main() -> None:
    """Measures each tower."""
    from PIL import Image

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=[shape.name for shape in SHAPES])
    parser.add_argument("--layers", type=int, help="as many layers in place of all")
    parser.add_argument("--peer", help="a Python that has xllamacpp")
    given = parser.parse_args()
    for shape in SHAPES:
        if given.only not in (None, shape.name):
            continue
        if given.layers:
            shape = Shape(**{**vars(shape), "n_layers": given.layers})
        pngs = []
        for seed in (1, 2):
            noise = np.random.default_rng(seed).integers(0, 256, (shape.size, shape.size, 3), np.uint8)
            out = BytesIO()
            Image.fromarray(noise).save(out, "PNG")
            pngs.append(out.getvalue())
        with tempfile.TemporaryDirectory() as name:
            path = write(shape, Path(name, f"mmproj-{shape.name}.gguf"))
            measure(shape, path, given.threads, pngs[0])
            if given.peer:
                ask_peer(shape, path, given.peer, given.threads, pngs, Path(name))


if __name__ == "__main__":
    main()
