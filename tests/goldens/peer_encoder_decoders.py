"""Compares the tiny decoders that read an encoder with llama.cpp itself, as peer.py does other decoders.

    python -m tests.goldens.peer_encoder_decoders           (from the project's root, in the environment of peer.py)

Writes the last part of docs/reference/architectures.md.
"""

import tempfile
from pathlib import Path

import numpy as np

from tests.cases.encoder_decoders import ANSWER, EVERY, READERS, SOURCE, STRIDE
from tests.cases.tiny import write_tiny
from tests.goldens.peer import HERE, PAGE, READERS_MARK, distance
from tests.models.test_encoder_decoders import Halves
from woolly.gguf import open_gguf

HEAD = """
Encoder-decoder models: the logits of 150 positions of an answer to 45 tokens (`tests/cases/encoder_decoders.py`), by
the reference (`tests/goldens/make_encoder_decoders.py`, `tests/goldens/peer_encoder_decoders.py`). transformers
divides the decoder's output by the root of its width if one table serves for tokens and logits, which llama.cpp does
not: its logits are compared without that factor. So greedy answers are the same, and sampled ones differ.

| architecture | model | transformers | llama.cpp |
|---|---|---|---|
"""


def peer_logits(path):
    import llama_cpp

    model = llama_cpp.Llama(
        str(path), n_ctx=512, n_batch=512, n_ubatch=512, logits_all=True, type_k=0, type_v=0, flash_attn=False,
        verbose=False,
    )  # fmt: skip
    for ids, run in ((SOURCE, llama_cpp.llama_encode), (ANSWER, llama_cpp.llama_decode)):
        model._batch.reset()
        model._batch.add_sequence(ids, 0, True)
        assert run(model._ctx.ctx, model._batch.batch) == 0
    rows = (llama_cpp.llama_get_logits_ith(model._ctx.ctx, i)[:320] for i in range(len(ANSWER)))
    return np.array(list(rows), np.float32)


def main():
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name, tiny in READERS.items():
            path = write_tiny(tiny, Path(folder, "tiny.gguf"))
            with open_gguf(path) as file:
                halves = Halves(file, "reference")
                logits = halves.logits(0, halves.n_all, halves.new_state())
            gold = distance(logits[::EVERY, ::STRIDE], np.load(HERE / f"tiny-{name}.npz")["logits"])
            peer = distance(logits * (tiny.width**0.5 if tiny.tied else 1), peer_logits(path))
            lines.append(f"| `{tiny.architecture}` | {name} | {gold:.0e} | {peer:.0e} |\n")
            print(lines[-1], end="", flush=True)
    before, _, _ = PAGE.read_text().partition(READERS_MARK)
    PAGE.write_text(before + READERS_MARK + HEAD + "".join(lines))


if __name__ == "__main__":
    main()
