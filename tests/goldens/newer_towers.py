"""Towers of newer families in transformers, for make_towers.py; the resampler, which it does not have, in torch."""

import numpy as np
import torch
import transformers
from transformers import models

from tests.cases.towers import PATCH, SIDE, TEXT
from tests.goldens.make_towers import CLIP_BLOCK, GATED, QWEN_BLOCK, image, llava, load, named, sizes

SIGLIP = {
    "v.patch_embd": "embeddings.patch_embedding", "v.position_embd": "embeddings.position_embedding",
    "v.post_ln": "post_layernorm",
}  # fmt: skip


def patches(one):
    """[patches, height of a patch, width, colours]."""
    return one.values.reshape(-1, 3, PATCH, PATCH).transpose(0, 2, 3, 1)


def siglip(file):
    """SigLIP with its projector's encoder loaded."""
    vision = transformers.SiglipVisionConfig(**sizes(file), layer_norm_eps=1e-6, vision_use_head=False)
    tower = models.siglip.modeling_siglip.SiglipVisionModel(vision)
    prefix = "vision_model." if any(name.startswith("vision_model.") for name in tower.state_dict()) else ""
    arrays = named(file, CLIP_BLOCK, "encoder.layers", SIGLIP)
    return load(tower, {prefix + name: array for name, array in arrays.items()}), vision


def mlp(file):
    """LLaVA 1.5, 1.6 and Granite Vision; the last two end with the row that ends a line."""
    if "v.class_embd" in file.tensors:
        rows = llava(file)
    else:
        tower, _ = siglip(file)
        first, second = linear(file, "mm.0"), linear(file, "mm.2")
        chosen = file.get("vision.feature_layer")

        def rows(one):
            states = tower(image(one), output_hidden_states=True).hidden_states
            joined = torch.cat([states[i] for i in chosen], dim=-1)
            return second(torch.nn.functional.gelu(first(joined)))[0]

    if "v.image_newline" not in file.tensors:
        return rows
    newline = torch.tensor(np.array(file.tensors["v.image_newline"]))[None]
    return lambda one: torch.cat([rows(one), newline])


def linear(file, name):
    """A matrix of the file as a module."""
    weight = file.tensors[f"{name}.weight"]
    weight = weight.reshape(len(weight), -1)
    bias = f"{name}.bias" in file.tensors
    module = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias)
    return load(module, {"weight": weight} | ({"bias": file.tensors[f"{name}.bias"]} if bias else {}))


def layer_norm(file, name, eps):
    """A norm of the file as a module."""
    module = torch.nn.LayerNorm(len(file.tensors[f"{name}.weight"]), eps=eps)
    return load(module, {one: file.tensors[f"{name}.{one}"] for one in ("weight", "bias")})


def gemma4(file):
    vision = models.gemma4.configuration_gemma4.Gemma4VisionConfig(
        **{k: v for k, v in sizes(file).items() if k != "image_size"}, num_key_value_heads=2, head_dim=16,
        pooling_kernel_size=3, position_embedding_size=12, use_clipped_linears=True, standardize=True,
        rms_norm_eps=1e-6,
    )  # fmt: skip
    tower = models.gemma4.modeling_gemma4.Gemma4VisionModel(vision)
    block = {
        "ln1": "input_layernorm", "ln2": "pre_feedforward_layernorm", "attn_post_norm": "post_attention_layernorm",
        "ffn_post_norm": "post_feedforward_layernorm", "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
    }  # fmt: skip
    block |= {f"attn_{one}": f"self_attn.{one}_proj.linear" for one in "qkv"} | {"attn_out": "self_attn.o_proj.linear"}
    block |= {f"ffn_{one}": f"mlp.{one}_proj.linear" for one in ("gate", "up", "down")}
    arrays = named(file, block, "encoder.layers", {"v.std_bias": "std_bias", "v.std_scale": "std_scale"})
    arrays = {name.replace(".linear.input", ".input").replace(".linear.output", ".output"): a
              for name, a in arrays.items()}  # fmt: skip
    arrays["patch_embedder.position_embedding_table"] = file.tensors["v.position_embd.weight"]
    filters = np.array(file.tensors["v.patch_embd.weight"]).transpose(0, 2, 3, 1)
    arrays["patch_embedder.input_proj.weight"] = filters.reshape(len(filters), -1)
    load(tower, arrays)
    project = linear(file, "mm.input_projection")

    def rows(one):
        _, height, width = one.grid
        y, x = np.divmod(np.arange(height * width), width)
        positions = torch.tensor(np.stack([x, y], axis=1))[None]
        values = torch.tensor(patches(one).reshape(1, height * width, -1))
        hidden = tower(values, positions).last_hidden_state
        hidden = hidden * torch.pow(hidden.pow(2).mean(-1, keepdim=True) + 1e-6, -0.5)
        return project(hidden)

    return rows


