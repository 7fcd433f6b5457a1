"""Tiny random Parakeet models: as whisper.cpp's files have them (TDT), and as GGUF files (CTC, RNN-T)."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path

import numpy as np

from tests.cases.whisper import Drawer, drawers, waveform
from woolly.multimodal.audio.mel import mel_filters, nemo_window

WIDTH, HEADS, FFN, N_LAYERS, CHANNELS, N_MELS, KERNEL = 32, 2, 64, 2, 8, 80, 9
PREDICTED, N_PREDICTOR, DURATIONS, SYMBOLS = 16, 2, (0, 1, 2, 3, 4), 10
LETTERS = "abcdefghijklmnop"
TEXTS = ["<unk>", "<|nospeech|>", *(f"\u2581{one}" for one in LETTERS), *LETTERS, ".", ",", "\u2581"]
N_TOKENS = len(TEXTS) + 1  # with the blank, the last
BLANK = N_TOKENS - 1

__all__ = ["checkpoint", "config", "tensors", "waveform", "write_parakeet"]


def tensors(kind: str = "tdt") -> dict[str, np.ndarray]:
    """Weights by NeMo's names, in the order in which they were drawn."""
    random = np.random.RandomState(26)
    linear, norm = drawers(random)
    matrix = partial(linear, bias=kind == "ctc")
    out: dict[str, np.ndarray] = {}
    for i, n, side in ((0, 1, 3), (2, 1, 3), (3, CHANNELS, 1), (5, 1, 3), (6, CHANNELS, 1)):
        name = f"encoder.pre_encode.conv.{i}"
        out[f"{name}.weight"] = random.standard_normal((CHANNELS, n, side, side)) / np.sqrt(n * side * side)
        out[f"{name}.bias"] = 0.1 * random.standard_normal(CHANNELS)
    out |= matrix("encoder.pre_encode.out", WIDTH, CHANNELS * N_MELS // 8, bias=True)
    for i in range(N_LAYERS):
        begin = f"encoder.layers.{i}"
        for number in (1, 2):
            out |= norm(f"{begin}.norm_feed_forward{number}")
            out |= matrix(f"{begin}.feed_forward{number}.linear1", FFN, WIDTH)
            out |= matrix(f"{begin}.feed_forward{number}.linear2", WIDTH, FFN)
        out |= norm(f"{begin}.norm_self_att") | norm(f"{begin}.norm_conv") | norm(f"{begin}.norm_out")
        for one in ("q", "k", "v", "out"):
            out |= matrix(f"{begin}.self_attn.linear_{one}", WIDTH, WIDTH)
        out |= matrix(f"{begin}.self_attn.linear_pos", WIDTH, WIDTH, bias=False)
        for one in ("u", "v"):
            out[f"{begin}.self_attn.pos_bias_{one}"] = 0.3 * random.standard_normal((HEADS, WIDTH // HEADS))
        out |= matrix(f"{begin}.conv.pointwise_conv1", 2 * WIDTH, WIDTH)
        out |= matrix(f"{begin}.conv.depthwise_conv", WIDTH, KERNEL) | norm(f"{begin}.conv.batch_norm")
        out[f"{begin}.conv.batch_norm.running_mean"] = 0.2 * random.standard_normal(WIDTH)
        out[f"{begin}.conv.batch_norm.running_var"] = 0.5 + random.random_sample(WIDTH)
        out[f"{begin}.conv.batch_norm.num_batches_tracked"] = np.array(7.0)
        out |= matrix(f"{begin}.conv.pointwise_conv2", WIDTH, WIDTH)
    return {name: array.astype(np.float32) for name, array in (out | _decoder(kind, random, matrix)).items()}


def _decoder(kind: str, random: np.random.RandomState, matrix: Drawer) -> dict[str, np.ndarray]:
    if kind == "ctc":
        out = matrix("decoder.decoder_layers.0", N_TOKENS, WIDTH, bias=True)
        out["decoder.decoder_layers.0.bias"][BLANK] += 1.5
        return out
    out = {"decoder.prediction.embed.weight": random.standard_normal((N_TOKENS, PREDICTED))}
    for i in range(N_PREDICTOR):
        for one in ("weight_ih", "weight_hh"):
            name = f"decoder.prediction.dec_rnn.lstm.{one}_l{i}"
            out[name] = random.standard_normal((4 * PREDICTED, PREDICTED)) / np.sqrt(PREDICTED)
        for one in ("bias_ih", "bias_hh"):
            out[f"decoder.prediction.dec_rnn.lstm.{one}_l{i}"] = 0.1 * random.standard_normal(4 * PREDICTED)
    out |= matrix("joint.pred", PREDICTED, PREDICTED, bias=True) | matrix("joint.enc", PREDICTED, WIDTH, bias=True)
    n = len(DURATIONS) if kind == "tdt" else 0
    out |= matrix("joint.joint_net.2", N_TOKENS + n, PREDICTED, bias=True)
    for name, scale in (("joint.enc", 6.0), ("joint.pred", 2.0), ("joint.joint_net.2", 2.0)):
        out[f"{name}.weight"] *= scale
    out["joint.joint_net.2.bias"][BLANK] += 6.0 if n else 16.0
    if n:
        out["joint.joint_net.2.bias"][N_TOKENS] -= 3.0
    return out


def write_parakeet(path: Path, half: bool = False) -> Path:
    """Write a TDT model as a whisper.cpp file, in f32 or with f16 matrices."""
    sizes = (N_TOKENS - 1, 5000, WIDTH, HEADS, N_LAYERS, N_MELS, int(half), 512, 8, CHANNELS, KERNEL)
    with path.open("wb") as file:
        file.write(b"lmgg" + struct.pack("<15i", *sizes, PREDICTED, N_PREDICTOR, len(DURATIONS), SYMBOLS))
        file.write(struct.pack("<2i", N_MELS, 257))
        file.write(np.ascontiguousarray(mel_filters(N_MELS, 512, 16000).T, np.float32).tobytes())
        file.write(struct.pack("<i", 400) + nemo_window().astype(np.float32).tobytes())
        file.write(struct.pack(f"<{len(DURATIONS)}I", *DURATIONS))
        encoded = [text.encode() for text in TEXTS]
        file.write(struct.pack("<i", len(encoded)) + b"".join(struct.pack("<i", len(one)) + one for one in encoded))
        for name, array in _as_written(tensors()).items():
            is_half = half and array.ndim == 2 and not any(x in name for x in ("bias", "norm", "depthwise_conv"))
            head = struct.pack("<3i", array.ndim, len(name), int(is_half))
            file.write(head + struct.pack(f"<{array.ndim}i", *array.shape[::-1]) + name.encode())
            file.write(array.astype(np.float16 if is_half else np.float32).tobytes())
    return path


def _as_written(own: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Biases of filters in four dimensions, those of the LSTM as one, its gates in another order."""
    out = {}
    for name, array in own.items():
        if "bias_ih_l" in name:
            continue
        if "pre_encode.conv" in name and name.endswith(".bias"):
            array = array.reshape(1, -1, 1, 1)
        if ".lstm." in name:
            if "bias_hh_l" in name:
                array, name = array + own[name.replace("hh", "ih")], name.replace("bias_hh_l", "bias_h_l")
            i, f, g, o = np.split(array, 4)
            array = np.concatenate([i, f, o, g])
        out[name] = array
    return out


_HUB = {
    "encoder.pre_encode.conv.": "encoder.subsampling.layers.",
    "encoder.pre_encode.out": "encoder.subsampling.linear",
    "self_attn.linear_pos": "self_attn.relative_k_proj",
    "self_attn.linear_out": "self_attn.o_proj",
    "self_attn.pos_bias_": "self_attn.bias_",
    "conv.batch_norm": "conv.norm",
    "decoder.decoder_layers.0": "ctc_head",
    "decoder.prediction.embed": "decoder.embedding",
    "decoder.prediction.dec_rnn.lstm": "decoder.lstm",
    "joint.enc": "encoder_projector",
    "joint.pred": "decoder.decoder_projector",
    "joint.joint_net.2": "joint.head",
} | {f"self_attn.linear_{x}": f"self_attn.{x}_proj" for x in "qkv"}


def checkpoint(kind: str) -> dict[str, np.ndarray]:
    """Return the weights with the names and shapes of transformers."""
    out = {}
    for name, array in tensors(kind).items():
        for own, its in _HUB.items():
            name = name.replace(own, its)
        if "pointwise_conv" in name or name == "ctc_head.weight":
            array = array[..., None] if name.endswith("weight") else array
        if name.endswith("depthwise_conv.weight"):
            array = array[:, None]
        out[name] = array
    return out


def config(kind: str) -> dict[str, object]:
    """config.json of that checkpoint."""
    encoder = {
        "hidden_size": WIDTH, "num_hidden_layers": N_LAYERS, "num_attention_heads": HEADS, "intermediate_size": FFN,
        "subsampling_conv_channels": CHANNELS, "num_mel_bins": N_MELS, "conv_kernel_size": KERNEL,
        "attention_bias": kind == "ctc", "convolution_bias": kind == "ctc", "scale_input": kind == "ctc",
    }  # fmt: skip
    own = {"architectures": [f"ParakeetFor{kind.upper()}"], "vocab_size": N_TOKENS, "encoder_config": encoder}
    if kind == "ctc":
        return own | {"pad_token_id": BLANK}
    own |= {"decoder_hidden_size": PREDICTED, "num_decoder_layers": N_PREDICTOR, "max_symbols_per_step": SYMBOLS}
    own |= {"blank_token_id": BLANK, "pad_token_id": 1}
    return own | ({"durations": list(DURATIONS)} if kind == "tdt" else {})
