"""Texts per second of an encoder's shape, beside llama.cpp on the same file, in turn.

    python -m benchmarks.encoders minilm --peer path/to/python-with-llama-cpp --texts 1000

Weights are random: speed depends on shapes and types. Each word of the texts is one token of the file's vocabulary, so
that both engines compute the same rows. With --torch, a python that has torch and transformers runs BERT of that shape
in f32, its texts sorted by length and padded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from woolly.gguf import GGUFWriter
from woolly.quant import GGMLType


@dataclass(frozen=True)
class Shape:
    """A BERT by its numbers."""

    layers: int
    width: int
    ffn: int
    heads: int
    context: int
    tokens: int
    pooling: int


SHAPES = {
    "minilm": Shape(6, 384, 1536, 12, 512, 30522, 1),
    "bge-small": Shape(12, 384, 1536, 12, 512, 30522, 2),
    "bge-m3": Shape(24, 1024, 4096, 16, 8192, 30522, 2),  # with BERT's vocabulary: rows of the table cost nothing
}

# Runs in another python: reads texts, writes seconds of each round.
_PEER = """
import json, sys, time
import llama_cpp
path, texts, threads, batch, alone = json.load(sys.stdin)
model = llama_cpp.Llama(path, embedding=True, n_ctx=batch, n_batch=batch, n_ubatch=batch, n_threads=threads,
                        n_threads_batch=threads, verbose=False)
model.embed(texts[:20])
start = time.perf_counter()
for some in [[text] for text in texts] if alone else [texts]:
    model.embed(some)
print(json.dumps(time.perf_counter() - start))
"""
_TORCH = """
import json, sys, time
import torch, transformers
shape, lengths, threads = json.load(sys.stdin)
torch.set_num_threads(threads)
names = {"tokens": "vocab_size", "width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
         "ffn": "intermediate_size", "context": "max_position_embeddings"}
config = transformers.BertConfig(**{names[key]: shape[key] for key in names})
model = transformers.BertModel(config, add_pooling_layer=False).eval()
lengths = sorted(lengths)
start = time.perf_counter()
with torch.no_grad():
    for i in range(0, len(lengths), 32):
        part = lengths[i : i + 32]
        mask = torch.zeros(len(part), max(part), dtype=torch.long)
        for row, n in zip(mask, part):
            row[:n] = 1
        model(torch.ones_like(mask), mask).last_hidden_state.mean(1)
print(json.dumps(time.perf_counter() - start))
"""


def write(shape: Shape, type: GGMLType, path: Path) -> None:
    """Writes the file: random matrices of one type, and words w0, w1, ... as vocabulary."""
    rng, writer = np.random.default_rng(0), GGUFWriter(path)
    writer.add("general.architecture", "bert")
    numbers = {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.width,
        "feed_forward_length": shape.ffn,
        "attention.head_count": shape.heads,
        "attention.layer_norm_epsilon": 1e-12,
        "attention.causal": False,
        "pooling_type": shape.pooling,
    }
    for key, value in numbers.items():
        writer.add(f"bert.{key}", value)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words = [f"\u2581w{i}" for i in range(shape.tokens - len(special))]
    writer.add("tokenizer.ggml.model", "bert")
    writer.add("tokenizer.ggml.pre", "jina-v2-en")
    writer.add("tokenizer.ggml.tokens", special + words)
    writer.add("tokenizer.ggml.token_type", np.array([3] * len(special) + [1] * len(words), np.int32))
    writer.add("tokenizer.ggml.token_type_count", np.uint32(1))
    writer.add("bert.token_type_count", 1)
    for i, name in enumerate(("padding", "unknown", "cls", "seperator")):
        writer.add(f"tokenizer.ggml.{name}_token_id", i)
    writer.add("tokenizer.ggml.bos_token_id", 2)
    writer.add("tokenizer.ggml.eos_token_id", 3)

    def matrix(name: str, rows: int, columns: int, bias: bool = True) -> None:
        values = rng.standard_normal((rows, columns), np.float32) * np.float32(columns**-0.5)
        writer.add_tensor(f"{name}.weight", values, type)
        if bias:
            writer.add_tensor(f"{name}.bias", np.zeros(rows, np.float32), GGMLType.F32)

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(shape.width, np.float32), GGMLType.F32)
        writer.add_tensor(f"{name}.bias", np.zeros(shape.width, np.float32), GGMLType.F32)

    matrix("token_embd", shape.tokens, shape.width, bias=False)
    table = rng.standard_normal((shape.context, shape.width)).astype(np.float32)
    writer.add_tensor("position_embd.weight", table, GGMLType.F32)
    writer.add_tensor("token_types.weight", np.zeros((1, shape.width), np.float32), GGMLType.F32)
    norm("token_embd_norm")
    for i in range(shape.layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"blk.{i}.{name}", shape.width, shape.width)
        matrix(f"blk.{i}.ffn_up", shape.ffn, shape.width)
        matrix(f"blk.{i}.ffn_down", shape.width, shape.ffn)
        norm(f"blk.{i}.attn_output_norm")
        norm(f"blk.{i}.layer_output_norm")
    writer.write()


def _run(python: str, script: str, data: object) -> float:
    done = subprocess.run([python, "-c", script], input=json.dumps(data), capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Prints one line per engine and round, then the medians."""
    from woolly import LLM

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--type", default="Q8_0", help="of the matrices (Q8_0)")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer", help="a python that has llama-cpp-python")
    parser.add_argument("--peer-batch", type=int, default=512, help="rows of one batch of llama.cpp")
    parser.add_argument("--peer-alone", action="store_true", help="give llama.cpp one text at a time")
    parser.add_argument("--torch", help="a python that has torch and transformers")
    args = parser.parse_args()
    rng, shape = np.random.default_rng(1), SHAPES[args.shape]
    lengths = rng.integers(20, 401, args.texts).tolist()  # with [CLS] and [SEP]
    texts = [" ".join(f"w{i}" for i in rng.integers(0, shape.tokens - 4, n - 2)) for n in lengths]
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.gguf")
        write(shape, GGMLType[args.type], path)
        with LLM(path, threads=args.threads) as llm:
            llm.embed(texts[:20])
            for _ in range(args.rounds):
                start = time.perf_counter()
                llm.embed(texts)
                seconds.setdefault("woolly", []).append(time.perf_counter() - start)
                if args.peer:
                    data = [str(path), texts, args.threads, args.peer_batch, args.peer_alone]
                    seconds.setdefault("llama.cpp", []).append(_run(args.peer, _PEER, data))
    if args.torch:
        seconds["torch f32"] = [_run(args.torch, _TORCH, [vars(shape), lengths, args.threads])]
    for name, rounds in seconds.items():
        median = float(np.median(rounds))
        figures = " ".join(f"{one:.2f}" for one in rounds)
        print(f"{name}: {len(texts) / median:.0f} texts/s, {sum(lengths) / median:.0f} tokens/s ({figures} s)")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