def lfm2(file):
    vision = transformers.Siglip2VisionConfig(
        **{k: v for k, v in sizes(file).items() if k != "image_size"}, num_patches=SIDE**2, layer_norm_eps=1e-6,
        vision_use_head=False,
    )  # fmt: skip
    config = transformers.Lfm2VlConfig(
        vision_config=vision.to_dict(), text_config={"model_type": "lfm2", "hidden_size": TEXT},
        projector_hidden_size=48, downsample_factor=2,
    )  # fmt: skip
    tower = models.siglip2.modeling_siglip2.Siglip2VisionModel(vision)
    prefix = "vision_model." if any(name.startswith("vision_model.") for name in tower.state_dict()) else ""
    arrays = named(file, CLIP_BLOCK, "encoder.layers", SIGLIP)
    filters = np.array(file.tensors["v.patch_embd.weight"]).transpose(0, 2, 3, 1)
    arrays["embeddings.patch_embedding.weight"] = filters.reshape(len(filters), -1)
    load(tower, {prefix + name: array for name, array in arrays.items()})
    projector = models.lfm2_vl.modeling_lfm2_vl.Lfm2VlMultiModalProjector(config)
    load(projector, named(file, {}, "", {"mm.input_norm": "layer_norm", "mm.1": "linear_1", "mm.2": "linear_2"}))

    def rows(one):
        _, height, width = one.grid
        values = torch.tensor(patches(one).reshape(1, height * width, -1))
        mask = torch.ones(1, height * width, dtype=torch.int32)
        hidden = tower(values, mask, torch.tensor([[height, width]])).last_hidden_state
        return projector(hidden.reshape(1, height, width, -1)).reshape(-1, TEXT)

    return rows


