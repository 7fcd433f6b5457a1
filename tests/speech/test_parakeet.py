"""Parakeet against transformers: encoder rows, tokens and frames of CTC, RNN-T and TDT."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.cases import parakeet
from tests.cases.parakeet import BLANK, N_MELS, TEXTS, WIDTH, waveform, write_parakeet
from tests.convert.folders import safetensors
from woolly import LLM
from woolly.convert import choose_types, open_checkpoint, plan_conversion, write_draft
from woolly.convert.families.speech import FAMILIES
from woolly.convert.hyperparameters import Hyperparameters
from woolly.engine.multimodal.transducer import TransducerDecoder
from woolly.errors import GGUFError, ModelError, PlanError, RequestError, UnsupportedError
from woolly.gguf import Keys, Tensor, open_gguf, parakeet_bin
from woolly.models import trace, transcribes
from woolly.models.parakeet import read, trace_tower
from woolly.multimodal import Audio, EncoderInput
from woolly.multimodal.audio import log_mel_nemo
from woolly.quant.types import GGMLType
from woolly.speech import TranscribeOptions
from woolly.speech import parakeet as parakeet_transcriber
from woolly.speech.parakeet import ParakeetTranscriber, _windows
from woolly.speech.transducer_decoding import TimedToken, TransducerDecoding
from woolly.tokens import Tokenizer

GOLDEN = np.load(Path(__file__).parent.parent / "goldens" / "parakeet.npz")
SAMPLES = waveform(10.0)
SPECTRUM = log_mel_nemo(SAMPLES, N_MELS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("parakeet")


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(write_parakeet(folder / "ggml-parakeet-tiny.bin"), threads=2) as llm:
        yield llm


def converted(folder, kind):
    """Convert a hub checkpoint to GGUF."""
    added = [{"id": i, "content": TEXTS[i], "special": True} for i in (0, 1)]
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    model = {"type": "BPE", "unk_token": "<unk>", "vocab": {text: i for i, text in enumerate(TEXTS)}, "merges": []}
    own = folder / kind
    own.mkdir()
    (own / "config.json").write_text(json.dumps(parakeet.config(kind)))
    (own / "tokenizer.json").write_text(json.dumps({"added_tokens": added, "pre_tokenizer": space, "model": model}))
    (own / "model.safetensors").write_bytes(safetensors(parakeet.checkpoint(kind)))
    draft = plan_conversion(open_checkpoint(own))
    write_draft(draft, choose_types(draft, None), folder / f"{kind}.gguf", threads=1)
    return folder / f"{kind}.gguf"


def rows_of(llm):
    return llm._loaded[0].source.rows(EncoderInput(SPECTRUM, (1, 1, len(SPECTRUM))), "audio")


def check(llm, kind):
    rows, want = rows_of(llm), GOLDEN[f"{kind} rows"]
    assert rows.shape == want.shape
    assert np.linalg.norm(rows - want) < 1e-5 * np.linalg.norm(want)
    found = TransducerDecoding(llm._loaded[0].source.decoder).decode(rows)
    assert [one.token for one in found] == GOLDEN[f"{kind} tokens"].tolist()
    assert [one.first for one in found] == GOLDEN[f"{kind} frames"].tolist()
    return found


def test_whisper_cpp_file_matches_transformers(llm):
    found = check(llm, "tdt")
    assert [one.last - one.first for one in found] == GOLDEN["tdt spans"].tolist()


@pytest.mark.parametrize("kind", ["ctc", "rnnt", "tdt"])
def test_hub_checkpoint_matches_transformers(folder, kind, monkeypatch):
    with LLM(converted(folder, kind), threads=1) as llm:
        check(llm, kind)
        assert llm.transcribes
        tokens = [token for one in llm.transcribe((SAMPLES, 16000)).segments for token in one.tokens]
        assert tokens == [token for token in GOLDEN[f"{kind} tokens"].tolist() if token > 1]  # without control tokens
        if kind == "ctc":  # no text decides the next, so none is to be forgotten
            monkeypatch.setattr(parakeet_transcriber, "_WINDOW", 96)
            monkeypatch.setattr(parakeet_transcriber, "_OVERLAP", 16)
            one, other = (llm.transcribe((SAMPLES, 16000), condition_on_previous_text=past) for past in (True, False))
            assert one.text == other.text and one.words == other.words


def test_reference_agrees(folder, llm):
    with LLM(folder / "ggml-parakeet-tiny.bin", backend="reference") as other:
        want = rows_of(other)
        assert np.linalg.norm(rows_of(llm) - want) < 1e-5 * np.linalg.norm(want)
        decoded = (TransducerDecoding(one._loaded[0].source.decoder).decode(want) for one in (other, llm))
        assert len({tuple((one.token, one.first, one.last) for one in found) for found in decoded}) == 1


@pytest.mark.parametrize("cut", [1, 7, 64, 124])
def test_rows_in_parts_decode_alike(llm, folder, cut):
    rows, decoder = rows_of(llm), llm._loaded[0].source.decoder
    want, parts = TransducerDecoding(decoder).decode(rows), TransducerDecoding(decoder)
    assert parts.decode(rows[:cut], is_end=False) + parts.decode(rows[cut:]) == want


class ScriptedDecoder(TransducerDecoder):
    """Decoder with scripted logits."""

    def __init__(self, kind, best, durations=()):
        self._kind, self._best, self._durations = kind, best, durations

    kind = property(lambda self: self._kind)
    blank = property(lambda self: 2)
    durations = property(lambda self: self._durations)
    max_symbols = property(lambda self: 3)

    def new_state(self):
        return np.zeros(1, np.float32)

    def predict(self, token, state):
        return np.zeros(1, np.float32), state

    def logits(self, rows):
        out = np.zeros((len(rows), 3 + len(self._durations)), np.float32)
        for i, row in enumerate(rows):
            out[i, list(self._best[int(row[0])])] = 1.0
        return out


NUMBERS = np.arange(6, dtype=np.float32)[:, None]


def test_repeated_letters_collapse_unless_a_blank_is_between(llm):
    found = TransducerDecoding(ScriptedDecoder("ctc", [(0,), (0,), (2,), (0,), (1,), (1,)])).decode(NUMBERS)
    assert [(one.token, one.first, one.last) for one in found] == [(0, 0, 2), (0, 3, 4), (1, 4, 6)]


@pytest.mark.parametrize(
    ("decoder", "cut", "want"),
    [
        (ScriptedDecoder("ctc", [(0,), (1,), (1,), (0,), (2,), (1,)]), 1, [(0, 0, 1), (1, 1, 3), (0, 3, 4), (1, 5, 6)]),
        (ScriptedDecoder("ctc", [(0,), (1,), (1,), (0,), (2,), (1,)]), 2, [(0, 0, 1), (1, 1, 3), (0, 3, 4), (1, 5, 6)]),
        (ScriptedDecoder("tdt", [(0, 4), *[(1, 3)] * 5], (1, 4)), 2, [(0, 0, 4), (1, 4, 5), (1, 5, 6)]),
    ],
)
def test_reset_keeps_the_time(decoder, cut, want):
    decoding = TransducerDecoding(decoder)
    found = decoding.decode(NUMBERS[:cut], is_end=False)
    decoding.reset()
    found += decoding.decode(NUMBERS[cut:])
    assert [(one.token, one.first, one.last) for one in found] == want


def test_tokens_per_frame_are_limited():
    assert len(TransducerDecoding(ScriptedDecoder("rnnt", [(0,)] * 6)).decode(NUMBERS)) == 3 * 6
    assert len(TransducerDecoding(ScriptedDecoder("tdt", [(0, 3)] * 6, (0, 1))).decode(NUMBERS)) == 3 * 6
    blanks = [(2, 3)] * 6  # a blank with duration 0 still advances
    assert TransducerDecoding(ScriptedDecoder("tdt", blanks, (0, 1))).decode(NUMBERS) == []


def test_windows_overlap_and_take_each_row_once():
    for n in (5, 12000, 12001, 45678):
        parts = _windows(n)
        assert [begin for *_, begin, _ in parts] == [0, *(end for *_, end in parts[:-1])] and parts[-1][3] == n
        assert all(first <= begin < end <= last <= first + 12000 for first, last, begin, end in parts)
        assert all(first % 8 == begin % 8 == 0 for first, _, begin, _ in parts)


def test_long_audio_is_transcribed_in_windows(llm, monkeypatch):
    whole = llm.transcribe((SAMPLES, 16000))
    monkeypatch.setattr(parakeet_transcriber, "_WINDOW", 800)
    monkeypatch.setattr(parakeet_transcriber, "_OVERLAP", 160)
    parts = llm.transcribe((SAMPLES, 16000))
    assert parts.n_prompt > whole.n_prompt == 125
    assert parts.segments[0].start == whole.segments[0].start and parts.text
    alone = llm.transcribe((SAMPLES, 16000), condition_on_previous_text=False)
    assert alone.text[:20] == parts.text[:20]


def test_words_have_ordered_times_within_the_audio(llm):
    made = llm.transcribe((SAMPLES, 16000))
    assert made.seconds == 10.0 and made.language == ""
    assert "".join(segment.text for segment in made.segments).split() == [word.text for word in made.words]
    times = [time for word in made.words for time in (word.start, word.end)]
    assert times == sorted(times) and times[0] >= 0 and times[-1] <= 10.0
    assert made.segments[0].words[0].text.endswith(".")  # a sentence ends its segment
    assert "-->" in made.subtitles("srt")
    with pytest.raises(RequestError, match="expected srt or vtt"):
        made.subtitles("ass")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"language": "de"}, "do not support language; remove it"),
        ({"prompt": "Woolly"}, "do not support prompt"),
        ({"translate": True}, "do not support translate"),
        ({"temperature": 0.5}, "decode greedily; remove temperature"),
    ],
)
def test_unsupported_options_are_rejected_by_name(llm, options, says):
    with pytest.raises(RequestError, match=says):
        llm.transcribe((SAMPLES, 16000), **options)


def test_model_rejects_text_generation_and_embeddings(llm):
    with pytest.raises(RequestError, match="speech-to-text model and cannot complete text"):
        llm.generate("Hello")
    with pytest.raises(RequestError, match="speech-to-text model and cannot chat"):
        llm.chat("Hello")
    with pytest.raises(RequestError, match="encoder-decoder model"):
        llm.embed("Hello", pooling="mean")
    with pytest.raises(RequestError, match="it is a speech-to-text model; use a model that can, such as"):
        llm.embed("Hello")
    with pytest.raises(UnsupportedError, match=r"Whisper, Parakeet, T5\); remove the device option"):
        LLM(llm.path, device="cuda")
    with pytest.raises(RequestError, match="shorter than 20 ms"):
        llm.transcribe((SAMPLES[:200], 16000))


def test_f16_weights_are_read_in_place(folder, llm):
    with LLM(write_parakeet(folder / "ggml-half.bin", half=True), threads=1) as half:
        want = rows_of(llm)
        assert 0 < np.linalg.norm(rows_of(half) - want) < 3e-3 * np.linalg.norm(want)


def test_parakeet_metadata_is_read(folder, llm):
    with open_gguf(folder / "ggml-parakeet-tiny.bin") as file:
        assert file.version == 0 and file.metadata["parakeet.decoder_type"] == "tdt"
        assert file.tensors["dec.joint_out.weight"].shape[0] == BLANK + 1
        assert trace(file).transcribes and transcribes("parakeet") and not transcribes("llama")
        file.overlay({"parakeet.decoder_type": "beam"})
        with pytest.raises(UnsupportedError, match="expected ctc, rnnt or tdt"):
            trace(file)


@pytest.mark.parametrize("n", [30, 90, 50_000, 84_300, 85_000, 120_000])
def test_truncated_file_gives_a_one_line_error(folder, tmp_path, llm, n):
    (tmp_path / "cut.bin").write_bytes((folder / "ggml-parakeet-tiny.bin").read_bytes()[:n])
    with pytest.raises((GGUFError, UnsupportedError), match=r"cut\.bin: (.*\(at byte|this file of ggml)"):
        open_gguf(tmp_path / "cut.bin")


def test_unsupported_spectrogram_is_rejected(folder, tmp_path, llm):
    data = bytearray((folder / "ggml-parakeet-tiny.bin").read_bytes())
    at = 4 + 4 * 15 + 8 + 4 * N_MELS * 257 + 4 + 4 * 200  # the middle of the window
    data[at : at + 4] = np.float32(0.5).tobytes()
    (tmp_path / "ggml-other.bin").write_bytes(data)
    with pytest.raises(UnsupportedError, match="spectrogram window in the file differs from Parakeet's"):
        LLM(tmp_path / "ggml-other.bin", threads=1)


def header(folder, size, value):
    """Return the tiny file with a changed header field."""
    data = bytearray((folder / "ggml-parakeet-tiny.bin").read_bytes())
    struct.pack_into("<I", data, 4 + 4 * parakeet_bin._SIZES.index(size), value)
    return data


@pytest.mark.parametrize(
    ("size", "value", "says"),
    [
        ("n_mels", 513, "n_mels is 513; expected at most 512"),
        ("n_vocab", BLANK - 1, f"expected {BLANK - 1} tokens, found {BLANK}"),
        ("n_conv_kernel", 7, r"n_conv_kernel is 7, but a.blk.0.conv_dw.weight has shape \(32, 9\)"),
        ("n_subsampling_channels", 16, r"n_subsampling_channels is 16, but a.conv1d.0.weight has shape \(8, 1, 3"),
        ("n_pred_dim", 32, r"n_pred_dim is 32, but token_embd.weight has shape \(38, 16\)"),
        ("n_audio_head", 16, r"tensor a.blk.0.pos_bias_u has shape \(2, 16\); expected \(16, 2\)"),
    ],
)
def test_header_that_contradicts_the_tensors_is_rejected(folder, tmp_path, llm, size, value, says):
    (tmp_path / "ggml-other.bin").write_bytes(header(folder, size, value))
    with pytest.raises((GGUFError, ModelError, UnsupportedError), match=says):
        LLM(tmp_path / "ggml-other.bin", threads=1)


def test_impossible_duration_is_rejected(folder, tmp_path, llm):
    data = bytearray((folder / "ggml-parakeet-tiny.bin").read_bytes())
    struct.pack_into("<I", data, 4 + 4 * 15 + 8 + 4 * N_MELS * 257 + 4 + 4 * 400 + 8, 1 << 31)
    (tmp_path / "ggml-other.bin").write_bytes(data)
    with pytest.raises(GGUFError, match="expected a duration of 0 to 64 frames, found 2147483648"):
        open_gguf(tmp_path / "ggml-other.bin")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("num_mel_bins", 1 << 20, "parakeet.num_mel_bins is 1048576; expected an integer from 1 to 512"),
        ("durations", [0, 65], r"parakeet.durations is \(0, 65\); expected 0 to 64 frames each"),
        ("durations", [0, 1], "dec.joint_steps.weight has 5 rows, but the metadata says 2"),
        ("attention.head_count", 4, r"pos_bias_u has shape \(2, 16\); expected \(4, 8\)"),
    ],
)
def test_impossible_metadata_is_rejected(folder, llm, key, value, says):
    with open_gguf(folder / "ggml-parakeet-tiny.bin") as file:
        keys = Keys({**file.metadata, f"parakeet.{key}": value}, "parakeet")
        with pytest.raises((ModelError, PlanError), match=says):
            trace_tower(file.tensors, read(keys))


def test_quantized_bias_is_not_divided(folder):
    with open_gguf(folder / "ggml-parakeet-tiny.bin") as file:
        sizes = {"n_audio_state": WIDTH, "n_vocab": 27, "n_tdt_durations": 4}
        bias = Tensor("dec.joint.bias", GGMLType.Q8_0, (32,), 0, file.tensors["token_embd.weight"].file)
        with pytest.raises(UnsupportedError, match=r"bias is \(32,\) of Q8_0; expected 32 numbers of F32 or F16"):
            parakeet_bin._check_tensors(bias.file, sizes, {bias.name: bias})


def test_byte_tokens_of_a_character_are_one_in_a_word(monkeypatch, tmp_path):
    texts = [*TEXTS[:-3], "<0xE2>", "<0x82>", "<0xAC>"]
    monkeypatch.setattr(parakeet, "TEXTS", texts)
    path = write_parakeet(tmp_path / "ggml-bytes.bin")
    tokenizer, one = Tokenizer.from_gguf(path), len(texts) - 3
    assert [parakeet_bin.token_type(text) for text in ("<unk>", "<|nospeech|>", "<0xE2>", "a")] == [2, 3, 6, 1]
    ids = [2, one, one + 1, one + 2, 3, one]
    decoder, audio = ScriptedDecoder("tdt", [], (1,)), Audio(SAMPLES, 16000)
    transcriber = ParakeetTranscriber(tokenizer, decoder, N_MELS, 0, audio, TranscribeOptions())
    for i, id in enumerate(ids):
        assert not list(transcriber._add(TimedToken(id, i, i + 1, 0.0)))
    [segment] = transcriber._close()
    assert segment.text == " a\u20ac b\ufffd" and [word.text for word in segment.words] == ["a\u20ac", "b\ufffd"]


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"hidden_act": "gelu"}, "hidden_act of the joint network is 'gelu'; expected relu"),
        ({"hidden_act": "relu"}, "the blank is token 3"),  # as transformers writes it, beside the encoder's
        ({"encoder_config": {"hidden_act": "gelu"}}, "hidden_act of the encoder is 'gelu'; expected silu"),
    ],
)
def test_unsupported_activation_is_rejected_by_name(own, says):
    config = Hyperparameters(parakeet.config("tdt") | {"blank_token_id": 3} | own, "config.json")
    family = next(one for one in FAMILIES if one.architecture == "parakeet-tdt")
    with pytest.raises(ModelError, match=says):
        family.base(config.with_defaults(family.defaults), "")


def test_checkpoint_without_a_final_blank_is_rejected(tmp_path):
    own = parakeet.config("tdt") | {"blank_token_id": 3}
    (tmp_path / "config.json").write_text(json.dumps(own))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(safetensors(parakeet.checkpoint("tdt")))
    with pytest.raises(ModelError, match="the blank is token 3; expected the last of 38 tokens"):
        plan_conversion(open_checkpoint(tmp_path))
