"""Reader of whisper.cpp's Whisper files (`ggml-base.en.bin`), which presents their contents as GGUF.

This is the common file format of Whisper models; there is no established GGUF form. Tensors stay mapped and get the
GGUF names of projectors and T5. The decoder's positions and unaligned f32 tensors are copied on first read.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from woolly.errors import UnsupportedError
from woolly.gguf.byte_level import CHARACTER_OF_BYTE
from woolly.gguf.cursor import Cursor, quote
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
from woolly.gguf.mapped_file import FileMap, LazyMap
from woolly.gguf.tensor import Tensor
from woolly.gguf.values import ValueType
from woolly.quant.decode import can_dequantize
from woolly.quant.types import GGMLType

if TYPE_CHECKING:
    from woolly.gguf.metadata import Metadata

_SIZES = (
    *("n_vocab", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer"),
    *("n_text_ctx", "n_text_state", "n_text_head", "n_text_layer", "n_mels", "ftype"),
)
_MAX_SIZE = 1 << 13  # maximum of header fields except n_vocab; six times the largest
_N_SOURCE = 1500  # encoder rows
_N_TIMES = _N_SOURCE + 1  # timestamp tokens, 20 ms each
_CHARACTERS = dict(enumerate(CHARACTER_OF_BYTE))
_ENGLISH = 51864  # vocabulary size of English-only models; multilingual models are larger

# In token order. Only large-v3 has the last one.
_CODES = (
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi ml"
    " cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd gu am"
    " yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue"
)
LANGUAGES = tuple(_CODES.split())

_BLOCK = {
    "attn_ln": "ln1",
    "attn.query": "attn_q",
    "attn.key": "attn_k",
    "attn.value": "attn_v",
    "attn.out": "attn_out",
    "mlp_ln": "ln2",
    "mlp.0": "ffn_up",
    "mlp.2": "ffn_down",
    "cross_attn_ln": "cross_attn_norm",
    "cross_attn.query": "cross_attn_q",
    "cross_attn.key": "cross_attn_k",
    "cross_attn.value": "cross_attn_v",
    "cross_attn.out": "cross_attn_out",
}
_ROOT = {
    "encoder.positional_embedding": "a.position_embd.weight",
    "encoder.conv1.weight": "a.conv1d.1.weight",
    "encoder.conv1.bias": "a.conv1d.1.bias",
    "encoder.conv2.weight": "a.conv1d.2.weight",
    "encoder.conv2.bias": "a.conv1d.2.bias",
    "encoder.ln_post.weight": "a.post_ln.weight",
    "encoder.ln_post.bias": "a.post_ln.bias",
    "decoder.positional_embedding": "dec.position_embd.weight",
    "decoder.token_embedding.weight": "token_embd.weight",
    "decoder.ln.weight": "dec.output_norm.weight",
    "decoder.ln.bias": "dec.output_norm.bias",
}
_POSITIONS = _ROOT["decoder.positional_embedding"]
_IN_BLOCK = re.compile(r"(encoder|decoder)\.blocks\.(\d{1,3})\.(.+)\.(weight|bias)")


def read_whisper_bin(file: FileMap) -> tuple[Metadata, dict[str, Tensor], int]:
    """Return metadata and tensors as in a GGUF file, and the number of bytes before the tensors."""
    cursor = Cursor(file)
    cursor.skip(4, "the magic")
    sizes = {name: cursor.u32(name) for name in _SIZES}
    _check_sizes(cursor, sizes)
    filters = _read_filters(cursor, sizes["n_mels"])
    tokens = _read_tokens(cursor, sizes["n_vocab"])
    positions = sizes["n_text_ctx"], sizes["n_text_state"]
    end, tensors = cursor.offset, read_tensors(cursor, _name, partial(_placed, cursor, positions))
    return metadata_of(file, _values(file, sizes), tokens), tensors | filters, end


def special_tokens(n_vocab: int) -> list[str]:
    """Return the special tokens, from <|endoftext|> to the last timestamp."""
    n_languages = n_vocab - _ENGLISH + 99 - (n_vocab > _ENGLISH)
    return [
        *("<|endoftext|>", "<|startoftranscript|>"),
        *(f"<|{code}|>" for code in LANGUAGES[:n_languages]),
        *("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
        *(f"<|{i * 0.02:.2f}|>" for i in range(_N_TIMES)),
    ]


def _check_sizes(cursor: Cursor, sizes: dict[str, int]) -> None:
    least, most = _ENGLISH, _ENGLISH + 2
    if not least <= sizes["n_vocab"] <= most or not all(0 < sizes[n] <= _MAX_SIZE for n in _SIZES[1:-1]):
        found = ", ".join(f"{name} {value}" for name, value in sizes.items())
        raise UnsupportedError(
            f"{cursor.map.path}: this old ggml file is not a Whisper model, which has {least} to {most} tokens (found:"
            f" {found}); for other models, use the GGUF file"
        )
    if sizes["n_mels"] > MAX_MELS:
        raise UnsupportedError(f"{cursor.map.path}: n_mels is {sizes['n_mels']}; expected at most {MAX_MELS}")
    if sizes["n_audio_ctx"] != _N_SOURCE:
        raise UnsupportedError(
            f"{cursor.map.path}: n_audio_ctx is {sizes['n_audio_ctx']}; Whisper's encoder has {_N_SOURCE} rows per 30 s"
        )
    for one, other in (("n_audio_state", "n_text_state"), ("n_audio_head", "n_text_head")):
        if sizes[one] != sizes[other]:
            raise UnsupportedError(
                f"{cursor.map.path}: {one} is {sizes[one]} and {other} {sizes[other]}; encoders and decoders of"
                " different sizes are not supported yet"
            )


def _read_filters(cursor: Cursor, n_mels: int) -> dict[str, Tensor]:
    """Return the mel filters of the file as a tensor."""
    at = cursor.offset
    n, n_bins = cursor.u32("the number of filters"), cursor.u32("the number of bins")
    if (n, n_bins) != (n_mels, 201):
        raise cursor.error(f"expected {n_mels} filters of 201 bins, found {n} of {n_bins}", at)
    return {"a.mel_filters": read_floats(cursor, "a.mel_filters", (n, n_bins))}


def _read_tokens(cursor: Cursor, n_vocab: int) -> bytearray:
    """Return the vocabulary as in GGUF. Text tokens are in the file; special tokens are fixed."""
    special = special_tokens(n_vocab)
    n_text = n_vocab - len(special)
    texts = read_texts(cursor, n_text, n_vocab)[:n_text]  # some files include <|endoftext|>
    return token_list([text.decode("latin-1").translate(_CHARACTERS) for text in texts] + special)


def _name(own: str) -> str:
    """Return the GGUF name. Unknown names are unchanged, and rejected later as unused."""
    found = _IN_BLOCK.fullmatch(own)
    if found is None or found[3] not in _BLOCK:
        return _ROOT.get(own, own)
    return f"{'a' if found[1] == 'encoder' else 'dec'}.blk.{int(found[2])}.{_BLOCK[found[3]]}.{found[4]}"


def _placed(cursor: Cursor, positions: tuple[int, int], tensor: Tensor) -> Tensor:
    """Return the tensor with 4-byte alignment, mapped or copied on first read.

    The position table gets zero rows for the encoder. Filter biases become vectors.
    """
    shape = tensor.shape
    if tensor.name == _POSITIONS:
        if shape != positions or not can_dequantize(tensor.type):
            raise cursor.error(
                f"expected {positions} numbers of tensor {quote(tensor.name)}, found {shape} of {tensor.type.name}",
                tensor.offset,
            )
        n, width = shape
        shape = _N_SOURCE + n, width
        late = LazyMap(tensor.file, 4 * math.prod(shape), lambda: np.pad(tensor.dequantize(), ((_N_SOURCE, 0), (0, 0))))
        return Tensor(tensor.name, GGMLType.F32, shape, 0, late)
    if tensor.type is GGMLType.F32 and tensor.name.endswith(".bias"):
        tensor = replace(tensor, shape=(tensor.n_elements,))
    return aligned(tensor)


def _values(file: FileMap, sizes: dict[str, int]) -> Values:
    special = len(special_tokens(sizes["n_vocab"]))
    n_text = sizes["n_vocab"] - special
    whole = ValueType.UINT32
    keys = {
        "context_length": sizes["n_text_ctx"],
        "encoder.context_length": sizes["n_audio_ctx"],
        "embedding_length": sizes["n_text_state"],
        "block_count": sizes["n_audio_layer"],
        "decoder_block_count": sizes["n_text_layer"],
        "feed_forward_length": 4 * sizes["n_text_state"],
        "attention.head_count": sizes["n_text_head"],
        "num_mel_bins": sizes["n_mels"],
        "decoder_start_token_id": n_text + 1,
    }
    return {
        "general.architecture": ("whisper", None),
        "general.name": (file.path.stem, None),
        **{f"whisper.{key}": (value, whole) for key, value in keys.items()},
        "whisper.attention.layer_norm_epsilon": (1e-5, ValueType.FLOAT32),
        "tokenizer.ggml.model": ("gpt2", None),
        "tokenizer.ggml.pre": ("gpt-2", None),
        "tokenizer.ggml.token_type": (np.array([1] * n_text + [3] * special, np.int32), None),
        "tokenizer.ggml.bos_token_id": (n_text, whole),
        "tokenizer.ggml.eos_token_id": (n_text, whole),
        "tokenizer.ggml.add_bos_token": (False, None),
    }
