"""Tiny random Whisper models, as whisper.cpp's files have them, and synthetic audio."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from woolly.multimodal.audio.mel import mel_filters

WIDTH, HEADS, FFN, N_ENCODER, N_DECODER = 32, 2, 128, 1, 2
ENGLISH, MULTILINGUAL, LARGE_V3 = 51864, 51865, 51866
Drawer = Callable[..., dict[str, np.ndarray]]
N_SPECIAL = {ENGLISH: 1608, MULTILINGUAL: 1608, LARGE_V3: 1609}


def words(n: int) -> list[bytes]:
    """Bytes, then pairs and triples of them: as many tokens of text."""
    found = [bytes([i]) for i in range(256)] + [b" -", b" '", b"the", b" the", b" (", b"(("]
    found += [bytes([97 + i // 26 % 26, 97 + i % 26]) for i in range(676)]
    found += [bytes([65 + i // 676 % 26, 97 + i // 26 % 26, 97 + i % 26]) for i in range(17576)]
    found += [bytes([32, 97 + i // 17576, 97 + i // 676 % 26, 97 + i // 26 % 26, 97 + i % 26]) for i in range(n)]
    return list(dict.fromkeys(found))[:n]


def drawers(random: np.random.RandomState) -> tuple[Drawer, Drawer]:
    """Functions that draw a matrix and a norm, each with its bias, by name prefix."""

    def linear(name: str, rows: int, columns: int, bias: bool = True) -> dict[str, np.ndarray]:
        out = {f"{name}.weight": random.standard_normal((rows, columns)) / np.sqrt(columns)}
        return out | ({f"{name}.bias": 0.1 * random.standard_normal(rows)} if bias else {})

    def norm(name: str, width: int = WIDTH) -> dict[str, np.ndarray]:
        return {
            f"{name}.weight": 1 + 0.1 * random.standard_normal(width),
            f"{name}.bias": 0.1 * random.standard_normal(width),
        }

    return linear, norm


def tensors(n_vocab: int = MULTILINGUAL, n_mels: int = 80) -> dict[str, np.ndarray]:
    """Weights by the names of whisper.cpp's files, in the order in which they were drawn."""
    random = np.random.RandomState(7)
    linear, norm = drawers(random)

    def attention(name: str) -> dict[str, np.ndarray]:
        out = norm(f"{name}_ln")
        for one in ("query", "key", "value", "out"):
            out |= linear(f"{name}.{one}", WIDTH, WIDTH, one != "key")
        return out

    out: dict[str, np.ndarray] = {}
    for number, columns in ((1, n_mels), (2, WIDTH)):
        out[f"encoder.conv{number}.weight"] = random.standard_normal((WIDTH, columns, 3)) / np.sqrt(3 * columns)
        out[f"encoder.conv{number}.bias"] = 0.1 * random.standard_normal((WIDTH, 1))
    out["encoder.positional_embedding"] = 0.3 * random.standard_normal((1500, WIDTH))
    out["decoder.positional_embedding"] = 0.3 * random.standard_normal((448, WIDTH))
    out["decoder.token_embedding.weight"] = 0.4 * random.standard_normal((n_vocab, WIDTH))
    for half, n in (("encoder", N_ENCODER), ("decoder", N_DECODER)):
        for i in range(n):
            block = f"{half}.blocks.{i}"
            out |= attention(f"{block}.attn")
            if half == "decoder":
                out |= attention(f"{block}.cross_attn")
            out |= norm(f"{block}.mlp_ln") | linear(f"{block}.mlp.0", FFN, WIDTH) | linear(f"{block}.mlp.2", WIDTH, FFN)
    out |= norm("encoder.ln_post") | norm("decoder.ln")
    return {name: array.astype(np.float32) for name, array in out.items()}


def write_whisper(path: Path, n_vocab: int = MULTILINGUAL, n_mels: int = 80, half: bool = False) -> Path:
    """Write a whisper.cpp file, in f32 or with f16 matrices."""
    sizes = n_vocab, 1500, WIDTH, HEADS, N_ENCODER, 448, WIDTH, HEADS, N_DECODER, n_mels, int(half)
    with path.open("wb") as file:
        file.write(b"lmgg" + struct.pack("<11i", *sizes) + struct.pack("<2i", n_mels, 201))
        file.write(np.ascontiguousarray(mel_filters(n_mels, 400, 16000).T, np.float32).tobytes())
        texts = words(n_vocab - N_SPECIAL[n_vocab])
        file.write(struct.pack("<i", len(texts)) + b"".join(struct.pack("<i", len(text)) + text for text in texts))
        for name, array in tensors(n_vocab, n_mels).items():
            is_half = half and name.endswith(".weight") and array.ndim > 1  # filters, too
            head = struct.pack("<3i", array.ndim, len(name), int(is_half))
            file.write(head + struct.pack(f"<{array.ndim}i", *array.shape[::-1]) + name.encode())
            file.write(array.astype(np.float16 if is_half else np.float32).tobytes())
    return path


def waveform(seconds: float = 40.0) -> np.ndarray:
    """Tones that rise and stop, with some noise, at 16 kHz."""
    n = int(16000 * seconds)
    time = np.arange(n) / 16000
    noise = np.random.RandomState(3).standard_normal(n)
    tone = np.sin(2 * np.pi * (220 + 90 * np.sin(time)) * time) * (np.sin(2 * time) > 0)
    return (0.3 * tone + 0.05 * noise).astype(np.float32)
