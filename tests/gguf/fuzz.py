"""Damaged models through `LLM` and `show`, in child processes: `scripts/fuzz 10000`.

Each mutant must run or be refused with a WoollyError: no signal, no other exception, at most 10 s, and at most 500 MB
beyond the size of its file. A mutant is named by its number, so `scripts/fuzz 1 --first 4711` runs one again.
"""

from __future__ import annotations

import argparse
import json
import random
import select
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.cases.tiny import TINY, write_tiny
from tests.gguf.build import gguf_bytes, string, tensor
from tests.gguf.test_fuzz import NUMBERS
from woolly import LLM, SamplingParams, _native
from woolly.errors import WoollyError
from woolly.gguf import GGUFFile, open_gguf
from woolly.machine.memory import peak_mib, reset_peak

SECONDS = 10
MEGABYTES = 500
BATCH = 250  # mutants of one child
SIZES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
FLOATS = [0.0, -1.0, 1e-30, 1e30, float("inf"), float("nan")]
TEXTS = [
    b"",
    b"\xff\xfe",
    b"llama",
    b"qwen2",
    b"gpt2",
    b"bert",
    b"{{ 1 / 0 }}",
    b"{% for i in range(10**9) %}{% endfor %}",
]


def entries_of(file: GGUFFile) -> list[tuple[bytes, bytes]]:
    return [(key.encode(), file.metadata.raw(key).tobytes()) for key in file.metadata]


def changed(raw: bytes, draw: random.Random) -> bytes:
    """A value with a hard number, another text, another count or another type."""
    kind = struct.unpack_from("<I", raw)[0]
    if draw.random() < 0.1:
        return struct.pack("<I", draw.randrange(14)) + raw[4:]
    if kind in SIZES:
        form = SIZES[kind]
        if form in "fd":
            return raw[:4] + struct.pack("<" + form, draw.choice(FLOATS))
        return raw[:4] + (draw.choice(NUMBERS) % 2**64).to_bytes(8, "little")[: struct.calcsize(form)]
    if kind == 8:
        return raw[:4] + string(draw.choice(TEXTS))
    at = draw.choice((4, 8, 16, draw.randrange(4, max(5, len(raw)))))
    if draw.random() < 0.5:
        return raw[:at] + struct.pack("<Q", draw.choice(NUMBERS) % 2**64) + raw[at + 8 :]
    return raw[:at] + bytes([draw.randrange(256)]) + raw[at + 1 :]


def mutant(file: GGUFFile, number: int) -> bytes:
    """The file with one to three changes of its entries, tensors or data."""
    draw = random.Random(number)
    entries = entries_of(file)
    tensors = [[t.name, list(t.shape[::-1]), int(t.type), t.offset] for t in file.tensors.values()]
    start = min(int(t[3]) for t in tensors)
    data = bytearray(file._files[0].bytes[start:].tobytes())
    for t in tensors:
        t[3] = int(t[3]) - start
    for _ in range(draw.randint(1, 3)):
        what = draw.choice(
            ("value", "value", "value", "drop", "key", "repeat", "dims", "type", "offset", "name", "data", "cut")
        )
        i, t = draw.randrange(len(entries)), draw.choice(tensors)
        if what == "value":
            entries[i] = entries[i][0], changed(entries[i][1], draw)
        elif what == "drop" and len(entries) > 1:
            del entries[i]
        elif what == "key":
            entries[i] = draw.choice(entries)[0], entries[i][1]
        elif what == "repeat":
            entries.append((entries[i][0] + b"x", changed(entries[i][1], draw)))
        elif what == "dims" and t[1]:
            t[1][draw.randrange(len(t[1]))] = draw.choice(NUMBERS) % 2**64
        elif what == "type":
            t[2] = draw.randrange(45)
        elif what == "offset":
            t[3] = draw.choice((0, 32, len(data) - 32, draw.choice(NUMBERS) % 2**64))
        elif what == "name":
            t[0] = draw.choice(tensors)[0] + draw.choice(("", "x"))
        elif what == "data":
            at = draw.randrange(len(data))
            data[at : at + 64] = draw.choice((bytes([255]) * 64, bytes(64), draw.randbytes(64)))
        elif what == "cut":
            del data[draw.randrange(len(data)) :]
    return gguf_bytes([string(k) + raw for k, raw in entries], [tensor(*t) for t in tensors], bytes(data))  # type: ignore[arg-type]


def outcome(path: Path) -> str:
    """ran, refused, or the exception that should not be."""
    from woolly.cli.commands.show import _facts

    try:
        with open_gguf(path) as file:
            json.dumps(_facts(file, None, None, True))
        with LLM(path, threads=1, ctx=None) as llm:
            llm.generate([1, 2, 3], SamplingParams(max_tokens=2, seed=1))
            llm.chat([{"role": "user", "content": "hi"}], SamplingParams(max_tokens=2, seed=1))
        return "ran"
    except WoollyError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def child(first: int, count: int) -> None:
    """Prints a line for each mutant before and after it."""
    _native.measure_bandwidth = lambda threads, megabytes: 10.0  # type: ignore[assignment]  # takes a second each
    names = sorted(TINY)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, first + count):
            tiny = TINY[names[number % len(names)]]
            seed = Path(folder) / f"{tiny.name}.gguf"
            if not seed.exists():
                write_tiny(tiny, seed)
            with open_gguf(seed) as file:
                data = mutant(file, number)
            path = Path(folder) / f"{number}.gguf"
            path.write_bytes(data)
            is_reset = reset_peak()
            before = peak_mib()
            print(f"{number} begins", flush=True)
            found = outcome(path)
            if is_reset and peak_mib() - before > MEGABYTES + len(data) / 2**20:
                found = f"takes {peak_mib() - before:.0f} MB"
            print(f"{number} {found}".replace("\n", " "), flush=True)
            path.unlink()


def watch(first: int, count: int, seen: Counter[str]) -> int:
    """Follows one child and returns the number of the next mutant."""
    command = [sys.executable, "-m", "tests.gguf.fuzz", str(count), "--first", str(first), "--child"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1)
    assert process.stdout is not None
    number, last = first, "begins"
    while True:
        patience = 60 if last != "begins" or number == first else SECONDS
        if not select.select([process.stdout], [], [], patience)[0]:
            process.kill()
            process.wait()
            last = f"takes more than {patience} s"
            break
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            if code == 0:
                return first + count
            last = f"ends with {code}"
            break
        text, last = line.rstrip().split(" ", 1)
        number = int(text)
        if last != "begins":
            seen[last if last in ("ran", "refused") else "wrong"] += 1
            if last not in ("ran", "refused"):
                print(f"mutant {number}: {last}", flush=True)
    seen["wrong"] += 1
    print(f"mutant {number}: {last}", flush=True)
    return number + 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.first, options.count)
        return 0
    seen: Counter[str] = Counter()
    number, end = options.first, options.first + options.count
    while number < end:
        number = watch(number, min(BATCH, end - number), seen)
        print(f"{number - options.first} mutants: {dict(seen)}", flush=True)
    return 1 if seen["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
