"""Make the golden rows and frames of audio encoders with torch and transformers, like make_towers.py.

    python -m tests.goldens.make_audio_towers          (from the project's root, in the environment of make.py)

A golden goes from samples to rows: the feature extractor, the encoder and the projector are transformers'. Of Ultravox,
which transformers does not have, the extractor and the layers are, and what is around them follows its own code.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import models

from tests.cases.audio_towers import AUDIO_TOWERS, CHANNELS, FFN, LETTERS, WIDTH, samples, write_audio_tower
from tests.cases.towers import TEXT
from tests.goldens.make import HERE, File
from tests.goldens.make_conformers import gemma3na, gemma4a, lfm2a
from tests.goldens.make_towers import load

BLOCK = {
    "ln1": "self_attn_layer_norm", "ln2": "final_layer_norm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_out": "self_attn.out_proj", "ffn_up": "fc1",
    "ffn_down": "fc2",
}  # fmt: skip
LENGTHS = (8_500, 3_000, 160_321)  # of the audio whose frames are kept


def arrays(file, outside):
    """Tensors under the names of modules."""
    out = {}
    for name, array in file.tensors.items():
        stem, _, kind = name.rpartition(".")
        if name.startswith("a.blk."):
            _, _, number, rest = stem.split(".", 3)
            out[f"layers.{number}.{BLOCK[rest]}.{kind}"] = array
        elif stem in outside:
            out[f"{outside[stem]}.{kind}"] = array
    return out


WHISPER = {
    "a.conv1d.1": "conv1", "a.conv1d.2": "conv2", "a.position_embd": "embed_positions", "a.post_ln": "layer_norm",
}  # fmt: skip


def sizes(file, **more):
    return {
        "d_model": WIDTH, "encoder_layers": file.get("audio.block_count"), "encoder_ffn_dim": FFN,
        "encoder_attention_heads": file.get("audio.attention.head_count"),
        "num_mel_bins": file.get("audio.num_mel_bins"), "max_source_positions": 1500, **more,
    }  # fmt: skip


def extractor(file, **more):
    return transformers.WhisperFeatureExtractor(feature_size=file.get("audio.num_mel_bins"), **more)


def ultravox(file):
    encoder = models.whisper.modeling_whisper.WhisperEncoder(transformers.WhisperConfig(**sizes(file)))
    load(encoder, arrays(file, WHISPER))
    weights = {name: torch.tensor(array) for name, array in file.tensors.items() if name.startswith("mm.a.")}
    stack = file.get("audio.projector.stack_factor")

    def rms(x, weight):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight

    def rows(audio):
        frames = extractor(file)(audio, sampling_rate=16000, padding="longest", truncation=False, return_tensors="pt")
        frames, out = frames["input_features"], []
        for part in torch.split(frames, 3000, dim=2):
            n = (part.shape[2] - 1) // 2 + 1
            if frames.shape[2] > 3000:
                part = torch.nn.functional.pad(part, (0, 3000 - part.shape[2]))
            x = torch.nn.functional.gelu(encoder.conv1(part))
            x = torch.nn.functional.gelu(encoder.conv2(x)).permute(0, 2, 1)
            x = x + encoder.embed_positions.weight[: x.shape[1]]
            hidden = (torch.arange(x.shape[1]) >= n)[None, None, None, :] * torch.finfo(torch.float32).min
            for one in encoder.layers:
                x = one(x, hidden)
                x = x[0] if isinstance(x, tuple) else x
            x = encoder.layer_norm(x)[:, :n]
            x = torch.nn.functional.pad(x, (0, 0, 0, -n % stack)).reshape(-1, stack * WIDTH)
            x = rms(x, weights["mm.a.norm_pre.weight"]) @ weights["mm.a.mlp.1.weight"].T
            up, gate = x.chunk(2, dim=-1)
            x = rms(torch.nn.functional.silu(gate) * up, weights["mm.a.norm_mid.weight"])
            out.append(x @ weights["mm.a.mlp.2.weight"].T)
        return torch.cat(out)

    return rows


def qwen2a(file):
    audio = models.qwen2_audio.configuration_qwen2_audio.Qwen2AudioEncoderConfig(**sizes(file))
    config = transformers.Qwen2AudioConfig(audio_config=audio.to_dict(), text_config={"hidden_size": TEXT})
    model = models.qwen2_audio.modeling_qwen2_audio
    encoder, projector = model.Qwen2AudioEncoder(audio), model.Qwen2AudioMultiModalProjector(config)
    load(encoder, arrays(file, WHISPER))
    load(projector, arrays(Part(file, "mm.a."), {"mm.a.fc": "linear"}))

    def rows(audio):
        found = extractor(file)(audio, sampling_rate=16000, return_attention_mask=True, return_tensors="pt")
        within, n = encoder._get_feat_extract_output_lengths(found["attention_mask"].sum(-1))
        hidden = (torch.arange(1500) >= within)[None, None, None, :] * torch.finfo(torch.float32).min
        out = encoder(found["input_features"], attention_mask=hidden.expand(1, 1, 1500, 1500))
        return projector(out.last_hidden_state)[0, : int(n)]

    return rows


def voxtral(file):
    audio = models.voxtral.configuration_voxtral.VoxtralEncoderConfig(
        hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_hidden_layers=file.get("audio.block_count"),
        num_attention_heads=2, num_mel_bins=128, max_source_positions=1500,
    )  # fmt: skip
    config = transformers.VoxtralConfig(audio_config=audio.to_dict(), text_config={"hidden_size": TEXT})
    model = models.voxtral.modeling_voxtral
    # Its feed-forward layer is as wide as four rows, by which it stacks them; the tiny one is not.
    narrow = models.voxtral.configuration_voxtral.VoxtralEncoderConfig(**audio.to_dict() | {"intermediate_size": FFN})
    encoder, projector = model.VoxtralEncoder(narrow), model.VoxtralMultiModalProjector(config)
    load(encoder, arrays(file, WHISPER))
    load(projector, arrays(Part(file, "mm.a."), {"mm.a.mlp.1": "linear_1", "mm.a.mlp.2": "linear_2"}))

    def rows(audio):
        found = extractor(file)(audio, sampling_rate=16000, padding=True, truncation=False, pad_to_multiple_of=480000,
                                return_tensors="pt")["input_features"]  # fmt: skip
        pieces = found.reshape(128, -1, 3000).transpose(0, 1)
        return projector(encoder(pieces).last_hidden_state.reshape(-1, 4 * WIDTH))

    return rows


def qwen25o(file):
    module = models.qwen2_5_omni
    config = module.configuration_qwen2_5_omni.Qwen2_5OmniAudioEncoderConfig(
        **sizes(file), n_window=100, output_dim=TEXT
    )
    encoder = module.modeling_qwen2_5_omni.Qwen2_5OmniAudioEncoder(config)
    outside = {"a.conv1d.1": "conv1", "a.conv1d.2": "conv2", "a.post_ln": "ln_post", "mm.a.fc": "proj"}
    unread = {"audio_bos_eos_token.weight": np.zeros((2, TEXT), np.float32)}
    load(encoder, arrays(file, outside) | unread)

    def rows(audio):
        found = extractor(file, chunk_length=300)(
            audio, sampling_rate=16000, return_attention_mask=True, return_tensors="pt"
        )
        n = found["attention_mask"].sum(-1)
        return encoder(found["input_features"][0][:, : int(n)], feature_lens=n).last_hidden_state

    return rows


def qwen3a(file):
    module = models.qwen3_omni_moe
    config = module.configuration_qwen3_omni_moe.Qwen3OmniMoeAudioEncoderConfig(
        **sizes(file), n_window=50, n_window_infer=800, output_dim=TEXT, downsample_hidden_size=CHANNELS
    )
    encoder = module.modeling_qwen3_omni_moe.Qwen3OmniMoeAudioEncoder(config)
    outside = {f"a.conv2d.{i}": f"conv2d{i}" for i in (1, 2, 3)}
    outside |= {"a.conv_out": "conv_out", "a.post_ln": "ln_post", "mm.a.mlp.1": "proj1", "mm.a.mlp.2": "proj2"}
    load(encoder, arrays(file, outside))

    def rows(audio):
        found = extractor(file)(
            audio, sampling_rate=16000, padding=True, truncation=False, return_attention_mask=True, return_tensors="pt"
        )
        n = found["attention_mask"].sum(-1)
        return encoder(found["input_features"][0][:, : int(n)], feature_lens=n).last_hidden_state

    return rows


GRANITE = {
    "ffn_norm": "ff1.pre_norm", "ffn_up": "ff1.up_proj", "ffn_down": "ff1.down_proj", "ffn_norm_1": "ff2.pre_norm",
    "ffn_up_1": "ff2.up_proj", "ffn_down_1": "ff2.down_proj", "ln1": "attn.pre_norm", "ln2": "post_norm",
    "attn_q": "attn.to_q", "attn_out": "attn.to_out", "norm_conv": "conv.norm", "conv_pw1": "conv.up_conv",
    "conv_pw2": "conv.down_conv", "conv_dw": "conv.depth_conv.conv", "conv_norm": "conv.batch_norm",
}  # fmt: skip
ATTENTION = {"q": "attention.query", "k": "attention.key", "v": "attention.value", "out": "output.dense",
             "norm": "output.LayerNorm"}  # fmt: skip


def granite_speech(file):
    module, get = models.granite_speech, lambda key: file.get(f"audio.{key}")
    config = transformers.GraniteSpeechConfig(
        encoder_config={
            "input_dim": get("num_mel_bins"), "num_layers": get("block_count"), "hidden_dim": WIDTH,
            "num_heads": get("attention.head_count"), "output_dim": LETTERS, "context_size": get("chunk_size"),
            "max_pos_emb": get("max_pos_emb"), "conv_kernel_size": get("conv_kernel_size"),
        },
        projector_config={
            "model_type": "blip_2_qformer", "hidden_size": WIDTH, "encoder_hidden_size": WIDTH, "num_hidden_layers": 2,
            "num_attention_heads": get("projector.head_count"), "intermediate_size": FFN,
            "cross_attention_frequency": 1,
        },
        text_config={"model_type": "granite", "hidden_size": TEXT},
        downsample_rate=get("projector.downsample_rate"), window_size=get("projector.window_size"),
    )  # fmt: skip
    encoder = module.modeling_granite_speech.GraniteSpeechCTCEncoder(config.encoder_config).eval()
    projector = module.modeling_granite_speech.GraniteSpeechEncoderProjector(config).eval()
    inside, after = {}, {}
    outside = {"a.input_projection": "input_linear", "a.enc_ctc_out": "out", "a.enc_ctc_out_mid": "out_mid"}
    for name, array in file.tensors.items():
        stem, _, kind = name.rpartition(".")
        if stem in outside:
            inside[f"{outside[stem]}.{kind}"] = array
        elif name.startswith("a.proj_blk."):
            number, rest = stem.split(".")[2:]
            which, _, one = rest.rpartition("_")
            if which == "ffn":
                rest = {
                    "up": "intermediate_query.dense",
                    "down": "output_query.dense",
                    "norm": "output_query.LayerNorm",
                }[one]
            else:
                rest = f"{'attention' if which == 'self_attn' else 'crossattention'}.{ATTENTION[one]}"
            after[f"qformer.encoder.layer.{number}.{rest}.{kind}"] = array
        elif name.startswith("a.blk."):
            number, rest = name.split(".")[2], stem.split(".", 3)[-1] if kind in ("weight", "bias") else kind
            begin = f"layers.{number}"
            if rest == "attn_rel_pos_emb":
                inside[f"{begin}.attn.rel_pos_emb.weight"] = array
            elif rest == "attn_k":
                both = [array, file.tensors[name.replace("attn_k", "attn_v")]]
                inside[f"{begin}.attn.to_kv.weight"] = np.concatenate(both)
            elif rest != "attn_v":
                array = array[:, None] if rest == "conv_dw" else array
                array = array[..., None] if rest in ("conv_pw1", "conv_pw2") and kind == "weight" else array
                inside[f"{begin}.{GRANITE[rest]}.{kind}"] = array
    for i in range(get("block_count")):  # the file has the norm of a batch with its mean and variance in it
        begin = f"layers.{i}.conv.batch_norm"
        inside[f"{begin}.running_mean"] = np.zeros(2 * WIDTH, np.float32)
        inside[f"{begin}.running_var"] = np.full(2 * WIDTH, 1 - 1e-5, np.float32)
        inside[f"{begin}.num_batches_tracked"] = np.zeros((), np.int64)
    after["query"] = file.tensors["a.proj_query"]
    for name, own in (("a.proj_norm", "qformer.layernorm"), ("a.proj_linear", "linear")):
        after |= {f"{own}.{kind}": file.tensors[f"{name}.{kind}"] for kind in ("weight", "bias")}
    load(encoder, inside)
    load(projector, after)
    own = module.feature_extraction_granite_speech.GraniteSpeechFeatureExtractor()

    def rows(audio):
        return projector(encoder(own(audio)["input_features"]).last_hidden_state)[0]

    return rows


class Part:
    """Return tensors of a file."""

    def __init__(self, file, begin):
        self.tensors = {name: array for name, array in file.tensors.items() if name.startswith(begin)}


MAKERS = {"ultravox": ultravox, "qwen2a": qwen2a, "voxtral": voxtral, "qwen2.5o": qwen25o, "qwen3a": qwen3a,
          "granite_speech": granite_speech, "gemma4a": gemma4a, "gemma3na": gemma3na, "lfm2a": lfm2a}  # fmt: skip


def frames():
    """Write features of the Whisper extractor, with NumPy and with torch."""
    out = {}
    for n_mels in (80, 128):
        own = transformers.WhisperFeatureExtractor(feature_size=n_mels)
        for n in LENGTHS:
            audio = samples(n)
            exact = own._np_extract_fbank_features(audio[None].astype(np.float64), "cpu")[0]
            quick = own._torch_extract_fbank_features(audio[None], "cpu")[0]
            print(n_mels, n, exact.shape, "torch and numpy differ by", np.abs(exact - quick).max())
            out[f"{n_mels} {n}"] = exact.T[:: max(1, len(exact.T) // 12)].astype(np.float32)
    np.savez_compressed(HERE / "frames.npz", **out)


def main():
    frames()
    with tempfile.TemporaryDirectory() as folder:
        for tiny in AUDIO_TOWERS.values():
            path = HERE / f"audio-{tiny.name}.npz"
            if path.exists():  # delete a golden to make it anew
                continue
            file = File(write_audio_tower(tiny, Path(folder, f"{tiny.name}.gguf")))
            rows = MAKERS[tiny.name](file)
            with torch.no_grad():
                made = [rows(samples(n)).numpy().astype(np.float32) for n in tiny.lengths]
            lengths = np.array([len(one) for one in made])
            np.savez_compressed(path, lengths, *(one[:: tiny.keep] for one in made))
            print(f"{tiny.name}: {lengths.tolist()} rows, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
