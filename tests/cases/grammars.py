"""Grammars for tests: small vocabularies, random walks, and a recognizer that shares nothing with the real one."""

from __future__ import annotations

import random

import numpy as np

from tests.tokens.tiny import CONTROL, byte_level, in_byte_characters
from woolly.errors import RequestError
from woolly.grammar import Constraint, Grammar
from woolly.grammar.gbnf.nodes import Alternatives, Characters, Concat, Literal, Reference, Repeat
from woolly.tokens import Tokenizer

SPECIAL = [("<|end|>", CONTROL), ("<|think|>", CONTROL), ("<|stop|>", CONTROL)]
CLOSING = (b'"', b"]", b"}", b")", b"0", b"\n", b'"}')
WORDS = ["true", "false", "null", '{"', '":', '",', '"}', "name", "the", "12", "ab", "  ", "\n\n", " a", "é", "1.5"]


def byte_tokenizer() -> Tokenizer:
    """256 bytes and the special tokens: a text is spelled in one way."""
    return Tokenizer.from_metadata(byte_level(special=SPECIAL, eos_token_id=256, eot_token_id=258))


def word_tokenizer() -> Tokenizer:
    """The bytes, some longer tokens whose edges do not fall between lexemes, and the special tokens."""
    merges = []
    for word in WORDS:
        pieces = list(in_byte_characters(word))
        while len(pieces) > 1:
            merges.append(f"{pieces[0]} {pieces[1]}")
            pieces[:2] = ["".join(pieces[:2])]
    merges = list(dict.fromkeys(merges))
    n = 256 + len({merge.replace(" ", "") for merge in merges})
    return Tokenizer.from_metadata(byte_level(merges, SPECIAL, eos_token_id=n, eot_token_id=n + 2))


def allowed_tokens(constraint: Constraint) -> np.ndarray:
    """One boolean per token of the vocabulary."""
    bits = np.unpackbits(constraint.words().view(np.uint8), bitorder="little")
    return bits[: constraint._n_vocab].astype(bool)


def is_finished(constraint: Constraint) -> bool:
    """True if only the end token may follow."""
    constraint._check()
    return constraint._matcher.is_stopped()


def may_end(constraint: Constraint) -> bool:
    """True if the tokens so far form a complete text of the grammar."""
    return constraint._matcher.is_accepting()


def walk(tokenizer: Tokenizer, grammar: Grammar, seed: int, most: int = 200) -> str | None:
    """A text of allowed tokens, drawn with a liking for short texts; None if it grew too long."""
    draw = random.Random(seed)
    constraint = grammar.start()
    stops = sorted(tokenizer.stop_ids)
    closing = [i for i in range(tokenizer.n_vocab) if tokenizer.token_bytes(i) in CLOSING]
    data = b""
    for n in range(most):
        allowed = allowed_tokens(constraint)
        may_stop = allowed[stops].any()
        allowed[stops] = False
        if may_stop and (not allowed.any() or draw.random() < 0.3):
            constraint.accept(stops[0])
            assert is_finished(constraint)
            return data.decode()
        tokens = np.flatnonzero(allowed)
        if n > most // 3 and allowed[closing].any():
            tokens = np.array(closing)[allowed[closing]]
        token = int(tokens[draw.randrange(len(tokens))])
        data += tokenizer.token_bytes(token)
        constraint.accept(token)
    return None


def accepts(constraint: Constraint, text: bytes) -> bool:
    """True if a constraint over single bytes accepts the complete text and may end there."""
    for byte in text:
        if is_finished(constraint) or not allowed_tokens(constraint)[TOKEN_OF_BYTE[byte]]:
            return False
        constraint.accept(TOKEN_OF_BYTE[byte])
    return may_end(constraint)


TOKEN_OF_BYTE = {byte_tokenizer().token_bytes(i)[0]: i for i in range(256)}


class Recognizer:
    """Recognizer of GBNF rules that fills in a table until nothing changes."""

    def __init__(self, rules) -> None:
        self._rules = rules

    def accepts(self, text: str) -> bool:
        self._text = text
        self._ends = {(name, at): frozenset() for name in self._rules for at in range(len(text) + 1)}
        while True:
            found = {(name, at): self._find(self._rules[name], at) for name, at in self._ends}
            if found == self._ends:
                return len(text) in self._ends["root", 0]
            self._ends = found

    def _find(self, item, at) -> frozenset[int]:
        """End positions of the item when it begins at `at`."""
        if isinstance(item, Reference):
            return self._ends[item.name, at]
        if isinstance(item, Literal):
            return frozenset([at + len(item.text)] if self._text.startswith(item.text, at) else [])
        if isinstance(item, Characters):
            code = ord(self._text[at]) if at < len(self._text) else -1
            return frozenset([at + 1] if any(low <= code <= high for low, high in item.ranges) else [])
        if isinstance(item, Alternatives):
            return frozenset().union(*(self._find(option, at) for option in item.options))
        if isinstance(item, Concat):
            ends = frozenset([at])
            for part in item.items:
                ends = frozenset().union(*(self._find(part, end) for end in ends))
            return ends
        assert isinstance(item, Repeat)
        ends, out = frozenset([at]), frozenset([at] if item.low == 0 else [])
        for n in range(1, (item.high if item.high is not None else item.low + len(self._text) + 1) + 1):
            ends = frozenset().union(*(self._find(item.item, end) for end in ends))
            out |= ends if n >= item.low else frozenset()
        return out


def refusal(compile_, *arguments) -> str:
    """The message with which a grammar is refused."""
    try:
        compile_(*arguments)
    except RequestError as error:
        return str(error)
    raise AssertionError(f"{arguments} was not refused")
