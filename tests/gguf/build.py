"""GGUF files put together byte by byte: what no writer would write, and what the fuzzer starts from."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from woolly.gguf import GGUFWriter
from woolly.gguf.values import ValueType
from woolly.quant import GGMLType


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def entry(key: str | bytes, type: int, payload: bytes) -> bytes:
    return string(key) + struct.pack("<I", type) + payload


def array(element_type: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", element_type, count) + payload


def tensor(name: str, dims: Sequence[int], type: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type, offset)


def gguf_bytes(
    entries: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_entries: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    header = magic + struct.pack(
        "<IQQ",
        version,
        len(tensors) if n_tensors is None else n_tensors,
        len(entries) if n_entries is None else n_entries,
    )
    header += b"".join(entries) + b"".join(tensors)
    if tensors:
        header += bytes(-len(header) % alignment)
    return header + data


def write_sample(path: Path, *, version: int = 3, alignment: int = 32) -> Path:
    """A small file with every kind of value and a few tensors: the fuzzer's own seed."""
    random = np.random.default_rng(7)
    writer = GGUFWriter(path, version=version, alignment=alignment)
    writer.add("general.architecture", "llama")
    for type in ValueType:
        if type.dtype is not None and type is not ValueType.BOOL:
            writer.add(f"scalar.{type.name.lower()}", 3, type)
            writer.add(f"array.{type.name.lower()}", [1, 2, 3], type)
    writer.add("scalar.bool", True)
    writer.add("array.bool", [True, False])
    writer.add("array.nested", [["a", "b"], [1.5], [[1], [2, 3]]])
    writer.add("array.empty", [], ValueType.STRING)
    writer.add("tokenizer.ggml.tokens", ["<s>", "", "\udcff", "é", "▁the", "🦙"])
    writer.add_tensor("token_embd.weight", random.standard_normal((3, 32), dtype=np.float32), GGMLType.Q4_0)
    writer.add_tensor("output_norm.weight", random.standard_normal(5, dtype=np.float32))
    writer.add_tensor("blk.0.attn_q.weight", random.standard_normal((2, 2, 256), dtype=np.float32), GGMLType.Q6_K)
    writer.add_raw_tensor("blk.0.ffn_up.weight", GGMLType.Q1_0, (1, 256), bytes(36))
    writer.add_raw_tensor("scalar", GGMLType.I8, (), b"\x05")
    writer.write()
    return path
