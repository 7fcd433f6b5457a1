"""Makes the goldens of whole models that see: log-probabilities after a prompt with an image, by transformers.

    python -m tests.goldens.make_vision_models          (from the project's root, in the environment of make.py)

The towers are those of make_towers.py. What transformers adds is what lies between: how tiles are packed with ends of
lines (LLaVA 1.6), and what each row of an image turns by (Qwen 2 VL, PaddleOCR-VL, Hunyuan VL).
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from transformers import models

from tests.cases.families import FAMILIES
from tests.cases.tiny import TINY, write_tiny
from tests.cases.towers import PATCH, SIDE, TOWERS, image, write_tower
from tests.goldens import cogvlm
from tests.goldens.make import HERE, File, build
from tests.goldens.make_towers import qwen
from tests.goldens.newer_towers import mlp, paddleocr
from tests.goldens.newest_towers import hunyuan

FILE = HERE / "vision.npz"
BEFORE, AFTER = b"See the sheep: ", b" What is it?"
GRID = (1, 4, 6)
SECTIONS = [2, 3, 3]


def tiled():
    """An overview and two tiles of a wide image."""
    side = (1, SIDE, SIDE)
    return image(side, side, side, tiles=(1, 2), size=(30, 90))


def written(folder, text, tower):
    """The text model as transformers has it, and the tower's file."""
    model = build(File(write_tiny(text, Path(folder, "text.gguf"))))
    return model, File(write_tower(TOWERS[tower], Path(folder, "tower.gguf")))


def llava(folder):
    model, file = written(folder, TINY["llama"], "llava1.6")
    rows, seen = mlp(file), tiled()
    made = torch.stack([rows(piece)[:-1] for piece in seen.pieces])
    newline = torch.tensor(np.array(file.tensors["v.image_newline"]))
    points = file.get("vision.image_grid_pinpoints")
    config = SimpleNamespace(
        vision_config=SimpleNamespace(image_size=PATCH * SIDE, patch_size=PATCH),
        image_grid_pinpoints=[list(map(int, pair)) for pair in zip(points[::2], points[1::2], strict=True)],
    )
    pack = models.llava_next.modeling_llava_next.LlavaNextModel.pack_image_features
    packed, _ = pack(SimpleNamespace(config=config), [made], torch.tensor([seen.size]), "default", newline)
    return model(inputs_embeds=embedded(model.model, packed[0])).logits


def qwen2vl(folder):
    model, file = written(folder, replace(TINY["qwen2"], name="qwen2vl-text"), "qwen2vl")
    own = models.qwen2_vl
    made = own.configuration_qwen2_vl.Qwen2VLTextConfig, own.modeling_qwen2_vl.Qwen2VLTextModel
    return turning(model, qwen(file), *made, own.modeling_qwen2_vl.Qwen2VLModel)


def paddleocr_vl(folder):
    model, file = written(folder, FAMILIES["paddleocr"], "paddleocr")
    own = models.paddleocr_vl
    made = own.configuration_paddleocr_vl.PaddleOCRTextConfig, own.modeling_paddleocr_vl.PaddleOCRTextModel
    return turning(model, paddleocr(file), *made, own.modeling_paddleocr_vl.PaddleOCRVLModel)


def hunyuan_vl(folder):
    """Halves of a pair turn by one position, as by the makers' code; transformers gives each of them another."""
    own, sections = models.hunyuan_vl, [2, 2, 2, 2]
    model, file = written(folder, FAMILIES["hunyuan_vl"], "hunyuanvl")
    made = hunyuan(file)

    def tower(piece):
        *rows, line, begin, end = made(piece)
        lines = torch.stack(rows).reshape(2, 3, -1)
        lines = torch.cat([lines, line.expand(2, 1, -1)], dim=1).reshape(8, -1)
        return torch.cat([begin[None], lines, end[None]])

    def pairs(self, freq):
        parts = torch.cat((freq, freq), dim=-1).split(sections * 2, dim=-1)
        return torch.cat([one[i % len(sections)] for i, one in enumerate(parts)], dim=-1)

    own.modeling_hunyuan_vl.HunYuanVLRotaryEmbedding.recomposition_frequencies = pairs
    made_of = own.configuration_hunyuan_vl.HunYuanVLTextConfig, own.modeling_hunyuan_vl.HunYuanVLTextModel
    whole = own.modeling_hunyuan_vl.HunYuanVLModel
    rope = {"rope_type": "dynamic", "alpha": 4.0, "factor": 1.0, "rope_theta": 10000.0, "mrope_section": sections}
    return turning(model, tower, *made_of, whole, rope)


def cogvlm_17b(folder):
    """CogVLM, whose text model has separate matrices for image rows."""
    text = File(write_tiny(FAMILIES["cogvlm"], Path(folder, "text.gguf")))
    rows = cogvlm.tower(File(write_tower(TOWERS["cogvlm"], Path(folder, "tower.gguf"))))(seen := square())
    *own, begin, end = rows
    assert len(own) == len(seen.values)
    return torch.tensor(cogvlm.logits(text, BEFORE, torch.stack([begin, *own, end]), AFTER))[None]


def square():
    """An image of the trained size."""
    return image((1, SIDE, SIDE)).pieces[0]


def turning(model, tower, configuration, module, whole, rope=None):
    """Logits of a text model whose rows of an image turn by line and column."""
    rows = tower(image(GRID).pieces[0])
    own = model.config.to_dict()
    for key in ("model_type", "architectures", "rope_parameters", "layer_types"):
        own.pop(key, None)
    rope = rope or {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": SECTIONS}
    text = module(configuration(**own, rope_parameters=rope))
    text.load_state_dict(model.model.state_dict(), strict=True)
    inputs = embedded(model.model, rows)
    n, kinds = inputs.shape[1], torch.zeros(1, inputs.shape[1], dtype=torch.int32)
    kinds[0, len(BEFORE) : len(BEFORE) + len(rows)] = 1
    vision = SimpleNamespace(spatial_merge_size=2)
    asked = SimpleNamespace(
        config=SimpleNamespace(vision_config=vision, text_config=SimpleNamespace(rope_parameters=rope))
    )
    asked.get_vision_position_ids = lambda *a, **k: whole.get_vision_position_ids(asked, *a, **k)
    ids = torch.zeros(1, n, dtype=torch.long)
    positions, _ = whole.get_rope_index(asked, ids, kinds, image_grid_thw=torch.tensor([GRID]))
    # Without a mask, positions that do not grow are taken for several texts.
    mask = torch.ones(1, n, dtype=torch.long)
    hidden = text.float().eval()(inputs_embeds=inputs, position_ids=positions, attention_mask=mask).last_hidden_state
    return model.lm_head(hidden)


def embedded(model, rows):
    """[1, n, width]: tokens of both texts, which are their bytes, with rows between them."""
    before, after = (model.embed_tokens(torch.tensor([list(text)])) for text in (BEFORE, AFTER))
    return torch.cat([before, rows[None], after], dim=1)


def main():
    found = {}
    with torch.no_grad():
        for name, maker in (("llava1.6", llava), ("qwen2vl", qwen2vl), ("paddleocr", paddleocr_vl),
                            ("hunyuanvl", hunyuan_vl), ("cogvlm", cogvlm_17b)):  # fmt: skip
            with tempfile.TemporaryDirectory() as folder:
                found[name] = torch.log_softmax(maker(folder)[0, -1], dim=-1).numpy().astype(np.float32)
    np.savez_compressed(FILE, **found)
    print({name: (len(one), one.max()) for name, one in found.items()})


if __name__ == "__main__":
    main()
