"""Ten thousand damaged headers: each opens and can be read to the end, or raises GGUFError."""

import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cases.vocabularies import find_vocabularies, need_vocabularies
from tests.gguf.build import entry, gguf_bytes, string, tensor, write_sample
from woolly.errors import GGUFError
from woolly.gguf import StringArray, open_gguf
from woolly.quant import can_dequantize

N_MUTANTS = 10  # per example

# Numbers that have broken readers: signs, wraps, sizes whose product wraps, and plain off-by-one.
NUMBERS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 31, 32, 43, 255, 2**16, 2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**32]
NUMBERS += [2**59, 2**60, 2**61, 2**62, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 32, 2**64 - 8, 2**64 - 1]

KINDS = ["byte", "bit", "u32", "u64", "cut", "drop", "repeat", "splice"]
# Kind, place, value: drawn as bytes, because one large draw is ten times cheaper than many small ones.
MUTATION = struct.Struct("<BHH")
N_MUTATIONS = 3  # at most, per mutant


def seeds(folder: Path) -> list[bytes]:
    """Headers of our own writer, and the beginnings and ends of real vocabularies, each a few KB."""
    made = [
        write_sample(folder / f"{version}-{alignment}.gguf", version=version, alignment=alignment).read_bytes()
        for version, alignment in ((2, 32), (3, 8), (3, 64))
    ]
    return made + [shrunk(path) for path in find_vocabularies()]


def shrunk(path: Path) -> bytes:
    """A real header whose arrays are cut to eight elements."""
    with open_gguf(path) as file:
        entries = []
        for key, value in file.metadata.items():
            raw = file.metadata.raw(key).tobytes()
            if isinstance(value, (StringArray, np.ndarray)) and len(value) > 8:
                if isinstance(value, StringArray):
                    texts = [text.encode("utf-8", "surrogateescape") for text in value[:8]]
                    payload = b"".join(struct.pack("<Q", len(text)) + text for text in texts)
                else:
                    payload = value[:8].tobytes()
                raw = raw[:8] + struct.pack("<Q", 8) + payload
            name = key.encode()
            entries.append(struct.pack("<Q", len(name)) + name + raw)
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries)


def mutate(data: bytes, other: bytes, script: bytes) -> bytes:
    buffer = bytearray(data)
    n_mutations = 1 + script[0] % N_MUTATIONS
    for kind, place, value in list(MUTATION.iter_unpack(script[1:]))[:n_mutations]:
        at = place * len(buffer) >> 16
        number = NUMBERS[value % len(NUMBERS)]
        match KINDS[kind % len(KINDS)]:
            case "byte":
                buffer[at : at + 1] = bytes([value & 255])
            case "bit":
                buffer[at : at + 1] = bytes([byte ^ (1 << value % 8) for byte in buffer[at : at + 1]])
            case "u32":
                buffer[at : at + 4] = struct.pack("<I", number & 0xFFFFFFFF)
            case "u64":
                buffer[at : at + 8] = struct.pack("<Q", number)
            case "cut":
                del buffer[at:]
            case "drop":
                del buffer[at : at + 1 + value % 40]
            case "repeat":
                buffer[at:at] = buffer[at : at + 1 + value % 80]
            case "splice":
                buffer[at:] = other[value % len(other) :]
    return bytes(buffer)


def touch(value: object) -> None:
    if isinstance(value, np.ndarray):
        value.tobytes()
    elif isinstance(value, StringArray):
        assert len(value.tolist()) == len(value)
    elif isinstance(value, list):
        for item in value:
            touch(item)


def open_and_read_all(path: Path) -> bool:
    """Open and read the file; False for GGUFError, any other exception escapes."""
    try:
        file = open_gguf(path)
    except GGUFError as error:
        assert str(error).startswith(f"{path}: ")
        return False
    with file:
        for key, value in file.metadata.items():
            touch(value)
            assert file.metadata.raw(key).size > 0
        for tensor in file.tensors.values():
            assert tensor.data.nbytes == tensor.n_bytes == len(tensor.data.tobytes())
            if can_dequantize(tensor.type):
                assert tensor.dequantize().shape == tensor.shape
    return True


@pytest.fixture(scope="module")
def headers(tmp_path_factory) -> list[bytes]:
    return seeds(tmp_path_factory.mktemp("seeds"))


def test_seeds_include_headers_of_real_vocabularies(headers):
    assert len(headers) == 3 + len(need_vocabularies())


def test_seeds_are_valid(headers, tmp_path):
    for i, data in enumerate(headers):
        path = tmp_path / f"{i}.gguf"
        path.write_bytes(data)
        assert open_and_read_all(path)


SCRIPT = 1 + N_MUTATIONS * MUTATION.size


