"""Makes the golden rows of towers with torch and transformers, as make.py does the logits.

    python -m tests.goldens.make_towers          (from the project's root, in the environment of make.py)

Each golden holds, for each grid of the tower in tests/cases/towers.py, the rows that come into the prompt.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import models

from tests.cases.towers import PATCH, SIDE, TEXT, TOWERS, piece, write_tower
from tests.goldens.make import HERE, File

SIZES = {"image_size": PATCH * SIDE, "patch_size": PATCH}
# From names of tensors to those of modules; a family has its own for blocks and for what is outside.
CLIP_BLOCK = {
    "ln1": "layer_norm1", "ln2": "layer_norm2", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_out": "self_attn.out_proj", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2",
}  # fmt: skip
QWEN_BLOCK = {"ln1": "norm1", "ln2": "norm2", "attn_out": "attn.proj", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}
GATED = {"ffn_up": "mlp.up_proj", "ffn_gate": "mlp.gate_proj", "ffn_down": "mlp.down_proj"}
PIXTRAL_BLOCK = {
    "ln1": "attention_norm", "ln2": "ffn_norm", "attn_q": "attention.q_proj", "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj", "attn_out": "attention.o_proj", "ffn_up": "feed_forward.up_proj",
    "ffn_gate": "feed_forward.gate_proj", "ffn_down": "feed_forward.down_proj",
}  # fmt: skip
INTERN_BLOCK = {
    "ln1": "layernorm_before", "ln2": "layernorm_after", "attn_q": "attention.q_proj", "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj", "attn_out": "attention.projection_layer", "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}  # fmt: skip


def sizes(file, **more):
    """Keywords that most configurations share."""
    return {
        "hidden_size": file.get("vision.embedding_length"),
        "intermediate_size": file.get("vision.feed_forward_length"),
        "num_hidden_layers": file.get("vision.block_count"),
        "num_attention_heads": file.get("vision.attention.head_count"),
        **SIZES,
        **more,
    }


def named(file, blocks, path, outside):
    """Tensors under the names of modules: `blocks` within "path.N.", `outside` as they are."""
    out = {}
    for name, array in file.tensors.items():
        stem, _, kind = name.rpartition(".")
        if name.startswith("v.blk."):
            _, _, number, rest = stem.split(".", 3)
            if rest in blocks:
                out[f"{path}.{number}.{blocks[rest]}.{kind}"] = array
        elif stem in outside:
            out[f"{outside[stem]}.{kind}"] = array
        elif name in outside:
            out[outside[name]] = array
    return out


def load(module, arrays):
    """Gives a module its weights; each must have exactly its own."""
    state = {name: torch.tensor(np.array(array)) for name, array in arrays.items()}
    own = module.state_dict()
    state = {name: array.reshape(own[name].shape) if name in own else array for name, array in state.items()}
    missing, unexpected = module.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    fixed = ("position_ids", "inv_freq", "freqs_ci", ".input_m", ".output_m")
    assert not [name for name in missing if not any(one in name for one in fixed)], missing
    return module.float().eval()


def image(one):
    """[1, 3, height, width] of a piece."""
    _, height, width = one.grid
    values = one.values.reshape(height, width, 3, PATCH, PATCH).transpose(2, 0, 3, 1, 4)
    return torch.tensor(np.ascontiguousarray(values).reshape(1, 3, height * PATCH, width * PATCH))


def gemma3(file):
    vision = transformers.SiglipVisionConfig(**sizes(file), layer_norm_eps=1e-6, vision_use_head=False)
    config = transformers.Gemma3Config(
        vision_config=vision.to_dict(), text_config={"hidden_size": TEXT}, mm_tokens_per_image=4
    )
    outside = {
        "v.patch_embd": "embeddings.patch_embedding", "v.position_embd": "embeddings.position_embedding",
        "v.post_ln": "post_layernorm",
    }  # fmt: skip
    tower = models.siglip.modeling_siglip.SiglipVisionModel(vision)
    prefix = "vision_model." if any(name.startswith("vision_model.") for name in tower.state_dict()) else ""
    arrays = named(file, CLIP_BLOCK, "encoder.layers", outside)
    load(tower, {prefix + name: array for name, array in arrays.items()})
    projector = models.gemma3.modeling_gemma3.Gemma3MultiModalProjector(config)
    load(projector, {
        "mm_input_projection_weight": file.tensors["mm.input_projection.weight"],
        "mm_soft_emb_norm.weight": file.tensors["mm.soft_emb_norm.weight"] - 1,
    })  # fmt: skip
    return lambda one: projector(tower(image(one)).last_hidden_state)[0]


def llava(file):
    # The file has the layers up to the one before the last; that one is never read.
    vision = transformers.CLIPVisionConfig(**sizes(file), layer_norm_eps=1e-6)
    vision.num_hidden_layers += 1
    config = transformers.LlavaConfig(
        vision_config=vision.to_dict(), text_config={"model_type": "llama", "hidden_size": TEXT}
    )
    outside = {
        "v.patch_embd": "embeddings.patch_embedding", "v.position_embd": "embeddings.position_embedding",
        "v.class_embd": "embeddings.class_embedding", "v.pre_ln": "pre_layrnorm",
    }  # fmt: skip
    tower = models.clip.modeling_clip.CLIPVisionModel(vision)
    prefix = "vision_model." if any(name.startswith("vision_model.") for name in tower.state_dict()) else ""
    rest = {n: a for n, a in tower.state_dict().items() if f".{file.get('vision.block_count')}." in n or "post_" in n}
    arrays = {prefix + n: a for n, a in named(file, CLIP_BLOCK, "encoder.layers", outside).items()}
    load(tower, arrays | rest)
    projector = models.llava.modeling_llava.LlavaMultiModalProjector(config)
    load(projector, named(file, {}, "", {"mm.0": "linear_1", "mm.2": "linear_2"}))
    return lambda one: projector(tower(image(one), output_hidden_states=True).hidden_states[-2][:, 1:])[0]


def qwen(file):
    """Qwen 2, 2.5 and 3 VL."""
    kind, width = file.get("projector_type"), file.get("vision.embedding_length")
    common = {"depth": file.get("vision.block_count"), "num_heads": file.get("vision.attention.head_count")}
    common |= {"patch_size": PATCH, "spatial_merge_size": 2}
    ffn = file.get("vision.feed_forward_length")
    outside = {"v.patch_embd.bias": "patch_embed.proj.bias", "v.position_embd": "pos_embed"}
    if kind == "qwen2vl_merger":
        config = transformers.models.qwen2_vl.configuration_qwen2_vl.Qwen2VLVisionConfig(
            embed_dim=width, hidden_size=TEXT, mlp_ratio=ffn // width, **common
        )
        module = models.qwen2_vl.modeling_qwen2_vl.Qwen2VisionTransformerPretrainedModel(config)
        blocks = QWEN_BLOCK
        outside |= {"v.post_ln": "merger.ln_q", "mm.0": "merger.mlp.0", "mm.2": "merger.mlp.2"}
    elif kind in ("qwen2.5vl_merger", "qwen2.5o"):
        own = models.qwen2_5_omni if kind == "qwen2.5o" else models.qwen2_5_vl
        vision = (
            own.configuration_qwen2_5_omni.Qwen2_5OmniVisionEncoderConfig
            if kind == "qwen2.5o"
            else (own.configuration_qwen2_5_vl.Qwen2_5_VLVisionConfig)
        )
        config = vision(
            hidden_size=width, intermediate_size=ffn, out_hidden_size=TEXT,
            window_size=file.get("vision.window_size"), fullatt_block_indexes=[1], **common,
        )  # fmt: skip
        module = (
            own.modeling_qwen2_5_omni.Qwen2_5OmniVisionEncoder(config)
            if kind == "qwen2.5o"
            else (own.modeling_qwen2_5_vl.Qwen2_5_VisionTransformerPretrainedModel(config))
        )
        blocks = QWEN_BLOCK | GATED
        outside |= {"v.post_ln": "merger.ln_q", "mm.0": "merger.mlp.0", "mm.2": "merger.mlp.2"}
    else:
        config = transformers.models.qwen3_vl.configuration_qwen3_vl.Qwen3VLVisionConfig(
            hidden_size=width, intermediate_size=ffn, out_hidden_size=TEXT, num_position_embeddings=SIDE**2,
            deepstack_visual_indexes=[0, 1], **common,
        )  # fmt: skip
        module = models.qwen3_vl.modeling_qwen3_vl.Qwen3VLVisionModel(config)
        blocks = QWEN_BLOCK | {"ffn_up": "mlp.linear_fc1", "ffn_down": "mlp.linear_fc2"}
        outside |= {"v.post_ln": "merger.norm", "mm.0": "merger.linear_fc1", "mm.2": "merger.linear_fc2"}
        for i in (0, 1):
            stem = f"deepstack_merger_list.{i}"
            outside |= {f"v.deepstack.{i}.fc{n}": f"{stem}.linear_fc{n}" for n in (1, 2)}
            outside[f"v.deepstack.{i}.norm"] = f"{stem}.norm"
    arrays = named(file, blocks, "blocks", outside)
    for i in range(common["depth"]):
        for part in ("weight", "bias"):
            qkv = {one: file.tensors[f"v.blk.{i}.attn_{one}.{part}"] for one in "qkv"}
            if kind == "qwen2.5o":
                arrays |= {f"blocks.{i}.attn.{one}.{part}": array for one, array in qkv.items()}
            else:
                arrays[f"blocks.{i}.attn.qkv.{part}"] = np.concatenate(list(qkv.values()))
    filters = [file.tensors[f"v.patch_embd.weight{end}"] for end in ("", ".1")]
    arrays["patch_embed.proj.weight"] = np.stack(filters, axis=2)
    load(module, {name: array for name, array in arrays.items() if not name.startswith("patch_embed.proj.weight.")})

    def rows(one):
        n, height, width = one.grid
        cut = one.values.reshape(n, height // 2, 2, width // 2, 2, 3, PATCH, PATCH).transpose(0, 1, 3, 2, 4, 5, 6, 7)
        frames = np.stack([cut[0], cut[-1]], axis=5).reshape(height * width, -1)  # an image counts twice
        out = module(torch.tensor(frames), grid_thw=torch.tensor([(1, height, width)]))
        deep = getattr(out, "deepstack_features", None)
        return torch.cat([out.pooler_output, *deep], dim=1) if deep else out.pooler_output

    return rows


def idefics3(file):
    vision = models.idefics3.configuration_idefics3.Idefics3VisionConfig(**sizes(file), layer_norm_eps=1e-6)
    config = transformers.Idefics3Config(
        vision_config=vision.to_dict(), text_config={"model_type": "llama", "hidden_size": TEXT}, scale_factor=2
    )
    outside = {
        "v.patch_embd": "embeddings.patch_embedding", "v.position_embd": "embeddings.position_embedding",
        "v.post_ln": "post_layernorm",
    }  # fmt: skip
    tower = models.idefics3.modeling_idefics3.Idefics3VisionTransformer(vision)
    load(tower, named(file, CLIP_BLOCK, "encoder.layers", outside))
    connector = models.idefics3.modeling_idefics3.Idefics3Connector(config)
    load(connector, named(file, {}, "", {"mm.model.fc": "modality_projection.proj"}))
    return lambda one: connector(tower(image(one)).last_hidden_state)[0]


def pixtral(file):
    vision = transformers.PixtralVisionConfig(**sizes(file), head_dim=16, rope_theta=10000.0, hidden_act="silu")
    merges = "mm.patch_merger.weight" in file.tensors
    tower = models.pixtral.modeling_pixtral.PixtralVisionModel(vision)
    # Converters permute q and k: pairs of a head from halves to neighbours.
    arrays = {name: unpermuted(array, 2) if "attn_q" in name or "attn_k" in name else array
              for name, array in file.tensors.items()}  # fmt: skip
    file.tensors = arrays
    outside = {"v.patch_embd": "patch_conv", "v.pre_ln": "ln_pre"}
    load(tower, named(file, PIXTRAL_BLOCK, "transformer.layers", outside))
    for module in tower.modules():  # transformers has a constant where files have a key
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 1e-6
    kinds = {"vision_config": vision.to_dict(), "text_config": {"model_type": "mistral", "hidden_size": TEXT}}
    if merges:
        is_ocr = file.get("projector_type") == "lightonocr"
        config = (transformers.LightOnOcrConfig if is_ocr else transformers.Mistral3Config)(
            **kinds, spatial_merge_size=2
        )
        config.text_config.rms_norm_eps = 1e-6
        mistral, light = models.mistral3.modeling_mistral3, models.lighton_ocr.modeling_lighton_ocr
        made = light.LightOnOcrMultiModalProjector if is_ocr else mistral.Mistral3MultiModalProjector
        projector = made(config)
        outside = {"mm.input_norm": "norm", "mm.patch_merger": "patch_merger.merging_layer"}
    else:
        projector = models.llava.modeling_llava.LlavaMultiModalProjector(transformers.LlavaConfig(**kinds))
        outside = {}
    load(projector, named(file, {}, "", outside | {"mm.1": "linear_1", "mm.2": "linear_2"}))

    def rows(one):
        size = (one.grid[1] * PATCH, one.grid[2] * PATCH)
        hidden = tower(image(one), image_sizes=torch.tensor([size])).last_hidden_state[0]
        return projector(hidden, torch.tensor([size])) if merges else projector(hidden)

    return rows


def unpermuted(array, heads):
    """Undoes what converters do to q and k."""
    rows = array.shape[0] // heads
    return array.reshape(heads, rows // 2, 2, -1).swapaxes(1, 2).reshape(array.shape)


def internvl(file):
    vision = transformers.InternVLVisionConfig(**sizes(file, image_size=(32, 32), patch_size=(4, 4)),
        attention_bias=True, layer_norm_eps=1e-6, use_qk_norm=False, norm_type="layer_norm", layer_scale_init_value=1.0,
        use_absolute_position_embeddings=True, use_mean_pooling=True)  # fmt: skip
    config = transformers.InternVLConfig(
        vision_config=vision.to_dict(), text_config={"model_type": "qwen2", "hidden_size": TEXT}
    )
    model = models.internvl.modeling_internvl
    tower = model.InternVLVisionModel(vision)
    outside = {
        "v.patch_embd": "embeddings.patch_embeddings.projection", "v.class_embd": "embeddings.cls_token",
        "v.position_embd.weight": "embeddings.position_embeddings",
    }  # fmt: skip
    arrays = named(file, INTERN_BLOCK, "encoder.layer", outside)
    for i in range(file.get("vision.block_count")):
        for n in (1, 2):
            arrays[f"encoder.layer.{i}.lambda_{n}"] = file.tensors[f"v.blk.{i}.ls{n}.weight"]
    load(tower, arrays)
    projector = model.InternVLMultiModalProjector(config)
    names = {"mm.model.mlp.0": "layer_norm", "mm.model.mlp.1": "linear_1", "mm.model.mlp.3": "linear_2"}
    load(projector, named(file, {}, "", names))

    def rows(one):
        hidden = tower(image(one)).last_hidden_state[:, 1:]
        side = int(hidden.shape[1] ** 0.5)
        shuffled = model.InternVLModel.pixel_shuffle(None, hidden.reshape(1, side, side, -1), scale_factor=0.5)
        return projector(shuffled.reshape(1, -1, shuffled.shape[-1]))[0]

    return rows


MAKERS = {
    "gemma3": gemma3, "mlp": llava, "qwen2vl_merger": qwen, "qwen2.5vl_merger": qwen, "qwen3vl_merger": qwen,
    "qwen2.5o": qwen,
    "idefics3": idefics3, "pixtral": pixtral, "lightonocr": pixtral, "internvl": internvl,
}  # fmt: skip


def main():
    from tests.goldens import cogvlm
    from tests.goldens.mobilenets import gemma3nv  # they take functions of this file
    from tests.goldens.newer_towers import NEWER
    from tests.goldens.newest_towers import NEWEST

    makers = MAKERS | NEWER | NEWEST | {"gemma3nv": gemma3nv, "cogvlm": cogvlm.tower}
    with tempfile.TemporaryDirectory() as folder:
        for tower in TOWERS.values():
            path = HERE / f"tower-{tower.name}.npz"
            if path.exists():  # delete a golden to make it anew
                continue
            file = File(write_tower(tower, Path(folder, f"{tower.name}.gguf")))
            rows = makers[tower.projector](file)
            with torch.no_grad():
                np.savez_compressed(
                    path, *(rows(piece(grid, patch=tower.patch)).numpy().astype(np.float32) for grid in tower.grids)
                )
            print(f"{tower.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
