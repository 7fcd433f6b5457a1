"""Gemma 3n's eyes for make_towers.py: MobileNet-V5 of timm, without torchvision, and transformers' embedder."""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import torch
import transformers
from transformers import models

from tests.cases.mobilenets import BLOCKS, STEM
from tests.cases.towers import TEXT
from tests.goldens.make_towers import load


class Named(type):
    """A class with every attribute."""

    def __getattr__(cls, name):
        return named(name)


def named(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Named(name, (), {})


class Absent(ModuleType):
    """A module of torchvision, of which timm imports names that its models do not use."""

    __path__ = ()

    def __getattr__(self, name):
        return named(name)


class AbsentFinder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return ModuleSpec(name, AbsentFinder, is_package=True) if name.split(".")[0] == "torchvision" else None

    @staticmethod
    def create_module(spec):
        return Absent(spec.name)

    @staticmethod
    def exec_module(module):
        pass


def gemma3nv(file):
    """Rows of the image, and after them what the table of tokens gives for its end."""
    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.append(AbsentFinder)
    from timm.layers import RmsNorm2d
    from timm.models import mobilenetv5
    from timm.models._efficientnet_builder import decode_arch_def

    encoder = mobilenetv5.MobileNetV5Encoder(
        decode_arch_def([list(group) for group in BLOCKS]), stem_size=STEM, pad_type="same", norm_layer=RmsNorm2d,
        layer_scale_init_value=1e-5,
    )  # fmt: skip
    width = file.get("vision.embedding_length")
    encoder.msfa = mobilenetv5.MobileNetV5MultiScaleFusionAdapter(encoder.msfa_in_chs, width, 16)
    load(encoder, {
        name.removeprefix("v.").replace("blk.", "blocks.", 1): array
        for name, array in file.tensors.items()
        if name.startswith("v.")
    })  # fmt: skip
    model = models.gemma3n.modeling_gemma3n
    config = transformers.Gemma3nVisionConfig(hidden_size=width)
    embedder = model.Gemma3nMultimodalEmbedder(config, transformers.Gemma3nTextConfig(hidden_size=TEXT))
    names = {
        "mm.embedding": "embedding", "mm.hard_emb_norm": "hard_embedding_norm",
        "mm.soft_emb_norm": "soft_embedding_norm", "mm.input_projection": "embedding_projection",
    }  # fmt: skip
    load(embedder, {f"{own}.weight": file.tensors[f"{name}.weight"] for name, own in names.items()})

    def rows(one):
        side, patch = one.grid[1], round((one.values.shape[1] / 3) ** 0.5)
        pixels = one.values.reshape(side, side, 3, patch, patch).transpose(2, 0, 3, 1, 4)
        pixels = np.ascontiguousarray(pixels).reshape(1, 3, side * patch, side * patch)
        found = encoder(torch.tensor(pixels)).reshape(1, width, side**2).permute(0, 2, 1) * width**0.5
        end = embedder(input_ids=torch.tensor([config.vocab_offset]))
        return torch.cat([embedder(inputs_embeds=found)[0], end])

    return rows
