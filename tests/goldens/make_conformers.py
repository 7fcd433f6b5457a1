"""Conformers of transformers with the weights of tiny audio towers: used by make_audio_towers.py."""

import numpy as np
import torch
import transformers
from transformers import models

from tests.cases.audio_towers import CHANNELS, FFN, WIDTH
from tests.cases.towers import TEXT
from tests.goldens.make_towers import load

GEMMA = {
    "ffn_norm": "feed_forward1.pre_layer_norm", "ffn_post_norm": "feed_forward1.post_layer_norm",
    "ffn_up": "feed_forward1.ffw_layer_1.linear", "ffn_down": "feed_forward1.ffw_layer_2.linear",
    "ffn_norm_1": "feed_forward2.pre_layer_norm", "ffn_post_norm_1": "feed_forward2.post_layer_norm",
    "ffn_up_1": "feed_forward2.ffw_layer_1.linear", "ffn_down_1": "feed_forward2.ffw_layer_2.linear",
    "attn_pre_norm": "norm_pre_attn", "attn_post_norm": "norm_post_attn", "ln2": "norm_out",
    "attn_q": "self_attn.q_proj.linear", "attn_k": "self_attn.k_proj.linear", "attn_v": "self_attn.v_proj.linear",
    "attn_out": "self_attn.post.linear", "attn_k_rel": "self_attn.relative_k_proj",
    "conv_norm": "lconv1d.pre_layer_norm", "norm_conv": "lconv1d.conv_norm", "conv_dw": "lconv1d.depthwise_conv1d",
    "conv_pw1": "lconv1d.linear_start.linear", "conv_pw2": "lconv1d.linear_end.linear",
}  # fmt: skip


def gemma4a(file):
    module, n_mels = models.gemma4, file.get("audio.num_mel_bins")
    config = transformers.Gemma4AudioConfig(
        hidden_size=WIDTH, num_hidden_layers=file.get("audio.block_count"), output_proj_dims=FFN,
        num_attention_heads=file.get("audio.attention.head_count"), subsampling_conv_channels=[n_mels, CHANNELS],
    )  # fmt: skip
    encoder = module.modeling_gemma4.Gemma4AudioModel(config)
    text = transformers.Gemma4TextConfig(hidden_size=TEXT)
    projector = module.modeling_gemma4.Gemma4MultimodalEmbedder(config, text)
    begin = "subsample_conv_projection"
    outside = {"a.input_projection": f"{begin}.input_proj_linear", "a.pre_encode.out": "output_proj"}
    for i in (0, 1):
        outside |= {f"a.conv1d.{i}": f"{begin}.layer{i}.conv", f"a.conv1d.{i}.norm": f"{begin}.layer{i}.norm"}
    inside = {}
    for name, array in file.tensors.items():
        stem, _, kind = name.rpartition(".")
        if stem in outside:
            inside[f"{outside[stem]}.{kind}"] = array
        elif stem.endswith("per_dim_scale"):
            inside[f"layers.{stem.split('.')[2]}.self_attn.per_dim_scale"] = np.log(np.expm1(array))
        elif name.startswith("a.blk."):
            own = GEMMA[stem.split(".")[3]]
            own = own if kind == "weight" else own.removesuffix(".linear")
            inside[f"layers.{stem.split('.')[2]}.{own}.{kind}"] = array
    load(encoder, inside)
    load(projector, {"embedding_projection.weight": file.tensors["mm.a.input_projection.weight"]})
    own = module.feature_extraction_gemma4.Gemma4AudioFeatureExtractor(feature_size=n_mels)

    def rows(audio):
        found = own([audio], return_tensors="pt")
        out = encoder(found["input_features"], found["input_features_mask"].bool())
        return projector(out.last_hidden_state)[out.attention_mask]

    return rows


USM = {
    "ffn_norm": "ffw_layer_start.pre_layer_norm", "ffn_post_norm": "ffw_layer_start.post_layer_norm",
    "ffn_up": "ffw_layer_start.ffw_layer_1", "ffn_down": "ffw_layer_start.ffw_layer_2",
    "ffn_norm_1": "ffw_layer_end.pre_layer_norm", "ffn_post_norm_1": "ffw_layer_end.post_layer_norm",
    "ffn_up_1": "ffw_layer_end.ffw_layer_1", "ffn_down_1": "ffw_layer_end.ffw_layer_2",
    "ln1": "attention.pre_attn_norm", "ln2": "attention.post_norm", "layer_pre_norm": "norm",
    "attn_q": "attention.attn.q_proj", "attn_k": "attention.attn.k_proj", "attn_v": "attention.attn.v_proj",
    "attn_out": "attention.post", "linear_pos": "attention.attn.relative_position_embedding.pos_proj",
    "conv_norm": "lconv1d.pre_layer_norm", "norm_conv": "lconv1d.conv_norm", "conv_dw": "lconv1d.depthwise_conv1d",
    "conv_pw1": "lconv1d.linear_start", "conv_pw2": "lconv1d.linear_end",
}  # fmt: skip


