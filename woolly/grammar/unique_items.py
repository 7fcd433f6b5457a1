"""UniqueItems: arrays whose items may not repeat, checked while they are written.

A grammar cannot compare items. Its rules record the items of such an array as captures, each time another one is
complete. A token that completes a repeated item is not allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from woolly.errors import RequestError
from woolly.grammar.schema.rules import CAPTURE

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from woolly.tokens import Tokenizer

LONGEST_TOKEN = 16  # bytes of a token that is tried ahead
MAX_FORCED = 48  # bytes that may have to follow
MAX_DEPTH = 4  # tokens of one item that are tried ahead
_FIRST = re.compile(rb"[\",\]}\s]")
_SCALAR = re.compile(rb"[0-9.eE+\-]*(?:true|false|null|rue|ue|e|alse|lse|se|ull|ll|l)?")
_WHOLE = re.compile(rb"[,\[]\s*(?:-?[0-9][0-9.eE+-]*|\"[^\"]*\"|true|false|null|\[\s*\]|\{\s*\})\s*[,\]}]")
_LITERAL = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_AHEAD = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ -_."


class Spellings:
    """Bytes of a vocabulary's tokens, sorted by what they can complete. Shared by all grammars."""

    def __init__(self, tokens: list[bytes], n_words: int) -> None:
        self.tokens = tokens
        self.key_of = np.full(len(tokens), -1, np.int32)  # number of the bytes up to the end of an item
        tokens_of: list[list[int]] = []
        self.quoted: dict[bytes, list[int]] = {}  # keys of strings
        scalars: list[int] = []
        index: dict[bytes, int] = {}
        whole = np.zeros(n_words * 32, bool)
        self.ids: dict[bytes, int] = {}
        for i, token in enumerate(tokens):
            self.ids.setdefault(token, i)
            found = _FIRST.search(token)
            if found is None:
                continue
            if _WHOLE.search(token):
                whole[i] = True  # bytes spell the same text
                continue
            key = token[: found.end()]
            if found[0] == b'"' or _SCALAR.fullmatch(token, 0, found.start()):
                number = index.setdefault(key, len(index))
                self.key_of[i] = number
                if number == len(tokens_of):
                    tokens_of.append([])
                    if found[0] == b'"':
                        self.quoted.setdefault(key.lower(), []).append(number)
                tokens_of[number].append(i)
                if found[0] != b'"':
                    scalars.append(i)
        self.scalars = np.array(scalars, np.int64)
        self.arrays = [np.array(found, np.int64) for found in tokens_of]
        self.letters = [self.ids[byte] for byte in (b"q", b"Z") if byte in self.ids]
        self.not_whole = ~np.packbits(whole, bitorder="little").view(np.uint32)


def make_spellings(tokenizer: Tokenizer, n_words: int) -> Spellings:
    """Return the spellings of a vocabulary. Special tokens have none."""
    special = (tokenizer.is_special(i) or i in tokenizer.stop_ids for i in range(tokenizer.n_vocab))
    return Spellings([b"" if skip else tokenizer.token_bytes(i) for i, skip in enumerate(special)], n_words)


