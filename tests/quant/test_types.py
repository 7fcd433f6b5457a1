"""The type tables agree with ggml's, and the native one with Python's."""

import functools
import re
from pathlib import Path

import gguf
import pytest

from woolly import _native
from woolly.errors import GGUFError
from woolly.gguf.values import ValueType
from woolly.quant import GGMLType, can_dequantize
from woolly.quant.encode import _ENCODERS

ROOT = Path(__file__).resolve().parents[2]


def test_every_type_has_the_id_and_sizes_of_the_gguf_package():
    for peer in gguf.GGMLQuantizationType:
        ours = GGMLType(int(peer))
        assert ours.name == peer.name
        if ours is GGMLType.Q8_1:
            # An activation type of two halves and 32 bytes in ggml itself; the package's 40 is out of date.
            assert (ours.block_size, ours.type_size) == (32, 36)
        else:
            assert (ours.block_size, ours.type_size) == gguf.GGML_QUANT_SIZES[peer]


def test_value_types_match_the_gguf_package():
    assert {type.name: int(type) for type in ValueType} == {type.name: int(type) for type in gguf.GGUFValueType}


def test_every_native_type_has_the_id_sizes_and_decoder_of_the_table():
    native = _native.types()
    for name, (id, columns, n_bytes, activation) in native.items():
        type = GGMLType[name]
        assert (int(type), type.block_size, type.type_size) == (id, columns, n_bytes)
        assert activation in ("f32", "q8_32", "q8_256")
        assert can_dequantize(type)
    # What has no kernel is refused, so a float or quantized type with a decoder has one.
    plain = {"F64", "I8", "I16", "I32", "I64"}
    assert {type.name for type in GGMLType if can_dequantize(type)} - plain == set(native)
    assert {type.name for type in _ENCODERS} <= {name for name in native if _native.can_quantize(GGMLType[name])}


# What docs/make/add-a-weight-type.md asks for: the block with its row, the kernel, the decoder.
CODEBOOKS = {"native/quant/codebooks.h", "native/cpu/kernels/generic/codebooks.h", "woolly/quant/codebooks.py"}
BLOCKS, RARE = "native/cuda/weights/blocks.cuh", "native/cuda/weights/blocks_rare.cuh"
FLOATS_OF_VULKAN = "native/gpu/compile.py"
CONVERTED = "woolly/convert/quantized_checkpoint.py"
WRITTEN = {"native/quant/encode.cpp", "woolly/quantize/mixes.py"}
SLANG = {
    "q8_32": "native/gpu/weights/blocks32.slang",
    "q8_256": "native/gpu/weights/k_quants.slang",
    "codebooks": "native/gpu/weights/codebooks.slang",
}
FILES = {
    "f32": {"native/quant/floats.h", "native/cpu/kernels/generic/floats.h", "woolly/quant/decode.py"},
    "q8_32": {"native/quant/blocks32.h", "native/cpu/kernels/generic/blocks32.h", "woolly/quant/decode.py"},
    "q8_256": {"native/quant/k_quants.h", "native/cpu/kernels/generic/k_quants.h", "woolly/quant/decode.py"},
}


@functools.cache
def sources():
    """Source files, tests apart, with their texts without comments."""
    kinds = ("*.h", "*.cpp", "*.cu", "*.cuh", "*.slang", "*.py")
    native = [path for kind in kinds for path in (ROOT / "native").rglob(kind)]
    return {
        path.relative_to(ROOT).as_posix(): re.sub(r"//.*|#.*woolly.*", "", path.read_text())
        for path in (*native, *(ROOT / "woolly").rglob("*.py"))
        if "native/tests" not in path.as_posix()
    }


@functools.cache
def words():
    """The words of source files, and of Python the names of types. A search for each type takes ten times as long."""
    return {
        path: set(re.findall(r"ggmltype\.(\w+)" if path.startswith("woolly/") else r"\w+", text.lower()))
        for path, text in sources().items()
    }


def files_that_name(name):
    """Source files whose code names a type."""
    ways = {prefix + name.lower() for prefix in ("", "block", "load")}
    return {path for path, found in words().items() if not ways.isdisjoint(found)}


def has_codebook(name):
    return name.startswith(("IQ1", "IQ2", "IQ3"))


def recipe_of(name):
    if has_codebook(name):
        return CODEBOOKS
    if name == "NVFP4":
        return FILES["q8_32"] - {"native/cpu/kernels/generic/blocks32.h"} | {"native/cpu/kernels/generic/blocks64.h"}
    return FILES[_native.types()[name][3]]


def vulkan_of(name):
    """The file of a type for Vulkan; floats have no block, but a row of the kernels that are compiled."""
    family = "codebooks" if has_codebook(name) else _native.types()[name][3]
    return {SLANG.get(family, FLOATS_OF_VULKAN)}


@pytest.mark.parametrize("name", _native.types())
def test_weight_type_is_in_the_files_of_the_recipe(name):
    assert recipe_of(name) | vulkan_of(name) <= files_that_name(name)
    assert name == "F32" or {BLOCKS, RARE} & files_that_name(name)


def test_weight_type_is_in_five_files_and_its_encoders():
    # Other types also have a kernel of one instruction set, or are weights that a mix gives more bits. Vulkan's
    # compiler names those whose 32 columns have one factor: they take fewer products.
    others = {*WRITTEN, "woolly/quantize/recipe.py", FLOATS_OF_VULKAN}
    for name in ("TQ1_0", "TQ2_0"):
        assert files_that_name(name) == recipe_of(name) | {RARE} | vulkan_of(name) | others
        assert len(files_that_name(name) - others) == 5
    # These have a kind of tile of their own, whose bytes are listed in weight_tiles.py; checkpoints are stored in them.
    tile = {f"native/cuda/weights/{file}" for file in ("tile.cuh", "tile_32.cuh", "pack.cuh")}
    own = {BLOCKS, CONVERTED, *WRITTEN, "woolly/quantize/recipe.py"} | tile
    assert files_that_name("NVFP4") == recipe_of("NVFP4") | own | vulkan_of("NVFP4")
    experts = {"native/quant/encode_ternary_fp4.cpp", "woolly/quantize/low_bit_mixes.py"}
    assert files_that_name("MXFP4") == recipe_of("MXFP4") | own | experts | vulkan_of("MXFP4")


def test_recipe_names_the_files():
    recipe = (ROOT / "docs/make/add-a-weight-type.md").read_text()
    others = {BLOCKS, RARE, CONVERTED, FLOATS_OF_VULKAN, *WRITTEN, *SLANG.values()}
    for path in set().union(CODEBOOKS, others, *FILES.values()):
        assert f"`{path}`" in recipe


def test_row_bytes_counts_only_complete_blocks():
    assert GGMLType.Q4_K.row_bytes(512) == 288
    assert GGMLType.F16.row_bytes(3) == 6
    with pytest.raises(GGUFError, match="multiple of 256"):
        GGMLType.Q4_K.row_bytes(300)
