"""Word timestamps of Whisper, from the cross-attention weights of the decoder."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.gguf import Keys
from woolly.models.whisper import read
from woolly.speech.alignment import align, alignment_heads
from woolly.speech.transcript import TranscriptWord

if TYPE_CHECKING:
    from woolly.engine import Hook, LoadedModel

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

_SPACELESS = ("zh", "ja", "th", "lo", "my", "yue")  # languages without spaces between words
# Punctuation that belongs to the next word, and to the previous word.
_PREPENDED, _APPENDED = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"


class CrossAttentionHooks:
    """Hooks of a request that collect encoder output and cross-attention queries of decoder tokens."""

    def __init__(self, n_source: int, layers: Sequence[int]) -> None:
        self._n_source = n_source
        self.rows: list[Float32] = []
        self.queries: dict[int, list[Float32]] = {layer: [] for layer in layers}

    def keep_rows(self, positions: npt.NDArray[np.int32], values: Float32) -> None:
        """Collect encoder rows."""
        self.rows.append(values[positions < self._n_source])

    def keep_queries(self, layer: int) -> Hook:
        """Return the hook that collects the cross-attention queries of a layer."""

        def keep(positions: npt.NDArray[np.int32], values: Float32) -> None:
            self.queries[layer].append(values[positions >= self._n_source])

        return keep


class WordAligner:
    """Alignment heads of a model and their key projections."""

    def __init__(self, loaded: LoadedModel, is_english: bool) -> None:
        architecture = loaded.program.plan.architecture
        hp = read(Keys(loaded.file.metadata, architecture))
        self._n_source, self._head_dim = hp.n_source, hp.head_dim
        name = str(loaded.file.metadata.get("general.name", ""))
        heads = alignment_heads(hp.n_decoder, hp.n_encoder, hp.heads, hp.n_mels, is_english=is_english, name=name)
        self._tensors = loaded.file.tensors
        self._heads: dict[int, list[int]] = {}  # by layer
        for layer, head in heads:
            self._heads.setdefault(layer, []).append(head)
        steps = loaded.program.running_plan.steps
        self._encoder_step = next(i for i, step in enumerate(steps) if step.op == "scatter_rows")
        self._keys: dict[int, Float32] = {}  # key projection of the alignment heads, by layer

    def hooks(self) -> tuple[CrossAttentionHooks, Mapping[str | int, Hook]]:
        """Return the collector and the hooks of a request."""
        hooked = CrossAttentionHooks(self._n_source, list(self._heads))
        own: dict[str | int, Hook] = {self._encoder_step: hooked.keep_rows}
        return hooked, own | {f"dec.blk.{i}.cross_attn_q": hooked.keep_queries(i) for i in self._heads}

    def token_starts(self, hooked: CrossAttentionHooks, n_skipped: int, n_rows: int) -> Int64:
        """Return the encoder row, below `n_rows`, at which each token after the first `n_skipped` begins."""
        rows, each = np.concatenate(hooked.rows)[:n_rows], self._head_dim
        scores = []
        for layer, heads in self._heads.items():
            queries, matrix = np.concatenate(hooked.queries[layer]), self._matrix(layer, heads)
            keys = rows @ matrix.T
            for i, head in enumerate(heads):
                own = queries[:, head * each : (head + 1) * each] @ keys[:, i * each : (i + 1) * each].T
                scores.append(own * np.float32(each**-0.5))
        return align(scores, n_skipped)

    def _matrix(self, layer: int, heads: Sequence[int]) -> Float32:
        if layer not in self._keys:
            tensor = self._tensors[f"dec.blk.{layer}.cross_attn_k.weight"]
            matrix = tensor.dequantize().reshape(-1, self._head_dim, tensor.shape[1])
            self._keys[layer] = matrix[heads].reshape(-1, tensor.shape[1])
        return self._keys[layer]


def split_words(pieces: Sequence[bytes], token_starts: Sequence[float], language: str) -> tuple[TranscriptWord, ...]:
    """Return the words of tokens. `token_starts` has the start of each token and the end of the last token."""
    found: list[tuple[str, int]] = []  # text, and the first token
    for text, first in _split_on_unicode(pieces):
        is_new = text.startswith(" ") or text.strip() in string.punctuation or language in _SPACELESS
        if found and not is_new:
            found[-1] = found[-1][0] + text, found[-1][1]
        else:
            found.append((text, first))
    joined = _merge_punctuation(found)
    ends = [first for _, first in joined[1:]] + [len(pieces)]
    return tuple(
        TranscriptWord(text.strip(), token_starts[first], token_starts[end])
        for (text, first), end in zip(joined, ends, strict=True)
        if text.strip()
    )


def _split_on_unicode(pieces: Sequence[bytes]) -> Iterator[tuple[str, int]]:
    """Yield (text, first token). Tokens that end within a UTF-8 character are joined."""
    first, data = 0, b""
    for i, piece in enumerate(pieces):
        data += piece
        try:
            text = data.decode()
        except UnicodeDecodeError:
            if i + 1 < len(pieces):
                continue
            text = data.decode("utf-8", "replace")
        if text:
            yield text, first
        first, data = i + 1, b""


def _merge_punctuation(words: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Merge punctuation into the adjacent words."""
    out: list[tuple[str, int]] = []
    for text, first in words:
        is_mark = bool(out) and not text.startswith(" ") and text.strip() in _APPENDED
        if is_mark or (out and _opens(out[-1][0])):
            out[-1] = out[-1][0] + text, out[-1][1]
        else:
            out.append((text, first))
    return out


def _opens(text: str) -> bool:
    return text.startswith(" ") and bool(text.strip()) and text.strip() in _PREPENDED