def gemma3na(file):
    """Return rows of each 30 s chunk, followed by the padding and end-of-audio embeddings."""
    module, n_mels = models.gemma3n, file.get("audio.num_mel_bins")
    config = transformers.Gemma3nAudioConfig(
        hidden_size=WIDTH, conf_num_hidden_layers=file.get("audio.block_count"), input_feat_size=n_mels,
        conf_num_attention_heads=file.get("audio.attention.head_count"), sscp_conv_channel_size=[16, CHANNELS],
    )  # fmt: skip
    encoder = module.modeling_gemma3n.Gemma3nAudioEncoder(config)
    projector = module.modeling_gemma3n.Gemma3nMultimodalEmbedder(
        config, transformers.Gemma3nTextConfig(hidden_size=TEXT)
    )
    begin = "subsample_conv_projection"
    outside = {"a.pre_encode.out": f"{begin}.input_proj_linear"}
    for i in (0, 1):
        outside |= {f"a.conv1d.{i}": f"{begin}.conv_{i}.conv", f"a.conv1d.{i}.norm": f"{begin}.conv_{i}.norm"}
    after = {
        "mm.a.embedding": "embedding", "mm.a.hard_emb_norm": "hard_embedding_norm",
        "mm.a.soft_emb_norm": "soft_embedding_norm", "mm.a.input_projection": "embedding_projection",
    }  # fmt: skip
    inside, own = {}, {}
    for name, array in file.tensors.items():
        stem, _, kind = name.rpartition(".")
        if stem in after:
            own[f"{after[stem]}.{kind}"] = array
        elif stem in outside:
            inside[f"{outside[stem]}.{kind}"] = array
        elif kind == "per_dim_scale":
            inside[f"conformer.{name.split('.')[2]}.attention.attn.per_dim_scale"] = array
        else:
            inside[f"conformer.{stem.split('.')[2]}.{USM[stem.split('.')[3]]}.{kind}"] = array
    load(encoder, inside)
    load(projector, own)
    extractor = module.feature_extraction_gemma3n.Gemma3nAudioFeatureExtractor(feature_size=n_mels)
    first = config.vocab_offset
    extra = projector(input_ids=torch.tensor([first + config.vocab_size - 1, first]))

    def rows(audio):
        out = []
        for at in range(0, len(audio), 480_000):
            found = extractor([audio[at : at + 480_000]], return_tensors="pt")
            output = encoder(found["input_features"], ~found["input_features_mask"].bool())
            assert not output.audio_mel_mask.any()
            out += [projector(inputs_embeds=output.last_hidden_state)[0], extra]
        return torch.cat(out)

    return rows


FAST = {
    "ffn_norm": "norm_feed_forward1", "ffn_norm_1": "norm_feed_forward2", "ln1": "norm_self_att", "ln2": "norm_out",
    "norm_conv": "norm_conv", "ffn_up": "feed_forward1.linear1", "ffn_down": "feed_forward1.linear2",
    "ffn_up_1": "feed_forward2.linear1", "ffn_down_1": "feed_forward2.linear2", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_out": "self_attn.o_proj",
    "linear_pos": "self_attn.relative_k_proj", "conv_pw1": "conv.pointwise_conv1", "conv_dw": "conv.depthwise_conv",
    "conv_pw2": "conv.pointwise_conv2", "conv_norm": "conv.norm",
}  # fmt: skip


def lfm2a(file):
    """Return rows of a FastConformer without input scaling, and of the model's adapter."""
    module, n_mels = models.parakeet, file.get("audio.num_mel_bins")
    n_layers = file.get("audio.block_count")
    config = transformers.ParakeetEncoderConfig(
        hidden_size=WIDTH, num_hidden_layers=n_layers, intermediate_size=FFN, scale_input=False,
        num_attention_heads=file.get("audio.attention.head_count"), subsampling_conv_channels=CHANNELS,
        num_mel_bins=n_mels,
    )  # fmt: skip
    encoder, inside = module.modeling_parakeet.ParakeetEncoder(config), {}
    for name, array in file.tensors.items():
        stem, _, kind = name.rpartition(".")
        if stem.startswith("a.conv1d."):
            inside[f"subsampling.layers.{stem.split('.')[2]}.{kind}"] = array
        elif stem == "a.pre_encode.out":
            inside[f"subsampling.linear.{kind}"] = array
        elif name.startswith("a.blk.") and kind.startswith("pos_bias"):
            inside[f"layers.{name.split('.')[2]}.self_attn.{kind.removeprefix('pos_')}"] = array
        elif name.startswith("a.blk."):
            inside[f"layers.{stem.split('.')[2]}.{FAST[stem.split('.')[3]]}.{kind}"] = array
    for i in range(n_layers):  # the file has the norm of a batch with its mean and variance in it
        begin = f"layers.{i}.conv.norm"
        inside[f"{begin}.running_mean"] = np.zeros(WIDTH, np.float32)
        inside[f"{begin}.running_var"] = np.full(WIDTH, 1 - 1e-5, np.float32)
        inside[f"{begin}.num_batches_tracked"] = np.zeros((), np.int64)
    load(encoder, inside)
    adapter = torch.nn.Sequential(
        torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, FFN), torch.nn.GELU(), torch.nn.Linear(FFN, TEXT)
    )
    after = {name.removeprefix("mm.a.mlp."): array for name, array in file.tensors.items() if name.startswith("mm.a.")}
    load(adapter, after)
    own = module.feature_extraction_parakeet.ParakeetFeatureExtractor(feature_size=n_mels)

    def rows(audio):
        found = own(audio, sampling_rate=16000, return_tensors="pt")
        out = encoder(found["input_features"], found["attention_mask"])
        return adapter(out.last_hidden_state)[out.attention_mask.bool()]

    return rows
