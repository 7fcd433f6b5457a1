"""The type tables agree with ggml's."""

import gguf
import pytest

from woolly.errors import GGUFError
from woolly.gguf import GGMLType, ValueType
from woolly.gguf.dequant import _DECODERS
from woolly.gguf.quantize import _ENCODERS


def test_every_type_of_the_gguf_package_has_the_same_id_and_sizes():
    for peer in gguf.GGMLQuantizationType:
        ours = GGMLType(int(peer))
        assert ours.name == peer.name
        if ours is GGMLType.Q8_1:
            # An activation type of two halves and 32 bytes in ggml itself; the package's 40 is out of date.
            assert (ours.block_size, ours.type_size) == (32, 36)
        else:
            assert (ours.block_size, ours.type_size) == gguf.GGML_QUANT_SIZES[peer]


def test_value_types_are_those_of_the_gguf_package():
    assert {type.name: int(type) for type in ValueType} == {type.name: int(type) for type in gguf.GGUFValueType}


def test_can_dequantize_and_can_quantize_say_what_the_codecs_do():
    assert {type for type in GGMLType if type.can_dequantize} == set(_DECODERS)
    assert {type for type in GGMLType if type.can_quantize} == set(_ENCODERS)


def test_row_bytes_counts_whole_blocks_only():
    assert GGMLType.Q4_K.row_bytes(512) == 288
    assert GGMLType.F16.row_bytes(3) == 6
    with pytest.raises(GGUFError, match="multiple of 256"):
        GGMLType.Q4_K.row_bytes(300)
