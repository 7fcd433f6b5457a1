"""More towers for make_towers.py: MiniCPM-V 4.6, Kimi-VL by its successor's tower, dots.ocr by Qwen 2.5 VL's layers,
DeepSeek-OCR by its successor's SAM and by CLIP, Hunyuan VL."""

import numpy as np
import torch
import transformers
from transformers import models

from tests.cases.towers import PATCH, SIDE, TEXT
from tests.goldens.make_towers import CLIP_BLOCK, GATED, QWEN_BLOCK, image, load, named, sizes
from tests.goldens.newer_towers import SIGLIP, layer_norm, linear

MERGER = {
    "ln1": "layer_norm1", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj", "ds_ln": "pre_norm", "ds_ffn_up": "linear_1", "ds_ffn_down": "linear_2",
}  # fmt: skip
KIMI_BLOCK = {
    "ln1": "norm1", "ln2": "norm2", "attn_q": "attn.q_proj", "attn_k": "attn.k_proj", "attn_v": "attn.v_proj",
    "attn_out": "attn.proj", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2",
}  # fmt: skip


def minicpmv46(file):
    model, merges_twice = models.minicpmv4_6.modeling_minicpmv4_6, file.get("vision.projector.scale_factor") == 4
    config = models.minicpmv4_6.configuration_minicpmv4_6.MiniCPMV4_6Config(
        vision_config=sizes(file, layer_norm_eps=1e-6), insert_layer_id=file.get("vision.wa_layer_indexes")[0],
        text_config={"model_type": "qwen2", "hidden_size": TEXT},
    )  # fmt: skip
    tower, merger = model.MiniCPMV4_6VisionModel(config.vision_config), model.MiniCPMV4_6Merger(config)
    outside = SIGLIP | {f"v.vit_merger.{one}": f"vit_merger.{own}" for one, own in MERGER.items()}
    arrays = named(file, CLIP_BLOCK, "encoder.layers", outside)
    load(tower, {n: a for n, a in tower.state_dict().items() if n.startswith("vit_merger.")} | arrays)
    names = {"mm.input_norm": "pre_norm", "mm.up": "linear_1", "mm.down": "linear_2"}
    load(merger, named(file, {}, "", {name: f"mlp.0.{own}" for name, own in names.items()}))

    def rows(one):
        size = torch.tensor([one.grid[1:]])
        hidden = tower(image(one), target_sizes=size, use_vit_merger=merges_twice).last_hidden_state
        out = merger(hidden, size // 2 if merges_twice else size)
        return torch.cat(list(out)).reshape(-1, TEXT)

    return rows


def kimivl(file):
    """Kimi-VL: its files have interleaved rotary pairs, the transformers tower has NeoX pairs."""
    own = models.kimi_k25
    width, heads = file.get("vision.embedding_length"), file.get("vision.attention.head_count")
    vision = own.configuration_kimi_k25.Kimi_K25VisionConfig(
        hidden_size=width, intermediate_size=file.get("vision.feed_forward_length"), patch_size=PATCH,
        num_hidden_layers=file.get("vision.block_count"), num_attention_heads=heads, pos_emb_height=SIDE,
        pos_emb_width=SIDE,
    )  # fmt: skip
    config = own.configuration_kimi_k25.Kimi_K25Config(
        vision_config=vision.to_dict(), projection_hidden_size=width,
        text_config=transformers.DeepseekV3Config(hidden_size=TEXT).to_dict(),
    )  # fmt: skip
    tower = own.modeling_kimi_k25.Kimi_K25VisionModel(vision)
    projector = own.modeling_kimi_k25.Kimi_K25MultimodalProjection(config)
    outside = {
        "v.patch_embd": "patch_embed.proj", "v.position_embd.weight": "patch_embed.pos_emb.position_embeddings",
        "v.post_ln": "final_layernorm",
    }  # fmt: skip
    file.tensors = {
        name: array.reshape(heads, -1, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        if ".attn_q." in name or ".attn_k." in name
        else array
        for name, array in file.tensors.items()
    }
    load(tower, named(file, KIMI_BLOCK, "layers", outside))
    load(projector, named(file, {}, "", {"mm.input_norm": "pre_norm", "mm.1": "in_proj", "mm.2": "out_proj"}))

    def rows(one):
        values = torch.tensor(np.ascontiguousarray(one.values.reshape(-1, 3, PATCH, PATCH)))
        found = tower(values, grid_thw=torch.tensor([one.grid])).pooler_output
        return projector(found).reshape(-1, TEXT)

    return rows


class DotsMerger(torch.nn.Module):
    """The norm after the layers, and the projector, by dots.ocr's own code."""

    def __init__(self, file):
        super().__init__()
        self.after = torch.nn.RMSNorm(32, eps=1e-6)
        load(self.after, {"weight": file.tensors["mm.post_norm.weight"]})
        self.norm = layer_norm(file, "mm.input_norm", 1e-6)
        self.first, self.second = linear(file, "mm.0"), linear(file, "mm.2")

    def forward(self, hidden):
        hidden = self.norm(self.after(hidden)).reshape(-1, 128)
        return self.second(torch.nn.functional.gelu(self.first(hidden)))


def dots_ocr(file):
    """Layers of Qwen 2.5 VL that all look at everything, without biases, within dots.ocr's own code."""
    own, depth = models.qwen2_5_vl, file.get("vision.block_count")
    config = own.configuration_qwen2_5_vl.Qwen2_5_VLVisionConfig(
        hidden_size=32, intermediate_size=file.get("vision.feed_forward_length"), out_hidden_size=TEXT, depth=depth,
        num_heads=2, patch_size=PATCH, spatial_merge_size=2, temporal_patch_size=1,
        fullatt_block_indexes=list(range(depth)),
    )  # fmt: skip
    module = own.modeling_qwen2_5_vl.Qwen2_5_VisionTransformerPretrainedModel(config)
    arrays = named(file, QWEN_BLOCK | GATED, "blocks", {})
    for i in range(depth):
        qkv = [file.tensors[f"v.blk.{i}.attn_{one}.weight"] for one in "qkv"]
        arrays[f"blocks.{i}.attn.qkv.weight"] = np.concatenate(qkv)
    none = {n: torch.zeros_like(a) for n, a in module.state_dict().items() if n.endswith(".bias")}
    rest = {n: a for n, a in module.state_dict().items() if not n.startswith("blocks.")}
    load(module, rest | none | arrays)
    patches, norm = linear(file, "v.patch_embd"), torch.nn.RMSNorm(32, eps=1e-6)
    load(norm, {"weight": file.tensors["v.pre_ln.weight"]})
    module.patch_embed, module.merger = torch.nn.Sequential(patches, norm), DotsMerger(file)

    def rows(one):
        _, height, width = one.grid
        values = one.values.reshape(height // 2, 2, width // 2, 2, -1).transpose(0, 2, 1, 3, 4)
        values = torch.tensor(np.ascontiguousarray(values).reshape(height * width, -1))
        return module(values, grid_thw=torch.tensor([one.grid])).pooler_output

    return rows


SAM_BLOCK = {
    "pre_ln": "layer_norm1", "post_ln": "layer_norm2", "attn.qkv": "attn.qkv", "attn.out": "attn.proj",
    "mlp.lin1": "mlp.lin1", "mlp.lin2": "mlp.lin2", "attn.pos_h": "attn.rel_pos_h", "attn.pos_w": "attn.rel_pos_w",
}  # fmt: skip
SAM_REST = {
    "patch_embd": "patch_embed.projection", "pos_embd": "pos_embed", "neck.0": "neck.conv1",
    "neck.1": "neck.layer_norm1", "neck.2": "neck.conv2", "neck.3": "neck.layer_norm2", "net_2": "proj.conv1",
    "net_3": "proj.conv2",
}  # fmt: skip


def deepseekocr(file):
    """Rows of SAM, and of CLIP over them with its table resized as SAM's, by DeepSeek-OCR's own code."""
    own, side = models.deepseek_ocr2, file.get("vision.image_size") // PATCH
    n_layers = file.get("vision.sam.block_count")
    config = own.configuration_deepseek_ocr2.DeepseekOcr2SamVisionConfig(
        hidden_size=file.get("vision.sam.embedding_length"), num_attention_heads=file.get("vision.sam.head_count"),
        num_hidden_layers=n_layers, image_size=side * PATCH, patch_size=PATCH, mlp_dim=40, output_channels=16,
        window_size=file.get("vision.window_size"), global_attn_indexes=[i for i in range(n_layers) if i % 3 == 2],
        downsample_channels=[24, 32],
    )  # fmt: skip
    config._attn_implementation = "eager"
    encoder, arrays = own.modeling_deepseek_ocr2.DeepseekOcr2SamVisionEncoder(config), {}
    for name, array in file.tensors.items():
        stem, _, kind = name.removeprefix("v.sam.").rpartition(".")
        if name.startswith("v.sam.blk."):
            _, number, rest = stem.split(".", 2)
            arrays[f"layers.{number}.{SAM_BLOCK[rest]}" + f".{kind}" * ("pos_" not in rest)] = array
        elif name.startswith("v.sam."):
            arrays[SAM_REST[stem] + f".{kind}" * (stem != "pos_embd")] = array
    load(encoder, arrays)
    vision = transformers.CLIPVisionConfig(**sizes(file), layer_norm_eps=1e-5)
    layers = models.clip.modeling_clip.CLIPEncoder(vision)
    load(layers, named(file, CLIP_BLOCK, "layers", {}))
    norm, matrix = layer_norm(file, "v.pre_ln", 1e-5), linear(file, "mm.model.fc")
    cls, table, *ends = (
        torch.tensor(np.array(file.tensors[name]).reshape(-1, n))
        for name, n in (("v.class_embd", 32), ("v.position_embd.weight", 32), ("v.image_newline", TEXT),
                        ("v.view_seperator", TEXT))
    )  # fmt: skip

    def rows(one):
        first = encoder(image(one)).last_hidden_state
        n, square = first.shape[-1], table[1:].reshape(1, side // 4, side // 4, 32).permute(0, 3, 1, 2)
        if n != side // 4:
            square = torch.nn.functional.interpolate(square, size=(n, n), mode="bicubic", antialias=True)
        flat = first.flatten(2).transpose(1, 2)
        places = torch.cat([table[:1], square.flatten(2)[0].T])
        second = layers(inputs_embeds=norm(torch.cat([cls, flat[0]]) + places)[None]).last_hidden_state
        return torch.cat([matrix(torch.cat([second[0, 1:], flat[0]], dim=-1)), *ends])

    return rows


HUNYUAN_BLOCK = CLIP_BLOCK | {"attn_out": "self_attn.o_proj"}
HUNYUAN_REST = {
    "v.patch_embd": "embeddings.patch_embedding", "v.position_embd": "embeddings.position_embedding",
    "mm.pre_norm": "patch_merger.before_rms", "mm.0": "patch_merger.proj_conv", "mm.2": "patch_merger.proj_out",
    "mm.model.fc": "patch_merger.mlp", "mm.post_norm": "patch_merger.after_rms",
    "v.image_newline": "patch_merger.image_newline", "mm.image_begin": "patch_merger.image_begin",
    "mm.image_end": "patch_merger.image_end", "v.view_seperator": "patch_merger.image_sep",
}  # fmt: skip


def hunyuan(file):
    """The whole tower, whose table is resized by a factor, as its makers do it: transformers gives the size."""
    own = models.hunyuan_vl
    config = own.configuration_hunyuan_vl.HunYuanVLVisionConfig(
        **sizes(file), max_image_size=PATCH * SIDE, spatial_merge_size=2, text_hidden_size=TEXT, rms_norm_eps=1e-5
    )
    module = own.modeling_hunyuan_vl.HunYuanVLVisionTransformer(config)
    arrays = named(file, HUNYUAN_BLOCK, "layers", HUNYUAN_REST)
    table = arrays["embeddings.position_embedding.weight"]
    arrays["embeddings.position_embedding.weight"] = np.concatenate([np.zeros_like(table[:1]), table])  # a class row
    load(module, arrays)

    def resized(embeddings, height, width):
        square = torch.tensor(table).reshape(1, SIDE, SIDE, -1).permute(0, 3, 1, 2)
        factors = tuple((float(one) + 0.1) / SIDE for one in (height, width))
        found = torch.nn.functional.interpolate(square, scale_factor=factors, mode="bilinear", align_corners=False)
        return found.flatten(2).transpose(1, 2)

    module.embeddings.interpolate_pos_encoding = resized

    def rows(one):
        _, height, width = (n // 2 or 1 for n in one.grid)
        found = module(torch.tensor(one.values), grid_thw=torch.tensor([one.grid])).pooler_output[0]
        begin, *lines, end = found
        lines = torch.stack(lines).reshape(height, width + 1, -1)
        return torch.cat([lines[:, :-1].reshape(height * width, -1), lines[0, -1:], begin[None], end[None]])

    return rows


NEWEST = {
    "minicpmv4_6": minicpmv46,
    "kimivl": kimivl,
    "dots_ocr": dots_ocr,
    "deepseekocr": deepseekocr,
    "hunyuanvl": hunyuan,
}