class UniqueItems:
    """Items of one answer so far."""

    def __init__(self, spellings: Spellings) -> None:
        self._spellings = spellings
        self._n = 0  # captures so far
        self._lists: set[bytes] = set()
        self._items: set[bytes] = set()
        self._literals: set[bytes] = set()
        self._longest = 0
        self._text = b""

    def accept(self, matcher: LLMatcher, token: int) -> None:
        """Record a token. Raise RequestError if it completes an item that is there already."""
        self._text = (self._text + self._spellings.tokens[token])[-max(200, self._longest + 100) :]
        if not self._record(matcher):
            raise RequestError(f"the grammar cannot accept token {token}: it repeats an item that must be unique")

    def _record(self, matcher: LLMatcher) -> bool:
        """Record the items that are complete. Return False if one of them is there already."""
        captures = matcher.get_captures()
        for name, text in captures[self._n :]:
            if name == CAPTURE:
                if repeats(text):
                    return False
                self._add(text)
        self._n = len(captures)
        return True

    def _add(self, text: bytes) -> None:
        end = text.rfind(b",")
        while end >= 0 and text[:end].rstrip() not in self._lists:
            end = text.rfind(b",", 0, end)
        item = _plain(text[end + 1 :].strip())
        self._lists.add(text)
        self._items.update((b"0", b"-0") if item in (b"0", b"-0") else (item,))
        self._literals.update(_LITERAL.findall(item))
        self._longest = max(self._longest, len(item))

    def limit(self, matcher: LLMatcher, words: NDArray[np.uint32]) -> None:
        """Remove the tokens that repeat an item from a mask of allowed ones."""
        # Computing a mask completes items whose last bytes are the only possible ones.
        is_possible = self._record(matcher)
        words[: len(self._spellings.not_whole)] &= self._spellings.not_whole[: len(words)]
        if self._items:
            if is_possible:
                self._limit(matcher, words, self._text, MAX_DEPTH)
            if not is_possible or not words.any():
                raise RequestError(
                    "the grammar cannot continue: each next token repeats an item that must be"
                    " unique; limit maxItems to the number of different items"
                )

    def _limit(self, matcher: LLMatcher, words: NDArray[np.uint32], text: bytes, depth: int) -> None:
        tail = _plain(text)[-self._longest - 1 :]
        allowed = np.unpackbits(words.view(np.uint8), bitorder="little")[: len(self._spellings.key_of)].astype(bool)
        forbidden = list(self._repeating(matcher, allowed, tail))
        for token in self._risky(allowed, tail):
            if not self._is_alive(matcher, token, text, depth):
                forbidden.append(token)
        for token in forbidden:
            words[token >> 5] &= ~np.uint32(1 << (token & 31))

    def _repeating(self, matcher: LLMatcher, allowed: NDArray[np.bool_], tail: bytes) -> Iterator[int]:
        """Yield the tokens that complete a repeated item."""
        known = self._spellings
        keys: list[int] = []
        for rest in _rests(self._literals, tail):
            keys += known.quoted.get(rest, ())
        is_text = bool(known.letters) and bool(allowed[known.letters].all())  # no value but a string goes on with these
        if not is_text and re.search(rb"[0-9a-z\[\]{}\"-]\Z", tail):
            keys += np.unique(known.key_of[known.scalars[allowed[known.scalars]]]).tolist()
        probe = matcher
        for key in keys:
            same = known.arrays[key][allowed[known.arrays[key]]].tolist()
            if not same:
                continue
            probe = matcher.deep_copy() if probe is matcher else probe
            if self._completes_repeated(probe, same[0]):
                probe = matcher  # copied anew, because a matcher records the same items only once
                yield from same

    def _completes_repeated(self, probe: LLMatcher, token: int) -> bool:
        n = len(probe.get_captures())
        if not probe.consume_token(token):
            return False
        found = any(name == CAPTURE and repeats(text) for name, text in probe.get_captures()[n:])
        probe.rollback(1)
        return found

    def _risky(self, allowed: NDArray[np.bool_], tail: bytes) -> Iterable[int]:
        """Return the tokens after which the text may have to become a known item."""
        known = self._spellings
        found: set[int] = set()
        for rest in _rests(self._items, tail):
            if len(rest) > MAX_FORCED:
                continue
            for n in range(1, min(len(rest), LONGEST_TOKEN) + 1):
                for spelled in (rest[:n], b" " + rest[:n]):
                    token = known.ids.get(spelled)
                    if token is not None and allowed[token]:
                        found.add(token)
        return sorted(found)

    def _is_alive(self, matcher: LLMatcher, token: int, text: bytes, depth: int) -> bool:
        """Return True if an item that is not known can follow a token."""
        known = self._spellings
        after = _plain(text + known.tokens[token])[-self._longest - 1 :]
        known_next = {rest[0] for rest in _rests(self._items, after)}
        for byte in _AHEAD:
            follower = known.ids.get(bytes([byte]))
            if follower is None or ord(chr(byte).lower()) in known_next:
                continue
            if matcher.validate_tokens([token, follower]) == 2:
                return True
        if depth == 0:
            return True
        ahead = matcher.deep_copy()
        n = len(ahead.get_captures())
        if not ahead.consume_token(token):
            return False
        words = np.zeros(len(known.not_whole), np.uint32)
        ahead.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if any(name == CAPTURE and repeats(items) for name, items in ahead.get_captures()[n:]):
            return False
        words &= known.not_whole
        self._limit(ahead, words, text + known.tokens[token], depth - 1)
        return bool(words.any())


def _plain(text: bytes) -> bytes:
    """Return a text without the optional spaces and with one case, in which escapes may differ."""
    return text.lower().replace(b", ", b",").replace(b": ", b":")


def _rests(texts: Iterable[bytes], tail: bytes) -> set[bytes]:
    """Return what can follow so that one of the texts ends there: its own bytes after those that are written."""
    found = set(texts) if tail[-1:] in (b"[", b",", b" ", b":") else set()
    ends = [at for at in range(max(0, len(tail) - 200), len(tail)) if tail[at - 1 : at] in (b"[", b",", b":", b"{")]
    for at in ends:
        begun = tail[at:].lstrip()
        if begun:
            found.update(text[len(begun) :] for text in texts if text.startswith(begun))
    found.discard(b"")
    return found


def repeats(items: bytes) -> bool:
    """Return True if two of the items, JSON values with commas between them, are equal."""
    try:
        values = json.loads(b"[" + items + b"]", parse_int=_number, parse_float=_number)
        return len({_key(value) for value in values}) < len(values)
    except (ValueError, RecursionError):  # an exponent of thousands of digits
        return True  # cannot be compared


def _number(text: str) -> tuple[str, str, int]:
    """Return the same for all spellings of a number, of any size: its sign, digits and exponent."""
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    kept = digits.rstrip("0")
    if not kept:
        return "", "", 0
    return mantissa[: text.startswith("-")], kept, int(exponent or 0) - len(fraction) + len(digits) - len(kept)


def _key(value: Any) -> object:
    if isinstance(value, dict):
        return frozenset((name, _key(child)) for name, child in value.items())
    if isinstance(value, list):
        return ("list", tuple(map(_key, value)))
    return value if isinstance(value, tuple) else (type(value).__name__, value)