DAMAGED = {
    "scripts": st.binary(min_size=N_MUTANTS * SCRIPT, max_size=N_MUTANTS * SCRIPT),
    "first": st.integers(0, 100),
}


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(**DAMAGED)
def test_damaged_header_is_parsed_or_rejected(headers, tmp_path_factory, scripts, first):
    read_or_refused(headers, tmp_path_factory.getbasetemp() / "mutant.gguf", scripts, first)


@pytest.mark.rare
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(**DAMAGED)
def test_many_damaged_headers_are_parsed_or_rejected(headers, tmp_path_factory, scripts, first):
    read_or_refused(headers, tmp_path_factory.getbasetemp() / "mutant.gguf", scripts, first)


def read_or_refused(headers, path, scripts, first):
    for i in range(N_MUTANTS):
        seed, other = headers[(first + i) % len(headers)], headers[(first + 2 * i + 1) % len(headers)]
        # Another file each time: a map of the one before may still be alive.
        path.unlink(missing_ok=True)
        path.write_bytes(mutate(seed, other, scripts[i * SCRIPT : (i + 1) * SCRIPT]))
        open_and_read_all(path)


def test_every_number_in_every_field_is_parsed_or_rejected(headers, tmp_path):
    """Systematic where the property above is random: each hard number at each byte of the fixed header."""
    path = tmp_path / "mutant.gguf"
    outcomes = set()
    for at in range(4, 64, 4):
        for number in NUMBERS:
            mutant = bytearray(headers[0])
            mutant[at : at + 8] = struct.pack("<Q", number)
            path.unlink(missing_ok=True)
            path.write_bytes(mutant)
            outcomes.add(open_and_read_all(path))
    assert outcomes == {False, True}


def test_opening_a_damaged_file_allocates_at_most_its_size(headers, tmp_path):
    random = np.random.default_rng(3)
    path = tmp_path / "mutant.gguf"
    # A large tail gives every wild count and length room to be believed.
    tails = [bytes(1 << 20), random.bytes(1 << 20), b"\1\0\0\0\0\0\0\0" * (1 << 17)]
    for i in range(150):
        mutant = bytearray(headers[i % len(headers)] + tails[i % 3])
        at = int(random.integers(4, len(headers[i % len(headers)])))
        mutant[at : at + 8] = struct.pack("<Q", int(random.choice([2**16, 2**17, 2**18, 2**20, 2**40])))
        path.unlink(missing_ok=True)
        path.write_bytes(mutant)
        assert peak_of_opening(path)[0] < len(mutant) + 200_000


def peak_of_opening(path: Path) -> tuple[int, bool]:
    """Bytes that opening allocates at most, and whether the file is sound."""
    tracemalloc.start()
    try:
        file = open_gguf(path)
        return tracemalloc.get_traced_memory()[1], len(file.paths) > 0
    except GGUFError:
        return tracemalloc.get_traced_memory()[1], False
    finally:
        tracemalloc.stop()


# One wide character makes all characters of a Python string wide.
WIDE = "🦙"
I8 = 24


def tiny_tensors(n: int, name: str = "", dims: Sequence[int] = (), entries: Sequence[bytes] = ()) -> bytes:
    listed = [tensor(f"{i:x}{name}", dims, I8, i * 32) for i in range(n)]
    return gguf_bytes(entries, listed, bytes(32 * n))


def tiny_entries(n: int, name: str = "") -> list[bytes]:
    return [entry(f"{i:x}{name}", 0, b"\1") for i in range(n)]


# name -> (bytes of the file when called, whether it opens)
HOSTILE = {
    "as many tensors as may be": (lambda: tiny_tensors(2**14, dims=(4, 1, 2, 4)), True),
    "tensors with long wide names": (lambda: tiny_tensors(8, WIDE + "x" * 65000), True),
    "as many keys as may be": (lambda: gguf_bytes(tiny_entries(2**12)), True),
    "keys with long wide names": (lambda: gguf_bytes(tiny_entries(8, WIDE + "x" * 65000)), True),
    "all of it": (lambda: tiny_tensors(2**14, WIDE + "x" * 19, (4, 1, 2, 4), tiny_entries(2**12, WIDE)), True),
    "too many tensors": (lambda: tiny_tensors(2**17), False),
    "too many keys": (lambda: gguf_bytes(tiny_entries(2**16)), False),
    "too many long names of tensors": (lambda: tiny_tensors(100, WIDE + "x" * 65000), False),
    "too many long names of keys": (lambda: gguf_bytes(tiny_entries(100, WIDE + "x" * 65000)), False),
    "a count that is a long text": (lambda: gguf_bytes([entry("split.count", 8, string(WIDE + "x" * 2**23))]), False),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_opening_allocates_at_most_the_file_size_plus_8_mb(tmp_path, case):
    make, is_sound = HOSTILE[case]
    data = make()
    path = tmp_path / "hostile.gguf"
    path.write_bytes(data)
    peak, opened = peak_of_opening(path)
    assert opened == is_sound
    assert peak < len(data) + 8_000_000
