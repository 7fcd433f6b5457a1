"""Constraints: grammars compiled once for a vocabulary, and the tokens that they let come next in each sequence."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from woolly.engine.grammar_source import KINDS, explain, read_source
from woolly.engine.grammar_vocabulary import make_vocabulary
from woolly.errors import RequestError
from woolly.text import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["Constraint", "Grammar", "GrammarCompiler"]

MAX_CACHED = 32
STACK = 256 << 20  # virtual; only a hostile grammar touches much of it

_stack_lock = threading.Lock()

# Eight booleans, as one word, for every byte of a packed mask; bit 0 is the first.
_EIGHT = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").reshape(-1).view(np.uint64)

Result = TypeVar("Result")


class Constraint:
    """One walk through a grammar. Belongs to one sequence and to one thread at a time."""

    def __init__(self, matcher: LLMatcher, n_words: int, n_vocab: int) -> None:
        self._matcher = matcher
        self._n_vocab = n_vocab
        self._words = np.zeros(n_words, np.uint32)  # bit i of word j: token 32 j + i
        self._pointer = self._words.ctypes.data
        self._bytes = self._words.view(np.uint8)
        self._lanes: NDArray[np.uint64] | None = None  # 8 booleans each, once someone asks for them
        self._has_words = self._has_flags = False

    def words(self) -> NDArray[np.uint32]:
        """The tokens that may come next, 32 to a word, lowest bit first; the buffer is written anew after `accept`.

        The stop tokens are among them where the grammar may end.
        """
        if not self._has_words:
            # A matcher that failed gives a mask of stop tokens, so its error is asked for each time.
            self._matcher.unsafe_compute_mask_ptr(self._pointer, self._words.nbytes)
            self._check()
            self._has_words = True
        return self._words

    def allowed(self) -> NDArray[np.bool_]:
        """The same, one boolean per token, [n_vocab]."""
        if self._lanes is None:
            self._lanes = np.empty(len(self._bytes), np.uint64)
        self.words()
        if not self._has_flags:
            np.take(_EIGHT, self._bytes, out=self._lanes, mode="clip")
            self._has_flags = True
        return self._lanes.view(np.bool_)[: self._n_vocab]

    def accept(self, token: int) -> None:
        """Goes on with a token, which must be an allowed one."""
        if not 0 <= token < self._n_vocab:
            raise RequestError(f"token {token} is not an id of this vocabulary (0 to {self._n_vocab - 1})")
        if self._matcher.is_stopped():
            # Nothing but a stop token may follow, and that changes nothing.
            if self.words()[token >> 5] >> np.uint32(token & 31) & np.uint32(1) == 0:
                raise RequestError(f"token {token} comes after the end of the grammar")
            return
        self._has_words = self._has_flags = False
        if not self._matcher.consume_token(token):
            raise RequestError(f"the grammar cannot take token {token}: {explain(self._matcher.get_error())}")

    @property
    def finished(self) -> bool:
        """Whether nothing but the end may follow."""
        self._check()
        return self._matcher.is_stopped()

    @property
    def may_end(self) -> bool:
        """Whether what came so far is a whole text of the grammar."""
        return self._matcher.is_accepting()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError(f"the grammar cannot go on: {explain(self._matcher.get_error())}")


class Grammar:
    """A grammar that is ready to guide any number of sequences."""

    def __init__(self, matcher: LLMatcher, n_words: int, n_vocab: int) -> None:
        self._matcher = matcher
        self._n_words = n_words
        self._n_vocab = n_vocab
        self._lock = threading.Lock()

    def start(self) -> Constraint:
        """A constraint at the beginning."""
        with self._lock:
            return Constraint(self._matcher.deep_copy(), self._n_words, self._n_vocab)


class GrammarCompiler:
    """Compiles grammars for one vocabulary; safe to use from many threads. Nothing is built before it is needed."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary: LLTokenizer | None = None
        self._vocabulary_lock = threading.Lock()
        self._cache: OrderedDict[tuple[str, str], Future[Grammar]] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, kind: str, source: str) -> Grammar:
        """The grammar of a source; RequestError in one sentence where it is wrong, not supported or too large.

        `kind` is json_schema, json_object (`source` is not read), regex, choice (a JSON array of strings), lark or
        grammar (GBNF).
        """
        if kind not in KINDS:
            raise RequestError(f"{kind!r} is no kind of grammar; there are {', '.join(KINDS)}")
        while True:
            mine: Future[Grammar] = Future()
            with self._lock:
                found = self._cache.setdefault((kind, source), mine)
                self._cache.move_to_end((kind, source))
                if len(self._cache) > MAX_CACHED:
                    self._cache.popitem(last=False)
            # Without the lock: a grammar that takes long delays nobody but those who want the same.
            if found is mine:
                return self._build_into(mine, kind, source)
            try:
                return found.result()
            except CancelledError:
                pass  # whoever built it was interrupted

    def _build_into(self, future: Future[Grammar], kind: str, source: str) -> Grammar:
        try:
            grammar = self._build(kind, source)
        except BaseException as error:
            with self._lock:
                if self._cache.get((kind, source)) is future:
                    del self._cache[kind, source]
            if isinstance(error, Exception):
                future.set_exception(error)
            else:
                future.cancel()
            raise
        future.set_result(grammar)
        return grammar

    def _build(self, kind: str, source: str) -> Grammar:
        from llguidance import LLMatcher, LLParserLimits

        serialized = read_source(kind, source)
        with self._vocabulary_lock:
            vocabulary = self._vocabulary = self._vocabulary or make_vocabulary(self._tokenizer)

        limits = LLParserLimits(
            max_items_in_row=2_000,
            initial_lexer_fuel=1_000_000,  # 20 ms of building
            step_lexer_fuel=200_000,  # 15 ms of one mask
            step_max_items=50_000,
            max_lexer_states=50_000,  # 1 to 2 KiB each
            max_grammar_size=500_000,
            verbose_errors=False,
        )

        def build() -> LLMatcher:
            matcher = LLMatcher(vocabulary, serialized, log_level=0, limits=limits)
            if not matcher.is_error():
                matcher.compute_bitmask()  # a grammar that cannot even begin fails here
            return matcher

        matcher = _on_large_stack(build)
        if matcher.is_error():
            raise RequestError(f"{KINDS[kind]} cannot be used: {explain(matcher.get_error())}")
        if warnings := matcher.get_grammar_warnings():
            raise RequestError(f"{KINDS[kind]} cannot be kept to the letter: {explain(warnings[0])}")
        return Grammar(matcher, (vocabulary.vocab_size + 31) // 32, self._tokenizer.n_vocab)


def _on_large_stack(work: Callable[[], Result]) -> Result:
    """Does the work on a thread of its own: llguidance follows references by recursion and checks no stack."""
    done: list[Result] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # a panic is no Exception
            failed.append(error)

    thread = threading.Thread(target=run, name="woolly-grammar", daemon=True)
    try:
        with _stack_lock:
            before = threading.stack_size(STACK)
            try:
                thread.start()
            finally:
                threading.stack_size(before)
    except (RuntimeError, ValueError) as error:
        raise RequestError(
            f"the grammar cannot be compiled, for no thread with a large stack can start: {error}"
        ) from None
    thread.join()
    if failed:
        raise RequestError(f"the grammar cannot be compiled: {explain(str(failed[0]))}") from failed[0]
    return done[0]
