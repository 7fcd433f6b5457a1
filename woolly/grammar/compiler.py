"""GrammarCompiler: compiles grammars for one vocabulary."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, TypeVar

from woolly.errors import RequestError
from woolly.grammar.constraint import Allowance, Constraint
from woolly.grammar.limited_compile import is_plain, try_grammar
from woolly.grammar.schema.rules import CAPTURE
from woolly.grammar.source import KINDS, explain, read_source
from woolly.grammar.unique_items import Spellings, UniqueItems, make_spellings
from woolly.grammar.vocabulary import make_vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from woolly.tokens import Tokenizer

MAX_CACHED = 32
STACK = 256 << 20  # virtual memory; only hostile grammars use much of it
LIMITS: dict[str, Any] = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 1_000_000,  # 20 ms to build
    "step_lexer_fuel": 200_000,  # 15 ms per mask
    "step_max_items": 10_000,  # 200 ms per mask; a schema with 450 optional properties needs less than 5,000
    "max_lexer_states": 50_000,  # 1 to 2 KiB each
    "max_grammar_size": 500_000,
}

_stack_lock = threading.Lock()

Result = TypeVar("Result")


class Grammar:
    """Compiled grammar, shared by any number of sequences."""

    def __init__(self, matcher: LLMatcher, n_words: int, n_vocab: int, spellings: Spellings | None = None) -> None:
        self._spellings = spellings
        self._matcher = matcher
        self._n_words = n_words
        self._n_vocab = n_vocab
        self._lock = threading.Lock()

    @property
    def has_unique_items(self) -> bool:
        """True if the constraint compares items of arrays."""
        return self._spellings is not None

    def start(self, beside: Constraint | None = None) -> Constraint:
        """Return a constraint at the start of an answer. With `beside`, it shares the time limit of that constraint.

        Different requests have separate time limits, so one client cannot slow down the grammar of another.
        """
        allowance = Allowance() if beside is None else beside.allowance
        unique = None if self._spellings is None else UniqueItems(self._spellings)
        with self._lock:
            return Constraint(self._matcher.deep_copy(), self._n_words, self._n_vocab, allowance, unique)


class GrammarCompiler:
    """Compiles grammars for one vocabulary, once each, and caches the latest ones. Thread-safe and lazy."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary: LLTokenizer | None = None
        self._spellings: Spellings | None = None
        self._vocabulary_lock = threading.Lock()
        self._cache: OrderedDict[tuple[str, str], Future[Grammar]] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, kind: str, source: str) -> Grammar:
        """Compile a grammar. Raise RequestError if it is invalid, unsupported or too large.

        `kind` is json_schema, json_object (ignores `source`), regex, choice (a JSON array of strings), lark or grammar
        (GBNF).
        """
        if kind not in KINDS:
            raise RequestError(f"unknown kind of grammar {kind!r}; expected one of {', '.join(KINDS)}")
        while True:
            mine: Future[Grammar] = Future()
            with self._lock:
                found = self._cache.setdefault((kind, source), mine)
                self._cache.move_to_end((kind, source))
                if len(self._cache) > MAX_CACHED:
                    self._cache.popitem(last=False)
            # Outside the lock, so a slow grammar only delays callers that need the same grammar.
            try:
                return self._build_into(mine, kind, source) if found is mine else found.result()
            except CancelledError:
                if found is mine:
                    raise
                # the thread that compiled it was interrupted: try again
            finally:
                # A future keeps its exception, whose traceback keeps this frame. This cycle would keep the source in
                # memory.
                del mine, found

    def _build_into(self, future: Future[Grammar], kind: str, source: str) -> Grammar:
        try:
            grammar = self._build(kind, source)
        except BaseException as error:
            if isinstance(error, RequestError):
                error.field, error.code = kind, "grammar"
            with self._lock:
                if self._cache.get((kind, source)) is future:
                    del self._cache[kind, source]
            if isinstance(error, Exception):
                future.set_exception(error)
            else:
                future.cancel()
            raise
        else:
            future.set_result(grammar)
            return grammar
        finally:
            del future  # breaks the same cycle as in `compile`

    def _build(self, kind: str, source: str) -> Grammar:
        from llguidance import LLMatcher, LLParserLimits

        serialized = read_source(kind, source)
        with self._vocabulary_lock:
            vocabulary = self._vocabulary = self._vocabulary or make_vocabulary(self._tokenizer)

        if not is_plain(kind, serialized):
            try_grammar(serialized, LIMITS, STACK)
        limits = LLParserLimits(verbose_errors=False, **LIMITS)

        def build() -> LLMatcher:
            matcher = LLMatcher(vocabulary, serialized, log_level=0, limits=limits)
            if not matcher.is_error():
                matcher.compute_bitmask()  # fails for a grammar that has no first token
            return matcher

        matcher = _on_large_stack(build)
        if matcher.is_error():
            raise RequestError(f"{KINDS[kind]} cannot be used: {explain(matcher.get_error())}")
        if warnings := matcher.get_grammar_warnings():
            raise RequestError(f"{KINDS[kind]} cannot be enforced exactly: {explain(warnings[0])}")
        n_words = (vocabulary.vocab_size + 31) // 32
        spellings = None
        if CAPTURE in serialized:
            with self._vocabulary_lock:
                spellings = self._spellings = self._spellings or make_spellings(self._tokenizer, n_words)
        return Grammar(matcher, n_words, self._tokenizer.n_vocab, spellings)


def _on_large_stack(work: Callable[[], Result]) -> Result:
    """Run the work on a thread with a large stack, because llguidance's recursion over references is unbounded."""
    done: list[Result] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # a Rust panic is not an Exception
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
            f"the grammar cannot be compiled, because no thread with a large stack can start: {error}"
        ) from None
    thread.join()
    if failed:
        cause = failed.pop()  # breaks the cycle between the traceback, `run` and the list
        raise RequestError(f"the grammar cannot be compiled: {explain(str(cause))}") from cause
    return done[0]
