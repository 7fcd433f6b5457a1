"""Every way in which a file can be unsound ends in one GGUFError that names the file, the byte and the remedy."""

import os
import struct

import pytest

from tests.gguf.build import array, entry, gguf_bytes, string, tensor, write_sample
from woolly.errors import GGUFError
from woolly.gguf import open_gguf
from woolly.gguf.values import ValueType
from woolly.quant import GGMLType

U8, U32, BOOL, STRING, ARRAY, U64 = 0, 4, 7, 8, 9, 10
HUGE = 2**64 - 1


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def nested(depth: int) -> bytes:
    return array(ARRAY, 1, nested(depth - 1)) if depth > 1 else array(U8, 1, b"\0")


# name -> (bytes of the file, offset that the message must name, what it must say)
CASES = {
    "empty file": (b"", 0, "empty"),
    "ends within the magic": (b"GG", 0, "magic 'GGUF'"),
    "wrong magic": (gguf_bytes(magic=b"GGML"), 0, "this is not a GGUF file: it begins with 'GGML', not with 'GGUF'"),
    "another file altogether": (
        b"<!DOCTYPE html>",
        0,
        "it begins with '<!DO', not with 'GGUF'; if it should be one, fe",
    ),
    "a checkpoint": (
        b"\x10\0\0\0\0\0\0\0{        }",
        0,
        "this is a safetensors file, not a GGUF file: give the folder",
    ),
    "ends within the version": (b"GGUF\3\0", 4, "expected the version of 4 bytes, but the file ends after 2"),
    "version 0": (gguf_bytes(version=0), 4, "expected GGUF version 2 or 3, found 0"),
    "version 1": (gguf_bytes(version=1), 4, "version 1 of GGUF is obsolete"),
    "version 4": (gguf_bytes(version=4), 4, "expected GGUF version 2 or 3, found 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), 4, "big-endian"),
    "ends within the counts": (gguf_bytes()[:20], 16, "number of metadata entries"),
    "tensor count beyond the file": (gguf_bytes(n_tensors=HUGE), 8, f"found {HUGE}"),
    "entry count beyond the file": (gguf_bytes(n_entries=2**63), 16, f"found {2**63}"),
    "entry count beyond reason": (gguf_bytes([bytes(2**21)], n_entries=4097), 16, "at most 4096 metadata entries"),
    "tensor count beyond reason": (gguf_bytes([bytes(2**21)], n_tensors=16385), 8, "expected at most 16384 tensors"),
    "names beyond reason": (
        gguf_bytes([entry(f"{i}" + "k" * 60000, U8, b"\0") for i in range(9)]),
        24 + 8 * (8 + 60001 + 4 + 1),
        "names of keys and tensors of at most 524288 bytes together",
    ),
    "one entry too few": (gguf_bytes([entry("k", U64, bytes(8))], n_entries=2), 16, "at most 1 metadata entries"),
    "key length beyond the file": (
        gguf_bytes([struct.pack("<Q", 60000) + bytes(30)]),
        32,
        "key 0 of 60000 bytes",
    ),
    "key length beyond the format": (gguf_bytes([struct.pack("<Q", HUGE) + bytes(30)]), 24, "at most 65535 bytes"),
    "empty key": (gguf_bytes([entry("", U32, u32(1)) + bytes(9)]), 24, "expected a name for key 0"),
    "duplicate key": (gguf_bytes([entry("kk", U32, u32(1)), entry("kk", U32, u32(2))]), 42, "found 'kk' again"),
    "unknown value type": (gguf_bytes([entry("k", 13, bytes(9))]), 33, "type of 'k' from 0 to 12, found 13"),
    "unknown element type": (gguf_bytes([entry("k", ARRAY, array(99, 0))]), 37, "element type of 'k'"),
    "value cut off": (gguf_bytes([entry("k", U64, b"\1\2\3")]), 37, "the value of 'k' of 8 bytes"),
    "string value cut off": (gguf_bytes([entry("k", STRING, struct.pack("<Q", 9) + b"abc")]), 37, "exceeds the file"),
    "array count beyond the file": (
        gguf_bytes([entry("k", ARRAY, array(U64, 2**61))]),
        41,
        "may be truncated; fetch it",
    ),
    "string array cut off": (
        gguf_bytes([entry("k", ARRAY, array(STRING, 3, string("ab") + struct.pack("<Q", HUGE) + bytes(20)))]),
        59,
        "expected string 1 of 3 of 'k'",
    ),
    "bool of 2": (gguf_bytes([entry("k", BOOL, b"\2")]), 37, "(0 or 1), found 2"),
    "bool array with 255": (gguf_bytes([entry("k", ARRAY, array(BOOL, 3, b"\0\1\xff"))]), 51, "found 255"),
    "arrays too deep": (gguf_bytes([entry("k", ARRAY, nested(6))]), 85, "nest at most 4 arrays"),
    "too many inner arrays": (
        gguf_bytes([entry("k", ARRAY, array(ARRAY, 70000, array(U8, 0) * 70000))]),
        49,
        "at most 65536 arrays within arrays",
    ),
    "alignment of another type": (gguf_bytes([entry("general.alignment", U64, bytes(8))]), 49, "to be UINT32"),
    "alignment 0": (gguf_bytes([entry("general.alignment", U32, u32(0))]), 49, "power of two"),
    "alignment 4": (gguf_bytes([entry("general.alignment", U32, u32(4))]), 49, "at least 8, found 4"),
    "alignment 48": (gguf_bytes([entry("general.alignment", U32, u32(48))]), 49, "power of two"),
    "empty tensor name": (gguf_bytes([], [tensor("", [1])], bytes(32)), 24, "expected a name for tensor 0"),
    "duplicate tensor": (
        gguf_bytes([], [tensor("t", [1]), tensor("t", [1], offset=32)], bytes(64)),
        57,
        "found 't' again",
    ),
    "five dimensions": (gguf_bytes([], [tensor("t", [1] * 5)], bytes(32)), 33, "at most 4 dimensions"),
    "dimension 0": (gguf_bytes([], [tensor("t", [4, 0])], bytes(32)), 33, "to be positive"),
    "dimensions overflow": (gguf_bytes([], [tensor("t", [2**32, 2**32])], bytes(32)), 33, "below 2**63"),
    "negative dimension": (gguf_bytes([], [tensor("t", [HUGE])], bytes(32)), 33, "below 2**63"),
    "unknown ggml type": (gguf_bytes([], [tensor("t", [1], 43)], bytes(32)), 45, "known ggml type"),
    "withdrawn ggml type": (gguf_bytes([], [tensor("t", [1], 31)], bytes(32)), 45, "Q4_0_4_4, which ggml has"),
    "half a block": (gguf_bytes([], [tensor("t", [48, 2], GGMLType.Q4_0)], bytes(99)), 33, "multiple of 32"),
    "misaligned tensor": (gguf_bytes([], [tensor("t", [1], offset=4)], bytes(99)), 49, "multiple of 32 bytes"),
    "tensor out of the file": (gguf_bytes([], [tensor("t", [8])], bytes(31)), 49, "may be truncated"),
    "tensor far out of the file": (
        gguf_bytes([], [tensor("t", [8], offset=2**64 - 32)], bytes(32)),
        49,
        "may be truncated",
    ),
    "tensor larger than memory": (gguf_bytes([], [tensor("t", [2**62])], bytes(32)), 49, "may be truncated"),
    "overlapping tensors": (
        gguf_bytes([], [tensor("b", [4], offset=32), tensor("a", [9], offset=0)], bytes(64)),
        128,
        "'a' and 'b' overlap",
    ),
    "tensor list cut off": (gguf_bytes([], [tensor("t", [1, 1, 1, 1])])[:60], 53, "a dimension of 't'"),
}


@pytest.mark.parametrize("case", CASES)
def test_invalid_file_is_rejected_with_name_byte_and_reason(tmp_path, case):
    data, offset, reason = CASES[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(GGUFError) as error:
        open_gguf(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ") and message.endswith(f" (at byte {offset})")
    assert reason in message
    assert "\n" not in message


def test_file_truncated_anywhere_fails_at_open(tmp_path):
    whole = write_sample(tmp_path / "whole.gguf").read_bytes()
    last = max(tensor.offset + tensor.n_bytes for tensor in open_gguf(tmp_path / "whole.gguf").tensors.values())
    path = tmp_path / "cut.gguf"
    for length in range(last):
        path.unlink(missing_ok=True)
        path.write_bytes(whole[:length])
        with pytest.raises(GGUFError, match="at byte"):
            open_gguf(path)
    path.unlink()
    # Only the padding after the last tensor may be missing.
    path.write_bytes(whole[:last])
    assert len(open_gguf(path).tensors) == 5


def test_missing_file_folder_and_fifo_are_rejected_with_a_message(tmp_path):
    with pytest.raises(GGUFError, match="no such file"):
        open_gguf(tmp_path / "nothing.gguf")
    with pytest.raises(GGUFError, match="a directory"):
        open_gguf(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GGUFError, match="not a regular file"):
        open_gguf(tmp_path / "pipe")
    with pytest.raises(GGUFError, match="cannot read"):
        open_gguf("a\0b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_permission_is_rejected_with_a_message(tmp_path):
    path = write_sample(tmp_path / "locked.gguf")
    path.chmod(0)
    with pytest.raises(GGUFError, match="Permission denied"):
        open_gguf(path)


def test_hostile_name_cannot_flood_the_message(tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(gguf_bytes([entry("\n\x1b[2J" * 5000, 13, b"\0")]))
    with pytest.raises(GGUFError) as error:
        open_gguf(path)
    assert len(str(error.value)) < 400 + len(str(path))
    assert str(error.value).isprintable()


def test_all_value_types_are_skipped_by_their_size(tmp_path):
    path = tmp_path / "types.gguf"
    for type in ValueType:
        if type.dtype is not None:
            path.unlink(missing_ok=True)
            path.write_bytes(
                gguf_bytes([entry("k", type, bytes(type.dtype.itemsize)), entry("end", STRING, string("x"))])
            )
            assert open_gguf(path).metadata["end"] == "x"
