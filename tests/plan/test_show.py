"""Plans are snapshot-tested as text."""

import re
from pathlib import Path

import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from woolly import models
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.plan import show

FILES = "|".join(path.stem for path in Path(models.__file__).parent.rglob("*.py"))

QWEN3_LAYER = """\
embed v0 [batch, 64] token_embd.weight F32
rms_norm v0 v1 [batch, 64] blk.0.attn_norm.weight F32 eps=1e-05
linear v1 v2 [batch, 128] blk.0.attn_q.weight F32
linear v1 v3 [batch, 64] blk.0.attn_k.weight F32
linear v1 v4 [batch, 64] blk.0.attn_v.weight F32
rms_norm v2 v5 [batch, 128] blk.0.attn_q_norm.weight F32 eps=1e-05
rms_norm v3 v6 [batch, 64] blk.0.attn_k_norm.weight F32 eps=1e-05
rope v5 v7 [batch, 128] rope=neox 32/32 base 10000
rope v6 v8 [batch, 64] rope=neox 32/32 base 10000
attention v7,v8,v4 v9 [batch, 128] entry=0 head_dim=32 scale=0.176777
linear v9 v10 [batch, 64] blk.0.attn_output.weight F32
add v0,v10 v11 [batch, 64]
rms_norm v11 v12 [batch, 64] blk.0.ffn_norm.weight F32 eps=1e-05
linear v12 v13 [batch, 96] blk.0.ffn_gate.weight F32
linear v12 v14 [batch, 96] blk.0.ffn_up.weight F32
glu v13,v14 v15 [batch, 96] act=silu
linear v15 v16 [batch, 64] blk.0.ffn_down.weight F32
add v11,v16 v17 [batch, 64]
"""


def table(name, folder):
    with open_gguf(write_tiny(FAMILIES[name], folder / "tiny.gguf")) as file:
        return show(trace(file))


def squeeze(text):
    """Without the step number, the alignment and the source line."""
    lines = (re.sub(r"\S+\.py:\d+", "", line).split()[1:] for line in text.splitlines()[1:])
    return "".join(" ".join(cells) + "\n" for cells in lines)


def test_first_layer_of_qwen3_reads_as_in_the_paper(tmp_path):
    assert squeeze(table("qwen3", tmp_path)).startswith(QWEN3_LAYER)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_step_names_its_line_in_the_model_file(name, tmp_path):
    lines = table(name, tmp_path).splitlines()[1:]
    assert all(re.search(rf"({FILES})\.py:\d+\b", line) for line in lines)


def test_granite_shows_its_four_scalars(tmp_path):
    text = table("granite", tmp_path)
    assert "factor=12" in text
    assert text.count("factor=0.22") == 4
    assert "factor=0.125" in text
    assert "scale=0.0625" in text
