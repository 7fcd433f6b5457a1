"""Compares every tiny model with llama.cpp itself, and writes docs/reference/architectures.md.

    pip install llama-cpp-python                   (in an environment of its own, with woolly)
    python -m tests.goldens.peer                   (from the project's root)

transformers proves the arithmetic; llama.cpp proves what a file means: the order of rows, norms with 1 added, names.
Each model runs in a process of its own, since an assertion of llama.cpp ends its process.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.cases.families import FAMILIES
from tests.cases.hybrids import HYBRIDS
from tests.cases.tiny import write_tiny
from woolly import LLM

HERE = Path(__file__).parent
MODELS = FAMILIES | HYBRIDS
PAGE = HERE.parent.parent / "docs" / "reference" / "architectures.md"
ENCODERS = "\n## Encoders\n"  # peer_encoders.py writes what follows
READERS_MARK = "\n## Encoders and decoders\n"  # and peer_readers.py what follows this
HEAD = """# Architectures

How far the logits of Woolly's reference are from those of two other engines, on random models of a few kilobytes that
show what each family has (`tests/cases/families.py`, `hybrids.py`, `rwkv.py`): the largest distance over 48
positions, as a part of the norm of the logits. transformers computes in f32 (`tests/goldens/make.py`); llama.cpp with
f32 weights and cache (`tests/goldens/peer.py` writes this page). llama.cpp takes gelu from a table of f16, which
costs it about 1e-3, and 1e-2 at single positions of gemma4-e; with that table in Woolly's place the median falls from
5e-4 to 4e-5. Its gemma3n also divides squared deviations by n - 1, where transformers divides by n; with both, 8e-3
becomes 2e-4. Its llama4 has chunks of 8192 whatever the file says. Its qwen2vl rounds to f16 in some place: a file of
the same weights named qwen2 agrees to 1e-6. Its phimoe computes RMS norms and normalized softmaxes in place of layer
norms and the sparse mixer; with both in Woolly's place, 1 becomes 2e-6. Its smallthinker has windows of 4096 whatever
the file says. Its grovemoe sends what the experts give, not what they get, through the small ones, with shares of
other experts than those that the authors' code takes. Its grok does not bound the router's logits, as xAI's code does
if the file says so: 2e-1 becomes 5e-4 without. Its plamo2 had not ended after ten minutes. Indices of its deepseek32,
glm-dsa and dots3note need heads of 64, which the models compared with it have in place of 16. That of its dots3note
turns halves, where transformers turns neighbours: 1 becomes 2e-6 with halves in Woolly's place. Its minimax-m3 chooses
blocks only with its flash attention, which rounds to f16. Where the two engines differ, Woolly does what transformers
does: so of gemma3n and phimoe, whose columns say so.

Rows of multimodal models, such as gemma3, paddleocr and qwen2vl, cover their text model only: their towers are held
against transformers by tests, family by family ([images](../use/images.md), [sounds](../use/audio.md)). paddleocr,
deepseek2-ocr, hunyuan_vl, deepseek4, bailingmoe3, hy_v4 and qwen4exp have been compared with transformers only;
rwkv6qwen2 and cogvlm with their formulas only.

transformers has no RWKV-6, QRWKV-6, RWKV-7 and ARWKV-7: the formulas of their papers are computed in f64. It has no
arctic, bailingmoe, baichuan of 40 layers, cogvlm, grok, grovemoe, jais, maincoder, maple, nanbeige, openelm, plamo,
plamo2, plamo3, plm, refact, smallthinker, spark2_5 and talkie either: loops of `tests/goldens/loops.py`, `skeletons.py`
and `cogvlm.py` stand for it, and for the classes of chameleon, glm5next and hrm_text.

Woolly honours keys that llama.cpp reads in some architectures only, since transformers does what they say, and one
file may give other logits in the two engines: `attention.sliding_window` (llama.cpp: in 28 architectures),
`expert_gating_func`, `expert_weights_norm` and `expert_weights_scale` (not in llama, qwen3moe, granitemoe, olmoe,
minimax-m2, lfm2moe, hunyuan-moe), `rope.scaling.yarn_beta_fast` and `_slow` (only grok, mistral3),
`rope.scaling.yarn_attn_factor` in place of YaRN's own magnitude, `rope.freq_base_swa` of mellum, windows of an
exaone4 that has a pattern and not 64 layers. No published file is known in which one of them changes the logits.

| architecture | model | transformers | llama.cpp |
|---|---|---|---|
"""


def peer_logits(path, ids, flash=False):
    """Logits of all positions by llama.cpp."""
    import llama_cpp

    model = llama_cpp.Llama(
        str(path), n_ctx=512, n_batch=512, logits_all=True, type_k=0, type_v=0, flash_attn=flash, verbose=False
    )
    model.eval(ids)
    return np.array(model.scores[: len(ids)], np.float32)


def distance(logits, others):
    return float((np.linalg.norm(logits - others, axis=1) / np.linalg.norm(others, axis=1)).max())


def row(name):
    """Both distances of one model, llama.cpp's None if it does not open the file."""
    golden = np.load(HERE / f"tiny-{name}.npz")
    ids = golden["ids"].tolist()
    with tempfile.TemporaryDirectory() as folder:
        path = write_tiny(MODELS[name], Path(folder, "tiny.gguf"))
        with LLM(path, backend="reference") as llm:
            logits = llm.logits(ids)
        gold = distance(logits[:, :: int(golden["stride"])], golden["logits"])
        print(json.dumps([gold, None]), flush=True)
        if "attention.indexer.key_length" in MODELS[name].extra and name != "minimax-m3":
            wide = MODELS[name].extra | {"attention.indexer.key_length": 64}
            write_tiny(replace(MODELS[name], extra=wide), path)
            with LLM(path, backend="reference") as llm:
                logits = llm.logits(ids)
        print(json.dumps([gold, distance(logits, peer_logits(path, ids, flash=name == "minimax-m3"))]))


def main():
    if len(sys.argv) > 1:
        row(sys.argv[1])
        return
    lines = []
    for name, tiny in sorted(MODELS.items(), key=lambda item: (item[1].architecture, item[0])):
        done = subprocess.run([sys.executable, "-m", "tests.goldens.peer", name], capture_output=True, text=True)
        gold, peer = json.loads(done.stdout.splitlines()[-1])
        shown = "does not open it" if peer is None else f"{peer:.0e}"
        lines.append(f"| `{tiny.architecture}` | {name} | {gold:.0e} | {shown} |\n")
        print(lines[-1], end="", flush=True)
    _, mark, encoders = PAGE.read_text().partition(ENCODERS)
    PAGE.write_text(HEAD + "".join(lines) + mark + encoders)


if __name__ == "__main__":
    main()
