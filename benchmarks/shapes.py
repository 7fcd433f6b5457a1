"""Writes a GGUF file with the shapes and weight types of a published model, and random weights.

    python -m benchmarks.shapes qwen3-30b-a3b SmolLM2-135M-Instruct.Q4_1.gguf out.gguf --layers 12

Speed and memory depend on shapes and types, not on what the weights say. The second file lends its vocabulary.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import layers
from woolly._native import quantize_rows
from woolly.gguf import GGUFWriter, open_gguf
from woolly.quant import GGMLType

_POOL = 64  # distinct rows of a tensor: encoding random rows of every tensor would take minutes
_SLAB = 1 << 14  # rows written at a time


@dataclass(frozen=True)
class Shape:
    """A model by its numbers."""

    architecture: str
    layers: int
    width: int
    ffn: int  # of an expert, if there are experts
    heads: int
    kv_heads: int
    head_dim: int
    rope_base: float
    experts: int = 0
    used: int = 0
    is_tied: bool = True
    has_qk_norm: bool = False
    expert_type: GGMLType | None = None  # None: the scheme's
    short_types: tuple[GGMLType, GGMLType] = (GGMLType.Q8_0, GGMLType.Q8_0)  # of Q4_K_M, for rows without blocks of 256
    window: int = 0
    keys: dict[str, Any] = field(default_factory=dict)
    layer: Callable[[Any, int], dict[str, tuple[int, ...]]] | None = None  # tensors of a layer; None: the usual ones


_GRANITE = {"attention.scale": 0.0078125, "embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 16.0}

_SHORT = (GGMLType.Q5_0, GGMLType.Q8_0)  # as llama.cpp has it, in place of Q4_K and Q6_K

SHAPES = {
    "granite-3.3-8b": Shape("granite", 40, 4096, 12800, 32, 8, 128, 1e7, keys=_GRANITE),
    "granite-3.3-2b": Shape(
        "granite", 40, 2048, 8192, 32, 8, 64, 1e7, keys={**_GRANITE, "attention.scale": 0.015625, "logit_scale": 8.0}
    ),
    "llama-3.2-1b": Shape("llama", 16, 2048, 8192, 32, 8, 64, 5e5),
    "llama-3.1-8b": Shape("llama", 32, 4096, 14336, 32, 8, 128, 5e5, is_tied=False),
    "smollm2-135m": Shape("llama", 30, 576, 1536, 9, 3, 64, 1e5, short_types=_SHORT),
    "qwen2.5-0.5b": Shape(
        "qwen2", 24, 896, 4864, 14, 2, 64, 1e6, layer=layers.qwen2, short_types=_SHORT
    ),
    "qwen2.5-1.5b": Shape("qwen2", 28, 1536, 8960, 12, 2, 128, 1e6, layer=layers.qwen2),
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 3072, 16, 8, 128, 1e6, has_qk_norm=True),
    "qwen3-4b": Shape("qwen3", 36, 2560, 9728, 32, 8, 128, 1e6, has_qk_norm=True),
    "qwen3-30b-a3b": Shape(
        "qwen3moe", 48, 2048, 768, 32, 4, 128, 1e6, experts=128, used=8, is_tied=False, has_qk_norm=True,
        keys={"expert_feed_forward_length": 768},
    ),
    "gpt-oss-20b": Shape(
        "gpt-oss", 24, 2880, 2880, 64, 8, 64, 150000.0, experts=32, used=4, is_tied=False,
        expert_type=GGMLType.MXFP4, window=128, keys={"expert_feed_forward_length": 2880},
    ),
    "gemma3-12b": Shape(
        "gemma3", 48, 3840, 15360, 16, 8, 256, 1e6, window=1024, layer=layers.gemma3,
        keys={"rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "context_length": 131072},
    ),
    "qwen3.5-4b": Shape(
        "qwen35", 32, 2560, 9216, 16, 4, 256, 1e7, layer=layers.qwen35,
        keys={
            "full_attention_interval": 4, "rope.dimension_count": 64, "rope.dimension_sections": [11, 11, 10, 0],
            "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 16, "ssm.time_step_rank": 32,
            "ssm.inner_size": 4096,
        },
    ),
    # The published one has no low rank of q, but llama.cpp opens such files with 26 or 27 layers alone.
    "deepseek-v2-lite": Shape(
        "deepseek2", 27, 2048, 10944, 16, 1, 576, 1e4, experts=64, used=6, is_tied=False, layer=layers.latent,
        keys={
            "attention.q_lora_rank": 1536, "attention.kv_lora_rank": 512,
            "attention.key_length_mla": 192, "attention.value_length_mla": 128,
            "attention.value_length": 512, "rope.dimension_count": 64, "leading_dense_block_count": 1,
            "expert_feed_forward_length": 1408, "expert_shared_count": 2, "expert_weights_scale": 1.0,
            "rope.scaling.type": "yarn", "rope.scaling.factor": 40.0, "rope.scaling.original_context_length": 4096,
            "rope.scaling.yarn_log_multiplier": 0.0707,
        },
    ),
}  # fmt: skip

_PLAIN = ("Q2_K", "Q3_K", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0", "F16", "BF16")  # one type for all
_SCHEMES = {"Q4_K_M": GGMLType.Q4_K} | {name: GGMLType[name] for name in _PLAIN}


class Maker:
    """Writes one shape."""

    def __init__(self, path: Path, shape: Shape, scheme: str, seed: int) -> None:
        self._writer = GGUFWriter(path)
        self._shape = shape
        self._scheme = scheme
        self._rng = np.random.default_rng(seed)
        self._pools: dict[tuple[GGMLType, int], npt.NDArray[np.uint8]] = {}

    def write(self, vocabulary: Path) -> None:
        """Writes the file, with the vocabulary of another one."""
        self._metadata()
        with open_gguf(vocabulary) as file:
            for key in file.metadata:
                if key.startswith("tokenizer."):
                    self._writer.add_raw(key, file.metadata.raw(key))
            self._tensors(len(file.metadata["tokenizer.ggml.tokens"]))
            self._writer.write()

    def _metadata(self) -> None:
        shape, a = self._shape, self._shape.architecture
        self._writer.add("general.architecture", a)
        self._writer.add("general.name", f"{a} of random weights, {self._scheme}")
        numbers = {
            "block_count": shape.layers,
            "context_length": 32768,
            "embedding_length": shape.width,
            "feed_forward_length": shape.ffn,
            "attention.head_count": shape.heads,
            "attention.head_count_kv": shape.kv_heads,
            "attention.key_length": shape.head_dim,
            "attention.value_length": shape.head_dim,
            "rope.dimension_count": shape.head_dim,
            "rope.freq_base": shape.rope_base,
            "attention.layer_norm_rms_epsilon": 1e-5,
            **({"expert_count": shape.experts, "expert_used_count": shape.used} if shape.experts else {}),
            **({"attention.sliding_window": shape.window} if shape.window else {}),
            **shape.keys,
        }
        for key, value in numbers.items():
            self._writer.add(f"{a}.{key}", value)

    def _tensors(self, n_tokens: int) -> None:
        shape, is_oss = self._shape, self._shape.architecture == "gpt-oss"
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self._matrix("token_embd", n_tokens, shape.width)
        for i in range(shape.layers):
            block = f"blk.{i}."
            if shape.layer is not None:
                self._layer(block, shape.layer(shape, i), i)
                continue
            self._vector(f"{block}attn_norm.weight", shape.width, 1.0)
            for name, rows, columns in (
                ("attn_q", q, shape.width),
                ("attn_k", kv, shape.width),
                ("attn_v", kv, shape.width),
                ("attn_output", shape.width, q),
            ):
                self._matrix(block + name, rows, columns, layer=i)
                if is_oss:
                    self._vector(f"{block}{name}.bias", rows, 0.0)
            if shape.has_qk_norm:
                self._vector(f"{block}attn_q_norm.weight", shape.head_dim, 1.0)
                self._vector(f"{block}attn_k_norm.weight", shape.head_dim, 1.0)
            if is_oss:
                self._vector(f"{block}attn_sinks.weight", shape.heads, 0.0)
            self._vector(f"{block}{'post_attention_norm' if is_oss else 'ffn_norm'}.weight", shape.width, 1.0)
            suffix, n = ("_exps", (shape.experts,)) if shape.experts else ("", ())
            if shape.experts:
                router = self._rng.standard_normal((shape.experts, shape.width)).astype(np.float32)
                self._writer.add_tensor(f"{block}ffn_gate_inp.weight", router * shape.width**-0.5)
                if is_oss:
                    self._vector(f"{block}ffn_gate_inp.bias", shape.experts, 0.0)
            for name, rows, columns in (
                ("ffn_gate", shape.ffn, shape.width),
                ("ffn_up", shape.ffn, shape.width),
                ("ffn_down", shape.width, shape.ffn),
            ):
                self._matrix(block + name + suffix, *n, rows, columns, layer=i)
                if is_oss:
                    bias = np.zeros((shape.experts, rows), np.float32)
                    self._writer.add_tensor(f"{block}{name}{suffix}.bias", bias)
        self._vector("output_norm.weight", shape.width, 1.0)
        if not shape.is_tied:
            self._matrix("output", n_tokens, shape.width)

    def _layer(self, block: str, tensors: dict[str, tuple[int, ...]], layer: int) -> None:
        """Tensors as converters write them: vectors, filters and routers in f32."""
        for name, dims in tensors.items():
            if name.endswith(("conv1d.weight", "gate_inp.weight")):
                values = self._rng.standard_normal(dims).astype(np.float32)
                self._writer.add_tensor(block + name, values * dims[-1] ** -0.5)
            elif len(dims) > 1:
                self._matrix(block + name.removesuffix(".weight"), *dims, layer=layer)
            else:
                self._vector(block + name, dims[0], {"ssm_a": -1.0}.get(name, float(not name.endswith(".bias"))))

    def _type(self, name: str, columns: int, layer: int) -> GGMLType:
        """The scheme's type. Q4_K_M keeps more bits of some; rows that fill no block of 256 have another."""
        base, n = _SCHEMES[self._scheme], self._shape.layers
        kind = name.rpartition(".")[2]
        if kind.endswith("_exps") and self._shape.expert_type is not None:
            return self._shape.expert_type
        if kind in ("attn_k_b", "attn_v_b"):  # llama.cpp with AMX aborts over a matrix for each head of other types
            return GGMLType.F32
        is_last = kind == ("token_embd" if self._shape.is_tied else "output")
        more = layer < n // 8 or layer >= 7 * n // 8 or (layer - n // 8) % 3 == 2
        has_more = is_last or (kind.startswith(("attn_v", "ffn_down")) and more)
        if self._scheme == "Q4_K_M" and columns % 256 != 0:
            return self._shape.short_types[has_more]
        if self._scheme == "Q4_K_M" and has_more:
            return GGMLType.Q6_K
        return base

    def _vector(self, name: str, n: int, mean: float) -> None:
        self._writer.add_tensor(name, (mean + 0.1 * self._rng.standard_normal(n)).astype(np.float32))

    def _matrix(self, name: str, *shape: int, layer: int = 0) -> None:
        columns, n_rows = shape[-1], int(np.prod(shape[:-1]))
        type = self._type(name, columns, layer)
        pool, seed = self._pool(type, columns), int(self._rng.integers(1 << 31))

        def parts() -> Iterator[npt.NDArray[np.uint8]]:
            rng = np.random.default_rng(seed)
            for first in range(0, n_rows, _SLAB):
                yield pool[rng.integers(0, _POOL, min(_SLAB, n_rows - first))].reshape(-1)

        self._writer.add_streamed_tensor(f"{name}.weight", type, shape, parts)

    def _pool(self, type: GGMLType, columns: int) -> npt.NDArray[np.uint8]:
        """Rows of a type, with the spread that keeps a row's product near 1."""
        if (type, columns) not in self._pools:
            values = (self._rng.standard_normal((_POOL, columns)) * columns**-0.5).astype(np.float32)
            if type is GGMLType.MXFP4:  # an exponent, then 32 numbers of 4 bits, which no encoder here writes
                blocks = self._rng.integers(0, 256, (_POOL, columns // 32, 17), dtype=np.uint8)
                blocks[:, :, 0] = 127 - round(np.log2(3 * columns**0.5))
                rows = blocks.reshape(_POOL, -1)
            else:
                rows = np.empty((_POOL, type.row_bytes(columns)), np.uint8)
                source = values.view(np.uint8).reshape(-1)
                quantize_rows(int(GGMLType.F32), source, columns, int(type), rows.reshape(-1), 1)
            self._pools[type, columns] = rows
        return self._pools[type, columns]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("vocabulary", type=Path, help="a GGUF file whose tokenizer is taken")
    parser.add_argument("output", type=Path)
    parser.add_argument("--scheme", choices=sorted(_SCHEMES), default="Q4_K_M")
    parser.add_argument("--layers", type=int, help="fewer than the published model has")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    if options.layers:
        shape = replace(shape, layers=options.layers)
    Maker(options.output, shape, options.scheme, options.seed).write(options.vocabulary)
    print(f"{options.output}: {options.output.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
