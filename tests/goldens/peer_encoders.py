"""Compares every tiny encoder, in F32 and in Q8_0, with llama.cpp itself, as peer.py does the decoders.

    python -m tests.goldens.peer_encoders          (from the project's root, in the environment of peer.py)

Writes the second part of docs/reference/architectures.md.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.cases.encoders import ENCODERS, PAIR, TEXTS
from tests.cases.tiny import write_tiny
from tests.goldens.peer import ENCODERS as MARK
from tests.goldens.peer import HERE, PAGE, READERS_MARK
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options, get_backend, pages_for

ALL = [*TEXTS.values(), PAIR]
HEAD = """
Of encoders, and of decoders that are read as such, the vectors or scores of four texts of 1 to 40 tokens
(`tests/cases/encoders.py`), by the cpu backend (`tests/goldens/make_encoders.py`, `tests/goldens/peer_encoders.py`).
llama.cpp's gelu is the tanh form of a table of f16, and in Q8_0 both engines round activations, each in its own way; it
knows no second type of a pair's second text (`bert-rank`), and does not open what has "-". Caches of `qwen3` are f16.

| architecture | model | transformers | llama.cpp | both in Q8_0 |
|---|---|---|---|---|
"""


def ours(path, ids):
    with open_gguf(path) as file:
        plan = trace(file)
        program = get_backend("cpu").compile(plan, file.tensors, Options(threads=1))
        rows = range(len(ids)) if plan.pooling == "none" else None
        n_pages = pages_for(len(ids))
        values = program.run(Batch.of([(ids, 0, list(range(n_pages)))], rows), program.new_state(n_pages)).copy()
        if plan.result == "scores" and plan.architecture == "qwen3":  # llama.cpp's head ends in a softmax
            values = np.exp(values - values.max(axis=1, keepdims=True))
            values /= values.sum(axis=1, keepdims=True)
        return plan, values


def peers(path, texts, plan):
    import llama_cpp

    model = llama_cpp.Llama(
        str(path), embedding=True, n_ctx=256, n_batch=256, n_ubatch=256, flash_attn=False, verbose=False
    )
    width = plan.width
    for ids in texts:
        model._ctx.memory_seq_rm(-1, -1, -1) if hasattr(model._ctx, "memory_seq_rm") else model._ctx.kv_cache_clear()
        model._batch.reset()
        model._batch.add_sequence(ids, 0, True)
        context = model._ctx.ctx
        (llama_cpp.llama_encode if plan.architecture == "t5encoder" else llama_cpp.llama_decode)(
            context, model._batch.batch
        )
        if plan.pooling == "none":
            rows = [llama_cpp.llama_get_embeddings_ith(context, i)[:width] for i in range(len(ids))]
        else:
            rows = [llama_cpp.llama_get_embeddings_seq(context, 0)[:width]]
        yield np.array(rows, np.float32)


def distance(values, others):
    return float((np.linalg.norm(values - others, axis=1) / np.linalg.norm(others, axis=1)).max())


def row(name, type):
    """Distances of one model from its golden and from llama.cpp."""
    golden = np.load(HERE / f"tiny-{name}.npz")
    with tempfile.TemporaryDirectory() as folder:
        path = write_tiny(replace(ENCODERS[name], type=GGMLType[type]), Path(folder, "tiny.gguf"))
        plan, _ = ours(path, ALL[0])
        values = [ours(path, ids)[1] for ids in ALL]
        golds = [golden[key] for key in golden.files]
        is_softmax = plan.result == "scores" and plan.architecture == "qwen3"
        gold = None if is_softmax else max(map(distance, values, golds))  # the golden has scores before it
        print(json.dumps([gold, None]), flush=True)
        print(json.dumps([gold, max(map(distance, values, peers(path, ALL, plan)))]))


def main():
    if len(sys.argv) == 3:
        row(*sys.argv[1:])
        return
    lines = []
    for name, tiny in sorted(ENCODERS.items(), key=lambda item: (item[1].architecture, item[0])):
        found = []
        for type in ("F32", "Q8_0"):
            command = [sys.executable, "-m", "tests.goldens.peer_encoders", name, type]
            done = subprocess.run(command, capture_output=True, text=True)
            # The table of T5's distances has too few columns for a type of blocks.
            found.append(json.loads((done.stdout.splitlines() or ["[null, null]"])[-1]))
        (gold, peer), (_, quantized) = found
        shown = ["-" if one is None else f"{one:.0e}" for one in (gold, peer, quantized)]
        lines.append(f"| `{tiny.architecture}` | {name} | {' | '.join(shown)} |\n")
        print(lines[-1], end="", flush=True)
    decoders, mark, rest = PAGE.read_text().partition(MARK)
    _, *readers = rest.partition(READERS_MARK)
    PAGE.write_text(decoders + (mark or MARK) + HEAD + "".join(lines) + "".join(readers))


if __name__ == "__main__":
    main()
