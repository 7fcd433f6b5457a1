"""Reader of whisper.cpp's Parakeet files (`ggml-parakeet-tdt-0.6b-v3-q8_0.bin`), which presents them as GGUF.

The files have the tensors of NeMo's checkpoint under NeMo's names, except for the LSTM: its two biases are added, and
its gates are in the order input, forget, output, cell. Tensors get the names of FastConformer projectors.
"""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from woolly.errors import UnsupportedError
from woolly.gguf.cursor import Cursor
from woolly.gguf.ggml_bin import (
    MAX_MELS,
    Values,
    aligned,
    metadata_of,
    read_floats,
    read_tensors,
    read_texts,
    token_list,
)
from woolly.gguf.values import ValueType
from woolly.quant.types import GGMLType

if TYPE_CHECKING:
    from woolly.gguf.mapped_file import FileMap
    from woolly.gguf.metadata import Metadata
    from woolly.gguf.tensor import Tensor

_SIZES = (
    *("n_vocab", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer", "n_mels", "ftype", "n_fft"),
    *("subsampling_factor", "n_subsampling_channels", "n_conv_kernel", "n_pred_dim", "n_pred_layers"),
    *("n_tdt_durations", "n_max_tokens"),
)
_MAX_SIZE = 1 << 16  # maximum of any header field
_MAX_DURATION = 64  # frames
_N_FFT, _SUBSAMPLING = 512, 8  # supported values
BLANK = "<blank>"  # last token; not in the file

_BLOCK = {
    "norm_feed_forward1": "ffn_norm",
    "feed_forward1.linear1": "ffn_up",
    "feed_forward1.linear2": "ffn_down",
    "norm_self_att": "ln1",
    "self_attn.linear_q": "attn_q",
    "self_attn.linear_k": "attn_k",
    "self_attn.linear_v": "attn_v",
    "self_attn.linear_out": "attn_out",
    "self_attn.linear_pos": "linear_pos",
    "norm_conv": "norm_conv",
    "conv.pointwise_conv1": "conv_pw1",
    "conv.depthwise_conv": "conv_dw",
    "conv.batch_norm": "conv_norm",
    "conv.pointwise_conv2": "conv_pw2",
    "norm_feed_forward2": "ffn_norm_1",
    "feed_forward2.linear1": "ffn_up_1",
    "feed_forward2.linear2": "ffn_down_1",
    "norm_out": "ln2",
}
_PARTS = {"weight": "weight", "bias": "bias", "running_mean": "mean", "running_var": "var"}
_ROOT = {
    "encoder.pre_encode.out": "a.pre_encode.out",
    "decoder.prediction.embed": "token_embd",
    "joint.enc": "a.joint_enc",
    "joint.pred": "dec.joint_pred",
    "joint.joint_net.2": "dec.joint",
}
_IN_LAYER = re.compile(r"encoder\.layers\.(\d{1,3})\.(.+)\.(\w+)")
_IN_LSTM = re.compile(r"decoder\.prediction\.dec_rnn\.lstm\.(weight_ih|weight_hh|bias_h)_l(\d)")
_LSTM = {"weight_ih": "input.weight", "weight_hh": "hidden.weight", "bias_h": "hidden.bias"}
_CONV = re.compile(r"encoder\.pre_encode\.conv\.(\d)\.(weight|bias)")


def is_parakeet_bin(file: FileMap) -> bool:
    """Return True if a file in ggml's old format has Parakeet's header fields."""
    data, at = file.bytes[4 : 4 + 4 * len(_SIZES)].tobytes(), 4 * _SIZES.index("n_fft")
    return len(data) == 4 * len(_SIZES) and data[at : at + 8] == struct.pack("<II", _N_FFT, _SUBSAMPLING)


def read_parakeet_bin(file: FileMap) -> tuple[Metadata, dict[str, Tensor], int]:
    """Return metadata and tensors as in a GGUF file, and the number of bytes before the tensors."""
    cursor = Cursor(file)
    cursor.skip(4, "the magic")
    sizes = {name: cursor.u32(name) for name in _SIZES}
    if not all(0 < sizes[name] <= _MAX_SIZE for name in _SIZES if name != "ftype"):
        found = ", ".join(f"{name} {value}" for name, value in sizes.items())
        raise UnsupportedError(f"{file.path}: the file is not a Parakeet model of whisper.cpp (found: {found})")
    if sizes["n_mels"] > MAX_MELS:
        raise UnsupportedError(f"{file.path}: n_mels is {sizes['n_mels']}; expected at most {MAX_MELS}")
    at = cursor.offset
    n, n_bins = cursor.u32("the number of filters"), cursor.u32("the number of bins")
    if (n, n_bins) != (sizes["n_mels"], _N_FFT // 2 + 1):
        raise cursor.error(f"expected {sizes['n_mels']} filters of 257 bins, found {n} of {n_bins}", at)
    kept = {"a.mel_filters": read_floats(cursor, "a.mel_filters", (n, n_bins))}
    at = cursor.offset
    if not 0 < (n_window := cursor.u32("the length of the window")) <= _N_FFT:
        raise cursor.error(f"expected a window of up to {_N_FFT} numbers, found {n_window}", at)
    kept["a.mel_window"] = read_floats(cursor, "a.mel_window", (n_window,))
    durations = [_duration(cursor) for _ in range(sizes["n_tdt_durations"])]
    texts = [text.decode("utf-8", "replace") for text in read_texts(cursor, sizes["n_vocab"], sizes["n_vocab"])]
    end, tensors = cursor.offset, read_tensors(cursor, _name, _placed, min_dimensions=0)
    _check_tensors(file, sizes, tensors)
    for part in ("weight", "bias"):
        if (joint := tensors.pop(f"dec.joint.{part}", None)) is not None:
            tensors |= _divided(joint, sizes["n_vocab"] + 1, part)
    values = _values(file, sizes, durations, [*texts, BLANK])
    return metadata_of(file, values, token_list([*texts, BLANK])), tensors | kept, end


def _duration(cursor: Cursor) -> int:
    at = cursor.offset
    if (frames := cursor.u32("a duration")) > _MAX_DURATION:
        raise cursor.error(f"expected a duration of 0 to {_MAX_DURATION} frames, found {frames}", at)
    return frames


def _check_tensors(file: FileMap, sizes: dict[str, int], tensors: dict[str, Tensor]) -> None:
    """Raise UnsupportedError for header fields that contradict the tensors, and for a quantized joint bias."""
    width, n_tokens = sizes["n_audio_state"], sizes["n_vocab"] + 1
    columns = {"token_embd.weight": ("n_pred_dim", n_tokens), "a.conv1d.0.weight": ("n_subsampling_channels", 9)}
    for name, tensor in tensors.items():
        size, n = ("n_conv_kernel", width) if name.endswith(".conv_dw.weight") else columns.get(name, ("", 0))
        if n and tensor.n_elements != n * sizes[size]:
            raise UnsupportedError(f"{file.path}: {size} is {sizes[size]}, but {name} has shape {tensor.shape}")
    joint, n = tensors.get("dec.joint.bias"), n_tokens + sizes["n_tdt_durations"]
    if joint is not None and (joint.type not in (GGMLType.F32, GGMLType.F16) or joint.shape != (n,)):
        raise UnsupportedError(
            f"{file.path}: the joint network's bias is {joint.shape} of {joint.type.name}; expected {n} numbers of F32"
            " or F16"
        )


def _name(own: str) -> str | None:
    """Return the GGUF name. Unknown names are unchanged, and rejected later as unused."""
    if own.endswith(".num_batches_tracked"):
        return None
    if found := _IN_LAYER.fullmatch(own):
        begin = f"a.blk.{int(found[1])}"
        if found[2] == "self_attn" and found[3] in ("pos_bias_u", "pos_bias_v"):
            return f"{begin}.{found[3]}"
        return f"{begin}.{_BLOCK[found[2]]}.{_PARTS[found[3]]}" if found[2] in _BLOCK and found[3] in _PARTS else own
    if found := _IN_LSTM.fullmatch(own):
        return f"dec.lstm.{int(found[2])}.{_LSTM[found[1]]}"
    if found := _CONV.fullmatch(own):
        return f"a.conv1d.{found[1]}.{found[2]}"
    stem, _, part = own.rpartition(".")
    return f"{_ROOT[stem]}.{part}" if stem in _ROOT and part in _PARTS else own


def _placed(tensor: Tensor) -> Tensor:
    """Return the tensor with 4-byte alignment. Biases become vectors."""
    if tensor.type is GGMLType.F32 and tensor.name.endswith(".bias"):
        tensor = replace(tensor, shape=(tensor.n_elements,))
    return aligned(tensor)


def _divided(joint: Tensor, n_tokens: int, part: str) -> dict[str, Tensor]:
    """Split the joint output into token rows and duration rows."""
    n = joint.shape[0]
    if n <= n_tokens:
        return {f"dec.joint_out.{part}": replace(joint, name=f"dec.joint_out.{part}")}
    each = joint.n_bytes // n
    return {
        f"dec.joint_{name}.{part}": replace(
            joint,
            name=f"dec.joint_{name}.{part}",
            shape=(last - first, *joint.shape[1:]),
            offset=joint.offset + first * each,
        )
        for name, first, last in (("out", 0, n_tokens), ("steps", n_tokens, n))
    }


def token_type(text: str) -> int:
    """Return the GGUF token type: unknown, control, byte or normal."""
    if text == "<unk>":
        return 2
    if re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", text):
        return 6
    return 3 if re.fullmatch(r"<[^<>]+>", text) else 1


def _values(file: FileMap, sizes: dict[str, int], durations: list[int], texts: list[str]) -> Values:
    whole = ValueType.UINT32
    keys = {
        "context_length": 16,
        "encoder.context_length": 1500,
        "embedding_length": sizes["n_audio_state"],
        "block_count": sizes["n_audio_layer"],
        "decoder_block_count": sizes["n_pred_layers"],
        "attention.head_count": sizes["n_audio_head"],
        "num_mel_bins": sizes["n_mels"],
        "max_symbols": sizes["n_max_tokens"],
    }
    return {
        "general.architecture": ("parakeet", None),
        "general.name": (file.path.stem, None),
        **{f"parakeet.{key}": (value, whole) for key, value in keys.items()},
        "parakeet.attention.layer_norm_epsilon": (1e-5, ValueType.FLOAT32),
        "parakeet.decoder_type": ("tdt", None),
        "parakeet.durations": (np.array(durations, np.int32), None),
        "tokenizer.ggml.model": ("llama", None),
        "tokenizer.ggml.scores": (-np.arange(len(texts), dtype=np.float32), None),
        "tokenizer.ggml.token_type": (np.array([token_type(text) for text in texts], np.int32), None),
        "tokenizer.ggml.eos_token_id": (len(texts) - 1, whole),
        "tokenizer.ggml.add_bos_token": (False, None),
    }
