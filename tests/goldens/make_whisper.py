"""Make the golden of a tiny Whisper model with transformers: encoder rows, logits, texts of windows.

python -m tests.goldens.make_whisper           (from the project's root, in the environment of make.py)
"""

import re

import numpy as np
import torch
import transformers

from tests.cases.whisper import (
    FFN,
    HEADS,
    MULTILINGUAL,
    N_DECODER,
    N_ENCODER,
    N_SPECIAL,
    WIDTH,
    tensors,
    waveform,
    words,
)
from tests.goldens.make import HERE
from woolly.gguf.whisper_bin import LANGUAGES
from woolly.multimodal.audio import log_mel_whisper
from woolly.speech.whisper_tokens import _signs

N_NEW = 12  # tokens of a window
EVERY = 50  # rows of the encoder that the golden holds
SPOKEN = [50258, 50259, 50359, 50363, 259, 900, 4000, 261, 13, 700, 5000, 50257]
PROMPT = [50258, 50259, 50359, 50364, 1000, 2000, 50414]

NAMES = {
    "attn_ln": "self_attn_layer_norm",
    "attn.query": "self_attn.q_proj",
    "attn.key": "self_attn.k_proj",
    "attn.value": "self_attn.v_proj",
    "attn.out": "self_attn.out_proj",
    "cross_attn_ln": "encoder_attn_layer_norm",
    "cross_attn.query": "encoder_attn.q_proj",
    "cross_attn.key": "encoder_attn.k_proj",
    "cross_attn.value": "encoder_attn.v_proj",
    "cross_attn.out": "encoder_attn.out_proj",
    "mlp_ln": "final_layer_norm",
    "mlp.0": "fc1",
    "mlp.2": "fc2",
}
ROOT = {
    "encoder.positional_embedding": "encoder.embed_positions.weight",
    "decoder.positional_embedding": "decoder.embed_positions.weight",
    "decoder.token_embedding.weight": "decoder.embed_tokens.weight",
}


def name_of(own):
    """Return the name in transformers' checkpoint."""
    if block := re.fullmatch(r"(\w+)\.blocks\.(\d+)\.(.*)\.(weight|bias)", own):
        return f"model.{block[1]}.layers.{block[2]}.{NAMES[block[3]]}.{block[4]}"
    return "model." + ROOT.get(own, own.replace("ln_post", "layer_norm").replace("decoder.ln", "decoder.layer_norm"))


def model():
    """WhisperForConditionalGeneration with the weights of the tiny file."""
    config = transformers.WhisperConfig(
        vocab_size=MULTILINGUAL,
        num_mel_bins=80,
        d_model=WIDTH,
        encoder_layers=N_ENCODER,
        decoder_layers=N_DECODER,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=FFN,
        decoder_ffn_dim=FFN,
    )
    made = transformers.WhisperForConditionalGeneration(config).eval()
    state = {}
    for own, array in tensors().items():
        flat = array.reshape(-1) if "conv" in own and own.endswith("bias") else array
        state[name_of(own)] = torch.from_numpy(flat.copy())
    state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"]
    made.load_state_dict(state)
    return made


def configure(made):
    """Set the fields of generation_config.json of the published models."""
    texts = {text: i for i, text in enumerate(words(MULTILINGUAL - N_SPECIAL[MULTILINGUAL]))}
    config = made.generation_config
    config.is_multilingual = True
    config.lang_to_id = {f"<|{code}|>": 50259 + i for i, code in enumerate(LANGUAGES[:99])}
    config.task_to_id = {"translate": 50358, "transcribe": 50359}
    config.no_timestamps_token_id, config.prev_sot_token_id = 50363, 50361
    config.decoder_start_token_id, config.eos_token_id, config.pad_token_id = 50258, 50257, 50257
    config.suppress_tokens = sorted({*_signs(texts), 50258, 50358, 50359, 50360, 50361, 50362})
    config.begin_suppress_tokens = [texts[b" "], 50257]
    config.max_initial_timestamp_index, config.max_length, config.forced_decoder_ids = 50, 448, None


def aligned(made, features):
    """Rows of 20 ms at which tokens begin, by transformers' attention, median and time warping."""
    module = transformers.models.whisper.generation_whisper
    made.set_attn_implementation("eager")
    found = made(features, decoder_input_ids=torch.tensor([SPOKEN]), output_attentions=True).cross_attentions
    weights = torch.stack([found[layer][0, head] for layer, head in ((1, 0), (1, 1))])  # the later half of the layers
    std, mean = torch.std(weights, dim=-2, keepdim=True, unbiased=False), torch.mean(weights, dim=-2, keepdim=True)
    matrix = module._median_filter((weights - mean) / std, 7).mean(dim=0)[3:-1]
    text, time = module._dynamic_time_warping(-matrix.double().numpy())
    return time[np.diff(text, prepend=-1).astype(bool)]


def main():
    made = model()
    configure(made)
    samples = waveform()
    frames = log_mel_whisper(np.pad(samples, (0, 480000)), 80)[: len(samples) // 160]
    features = torch.from_numpy(np.ascontiguousarray(frames.T))[None]
    with torch.no_grad():
        rows = made.model.encoder(features[:, :, :3000]).last_hidden_state[0].numpy()
        logits = made(features[:, :, :3000], decoder_input_ids=torch.tensor([PROMPT])).logits[0].numpy()
        language = made.detect_language(features[:, :, :3000])[0].item()
        mask = torch.ones(1, features.shape[2], dtype=torch.long)
        options = {"language": "en", "task": "transcribe", "return_timestamps": True, "return_segments": True}
        found = made.generate(features, attention_mask=mask, max_new_tokens=N_NEW, temperature=0.0, **options)
        begins = aligned(made, features[:, :, :3000])
    print("begins", begins)
    segments = [(one["start"].item(), one["end"].item(), one["tokens"].tolist()) for one in found["segments"][0]]
    # transformers leaves the time that the next segment would begin with.
    segments = [(a, b, t[:-1] if t[-2] >= 50364 else t) for a, b, t in segments]
    print([(a, b, len(t)) for a, b, t in segments])
    np.savez_compressed(
        HERE / "whisper.npz",
        rows=rows[::EVERY],
        logits=logits[:, ::97],
        language=language,
        times=np.array([one[:2] for one in segments]),
        tokens=np.concatenate([one[2] for one in segments]),
        lengths=np.array([len(one[2]) for one in segments]),
        begins=begins,
    )


if __name__ == "__main__":
    main()
