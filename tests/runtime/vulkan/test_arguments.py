"""Arguments: each launch has what its kernel reads, by the sizes of the structs in the kernel's code."""

import struct
from dataclasses import replace

import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from tests.runtime.vulkan.test_models import both
from woolly.errors import UnsupportedError
from woolly.runtime.gpu.arguments import _packed
from woolly.runtime.gpu.device import Address
from woolly.runtime.vulkan.kernel_archive import open_archive

PUSHED = 9  # the storage class of what launches push


class Types:
    """Types of a kernel, from its SPIR-V."""

    def __init__(self, code):
        words, at = struct.unpack(f"<{len(code) // 4}I", code), 5
        self.made, self.offsets, self.numbers, self.strides, self.pushed = {}, {}, {}, {}, None
        while at < len(words):
            n, op = words[at] >> 16, words[at] & 0xFFFF
            rest = words[at + 1 : at + n]
            if op in (21, 22, 23, 28, 30, 32):  # numbers, vectors, arrays, structs, pointers
                self.made[rest[0]] = op, rest[1:]
            elif op == 43:
                self.numbers[rest[1]] = rest[2]
            elif op == 71 and rest[1] == 6:
                self.strides[rest[0]] = rest[2]
            elif op == 72 and rest[2] == 35:
                self.offsets[rest[0], rest[1]] = rest[3]
            elif op == 59 and rest[2] == PUSHED:
                self.pushed = self.made[rest[0]][1][1]
            at += n

    def size(self, type):
        op, rest = self.made[type]
        if op in (21, 22):
            return rest[0] // 8
        if op == 23:
            return self.size(rest[0]) * rest[1]
        if op == 28:
            return self.numbers[rest[1]] * self.strides[type]
        if op == 32:
            return 8
        return self.offsets[type, len(rest) - 1] + self.size(rest[-1])

    def members(self, type):
        """Members of a struct, also inside a block with a single member."""
        members = self.made[type][1]
        return self.members(members[0]) if len(members) == 1 and self.made[members[0]][0] == 30 else members


def whole(n):
    """With what fills up the last eight bytes."""
    return -(-n // 8) * 8


def check(launch, types):
    members = types.members(types.pushed)
    assert len(members) == len(launch.args), launch.kernel
    assert whole(types.size(types.pushed)) == len(
        _packed([Address(0) if isinstance(a, tuple) else a for a in launch.args])
    )
    for member, one in zip(members, launch.args, strict=True):
        assert (types.made[member][0] == 32) == isinstance(one, Address | tuple), launch.kernel
        if isinstance(one, tuple):
            pointed = types.made[member][1][1]
            assert whole(types.size(pointed)) == len(_packed(one)), launch.kernel


@pytest.mark.parametrize("kv_type", ["f16", "q4", "q8_0/q4"])
def test_launches_of_all_models_match_their_kernel_arguments(kv_type, vulkan, tmp_path):
    known, seen = {}, set()
    for name, spec in FAMILIES.items():
        try:
            program, _ = both(vulkan, write_tiny(replace(spec), tmp_path / f"{name}.gguf"), kv_type)
        except UnsupportedError:
            continue
        for launch in (one for step in program._core._emitter.launches for one in step):
            if launch.kernel not in known:
                known[launch.kernel] = Types(open_archive().kernel("plain", launch.kernel))
            if (key := (launch.kernel, *map(type, launch.args))) not in seen:
                seen.add(key)
                check(launch, known[launch.kernel])
    assert len(known) > 40
