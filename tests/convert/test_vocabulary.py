"""Vocabularies of every kind, trained here, give the tokens of their originals; those that cannot are refused."""

import json
import struct

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from woolly.convert.checkpoint import Checkpoint
from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.vocabulary import read_tokens, verify_tokenizer
from woolly.convert.vocabulary.rwkv import read_rwkv, rwkv_ends
from woolly.convert.vocabulary.sentencepiece import read_sentencepiece
from woolly.convert.vocabulary.verification_text import verification_lines
from woolly.errors import ModelError, WoollyError
from woolly.tokens import Tokenizer

GPT4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
GPT4 += r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIAL = ["<|start|>", "<|stop|>"]
BYTES = [f"<0x{i:02X}>" for i in range(256)]


def trained(kind, lines):
    if kind == "words":
        made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer(lowercase=True)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.decoder = decoders.WordPiece()
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        made.train_from_iterator(lines, trainers.WordPieceTrainer(vocab_size=600, special_tokens=special))
        return made
    if kind == "bytes":
        made = tokenizers.Tokenizer(models.BPE())
        split = pre_tokenizers.Split(tokenizers.Regex(GPT4), "isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet)
        made.train_from_iterator(lines, trainer)
        made.post_processor = processors.TemplateProcessing(single="<|start|> $A", special_tokens=[("<|start|>", 0)])
        return made
    made = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.ByteFallback()
    special = ["<unk>", "<s>", "</s>", *BYTES]
    made.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=900, special_tokens=special, limit_alphabet=120))
    value = json.loads(made.to_str())
    value["added_tokens"] = [one for one in value["added_tokens"] if one["content"] not in BYTES]
    return tokenizers.Tokenizer.from_str(json.dumps(value))


def tokens_of(folder, **settings):
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    checkpoint = Checkpoint(folder, Hyperparameters({}, "config.json"), {}, {})
    return read_tokens(checkpoint, 1000)


@pytest.mark.parametrize("kind", ["bytes", "words", "fallback"])
def test_trained_vocabulary_gives_the_same_tokens(kind, tmp_path):
    lines = [line for line in verification_lines(400) if line.strip()]
    trained(kind, lines).save(str(tmp_path / "tokenizer.json"))
    named = {"bytes": {"bos_token": "<|start|>"}, "words": {"unk_token": "[UNK]", "sep_token": "[SEP]"}}
    named["fallback"] = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
    keys, n_lines = verify_tokenizer(tokens_of(tmp_path, **named[kind]), {})
    assert n_lines >= 1500
    assert keys["tokenizer.ggml.model"] == {"bytes": "gpt2", "words": "bert", "fallback": "llama"}[kind]
    if kind == "bytes":
        assert keys["tokenizer.ggml.add_bos_token"] and Tokenizer.from_metadata(keys).encode("a")[0] == 0


def message(*fields):
    """A protobuf message of (number, value)."""

    def varint(n):
        out = b""
        while n > 127:
            out, n = out + bytes([n & 127 | 128]), n >> 7
        return out + bytes([n])

    data = b""
    for number, value in fields:
        if isinstance(value, float):
            data += varint(number << 3 | 5) + struct.pack("<f", value)
        elif isinstance(value, int):
            data += varint(number << 3) + varint(value)
        else:
            raw = value.encode() if isinstance(value, str) else value
            data += varint(number << 3 | 2) + varint(len(raw)) + raw
    return data


def pieces():
    rows = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), *((name, 0.0, 6) for name in BYTES)]
    rows += [("▁", -1.0, 1), ("a", -2.0, 1), ("b", -3.0, 1), ("ab", -0.5, 1), ("▁ab", -0.25, 1)]
    return rows


def test_sentencepiece_model_alone_is_a_vocabulary(tmp_path):
    rows = [(1, message((1, text), (2, score), (3, kind))) for text, score, kind in pieces()]
    rows += [(2, message((3, 2))), (3, message((1, "identity"), (3, 1), (4, 0)))]
    (tmp_path / "tokenizer.model").write_bytes(message(*rows))
    keys, n_lines = verify_tokenizer(tokens_of(tmp_path, bos_token="<s>", eos_token="</s>"), {})
    assert n_lines == 0  # nothing to compare with
    assert keys["tokenizer.ggml.tokens"][:264] == [text for text, _, _ in pieces()]
    assert Tokenizer.from_metadata(keys).encode("ab ab", add_special=False) == [263, 263]


@pytest.mark.parametrize("data", [b"", b"\x0a\xff\xff\xff\xff\x7f", b"\x0b", b"hello", bytes(40)])
def test_invalid_sentencepiece_model_gives_a_one_line_error(data, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(ModelError, match="SentencePiece"):
        read_sentencepiece(tmp_path / "tokenizer.model")


def test_folder_without_a_vocabulary_is_rejected(tmp_path):
    with pytest.raises(WoollyError, match="so there is no vocabulary"):
        tokens_of(tmp_path)


def test_rwkv_has_its_own_vocabulary_file(tmp_path):
    path = tmp_path / "rwkv_vocab_v20230424.txt"
    lines = [rf"{i + 1} {bytes([i])!r} 1" for i in range(256)]
    lines += [r"257 '\n\n' 2", "258 ' the' 4", "259 'é' 2", "260 b'\\xe2\\x80' 2"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    keys = read_rwkv(path)
    keys |= rwkv_ends(keys)
    assert keys["tokenizer.ggml.eot_token_id"] == 257
    tokenizer = Tokenizer.from_metadata(
        {**keys, "tokenizer.ggml.token_type": np.int32(keys["tokenizer.ggml.token_type"])}
    )
    assert tokenizer.encode("a the é\n\n", add_special=False, parse_special=False) == [98, 258, 33, 259, 257]
    path.write_text("1 'a' 2\n", encoding="utf-8")
    with pytest.raises(ModelError, match="line 1 is not token 1"):
        read_rwkv(path)