def llama4(file):
    vision = transformers.Llama4VisionConfig(
        **sizes(file), pixel_shuffle_ratio=0.5, projector_input_dim=48, projector_output_dim=48, vision_output_dim=48,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    tower = models.llama4.modeling_llama4.Llama4VisionModel(vision)
    block = CLIP_BLOCK | {"ln1": "input_layernorm", "ln2": "post_attention_layernorm", "attn_out": "self_attn.o_proj"}
    outside = {
        "v.patch_embd": "patch_embedding.linear", "v.class_embd": "class_embedding", "v.pre_ln": "layernorm_pre",
        "v.position_embd.weight": "positional_embedding_vlm", "v.post_ln": "layernorm_post",
        "mm.model.mlp.1": "vision_adapter.mlp.fc1", "mm.model.mlp.2": "vision_adapter.mlp.fc2",
    }  # fmt: skip
    load(tower, named(file, block, "model.layers", outside))
    for module in tower.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-6
    project = linear(file, "mm.model.fc")
    return lambda one: project(tower(image(one)).last_hidden_state)[0]


def glm4v(file):
    config = models.glm4v.configuration_glm4v.Glm4vVisionConfig(
        depth=file.get("vision.block_count"), num_heads=2, hidden_size=32, intermediate_size=48, out_hidden_size=TEXT,
        image_size=PATCH * SIDE, patch_size=PATCH, spatial_merge_size=2, rms_norm_eps=1e-6, attention_bias=False,
    )  # fmt: skip
    module = models.glm4v.modeling_glm4v.Glm4vVisionModel(config)
    outside = {
        "v.patch_embd.bias": "patch_embed.proj.bias", "v.position_embd": "embeddings.position_embedding",
        "v.norm_embd": "post_conv_layernorm", "v.post_ln": "post_layernorm", "mm.patch_merger": "downsample",
        "mm.model.fc": "merger.proj", "mm.post_norm": "merger.post_projection_norm", "mm.gate": "merger.gate_proj",
        "mm.up": "merger.up_proj", "mm.down": "merger.down_proj",
    }  # fmt: skip
    arrays = named(file, QWEN_BLOCK | GATED, "blocks", outside)
    for i in range(config.depth):
        qkv = [file.tensors[f"v.blk.{i}.attn_{one}.weight"] for one in "qkv"]
        arrays[f"blocks.{i}.attn.qkv.weight"] = np.concatenate(qkv)
    arrays = {name: array for name, array in arrays.items() if not name.startswith("patch_embed.proj.weight")}
    filters = [file.tensors[f"v.patch_embd.weight{end}"] for end in ("", ".1")]
    load(module, arrays | {"patch_embed.proj.weight": np.stack(filters, axis=2)})

    def rows(one):
        _, height, width = one.grid
        values = one.values.reshape(height // 2, 2, width // 2, 2, 3, PATCH, PATCH).transpose(0, 2, 1, 3, 4, 5, 6)
        frames = np.stack([values, values], axis=5).reshape(height * width, -1)
        return module(torch.tensor(frames), grid_thw=torch.tensor([one.grid])).pooler_output

    return rows


def paddleocr(file):
    model = models.paddleocr_vl.modeling_paddleocr_vl
    vision = models.paddleocr_vl.configuration_paddleocr_vl.PaddleOCRVisionConfig(**sizes(file), layer_norm_eps=1e-6)
    tower = model.PaddleOCRVisionModel(vision)
    prefix = "vision_model." if any(name.startswith("vision_model.") for name in tower.state_dict()) else ""
    arrays = named(file, CLIP_BLOCK, "encoder.layers", SIGLIP)
    own = tower.state_dict()
    arrays = {prefix + name: array for name, array in arrays.items()}
    load(tower, {n: a for n, a in own.items() if "packing" in n or "head." in n} | arrays)
    norm, first, second = layer_norm(file, "mm.input_norm", 1e-5), linear(file, "mm.1"), linear(file, "mm.2")

    def rows(one):
        _, height, width = one.grid
        values = torch.tensor(one.values.reshape(1, -1, 3, PATCH, PATCH))
        seqlens = torch.tensor([0, height * width], dtype=torch.int32)
        grid = torch.tensor([one.grid])
        hidden = tower(values, cu_seqlens=seqlens, image_grid_thw=grid, grid_thw=grid).last_hidden_state
        hidden = norm(hidden.reshape(height // 2, 2, width // 2, 2, -1)).transpose(1, 2)
        return second(torch.nn.functional.gelu(first(hidden.reshape(height * width // 4, -1))))

    return rows


def resampler(file):
    """MiniCPM-V: SigLIP by buckets of positions, then attention of learned queries over patches with 2D waves."""
    tower, _ = siglip(file)
    body = getattr(tower, "vision_model", tower)
    kv, proj = linear(file, "resampler.kv"), linear(file, "resampler.proj")
    norms = [layer_norm(file, f"resampler.ln_{one}", 1e-6) for one in ("q", "kv", "post")]
    attention = torch.nn.MultiheadAttention(128, 1, batch_first=True)
    arrays = {f"in_proj_{part}": np.concatenate([file.tensors[f"resampler.attn.{one}.{part}"] for one in "qkv"])
              for part in ("weight", "bias")}  # fmt: skip
    arrays |= {f"out_proj.{part}": file.tensors[f"resampler.attn.out.{part}"] for part in ("weight", "bias")}
    load(attention, arrays)

    def waves(positions):
        omega = 1.0 / 10000 ** (torch.arange(32, dtype=torch.float64) / 32)
        turns = positions.double()[:, None] * omega
        return torch.cat([turns.sin(), turns.cos()], dim=1).float()

    def rows(one):
        _, height, width = one.grid
        edges = torch.arange(1 / SIDE, 1.0, 1 / SIDE)
        y, x = (torch.bucketize(torch.arange(0, 1 - 1e-6, 1 / n), edges, right=True) for n in (height, width))
        embeddings = body.embeddings
        hidden = embeddings.patch_embedding(image(one)).flatten(2).transpose(1, 2)
        hidden = hidden + embeddings.position_embedding((y[:, None] * SIDE + x).flatten())
        hidden = body.post_layernorm(body.encoder(inputs_embeds=hidden).last_hidden_state)
        lines, columns = (torch.tensor(part) for part in np.divmod(np.arange(height * width), width))
        value = norms[1](kv(hidden))
        key = value + torch.cat([waves(columns), waves(lines)], dim=1)
        query = norms[0](torch.tensor(np.array(file.tensors["resampler.query"])))[None]
        return proj(norms[2](attention(query, key, value)[0]))[0]

    return rows


NEWER = {
    "mlp": mlp, "gemma4v": gemma4, "lfm2": lfm2, "llama4": llama4, "glm4v": glm4v, "paddleocr": paddleocr,
    "resampler": resampler,
}  # fmt: skip
