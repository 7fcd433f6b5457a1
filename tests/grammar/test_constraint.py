"""Constraints: what each kind of grammar lets through, and what is refused before a token is made."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
import threading

import numpy as np
import pytest

from tests.cases.grammars import (
    TOKEN_OF_BYTE,
    accepts,
    allowed_tokens,
    byte_tokenizer,
    is_finished,
    may_end,
    refusal,
    walk,
    word_tokenizer,
)
from tests.tokens.tiny import byte_level, sentencepiece, wordpiece
from woolly.errors import RequestError
from woolly.grammar import GrammarCompiler
from woolly.tokens import Tokenizer

BYTES = GrammarCompiler(byte_tokenizer())
WORDS = word_tokenizer()
COMPILER = GrammarCompiler(WORDS)


def takes(kind: str, source: str, text: str) -> bool:
    return accepts(BYTES.compile(kind, source).start(), text.encode())


def test_importing_the_engine_does_not_import_llguidance():
    script = "import sys, woolly.grammar as c; print('llguidance' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"
    )


@pytest.mark.parametrize(
    ("kind", "source", "good", "bad"),
    [
        ("json_object", "", ["{}", '{"a": [1, {"b": null}]}'], ["[]", "1", '{"a"}', '{"a":1,}', " {}"]),
        ("regex", r"\d{3}-[a-f]+", ["123-abc"], ["12-a", "123-", "123-abcg"]),
        ("regex", "^(yes|no)$", ["yes", "no"], ["yesno", ""]),
        ("regex", " ", [" "], [""]),
        ("choice", '["red", "green", "reddish", "rot 😀"]', ["red", "green", "reddish", "rot 😀"], ["re", "redd", ""]),
        ("choice", r'["a\"b", "c\\d", "e\nf", "/"]', ['a"b', "c\\d", "e\nf", "/"], ['a\\"b', "cd"]),
        ("lark", 'start: "a"+ tail\ntail: "b" | "(" tail ")"', ["ab", "aa((b))"], ["a", "b", "a(b"]),
        ("lark", 'start: %json {"type": "integer"} "!"', ["12!"], ["12", "x!"]),
        ("grammar", 'root ::= "(" root ")" | [0-9]+', ["1", "((23))"], ["(1", ""]),
    ],
)
def test_each_grammar_kind_accepts_only_its_texts(kind, source, good, bad):
    assert [text for text in good if not takes(kind, source, text)] == []
    assert [text for text in bad if takes(kind, source, text)] == []


def test_stop_tokens_are_allowed_exactly_where_the_grammar_may_end():
    tokenizer = byte_tokenizer()
    constraint = BYTES.compile("regex", "ab?").start()
    stops = sorted(tokenizer.stop_ids)
    assert len(stops) == 2
    assert not allowed_tokens(constraint)[stops].any()
    assert not may_end(constraint)
    constraint.accept(TOKEN_OF_BYTE[ord("a")])
    assert allowed_tokens(constraint)[stops].all()
    assert may_end(constraint) and not is_finished(constraint)
    constraint.accept(TOKEN_OF_BYTE[ord("b")])
    assert is_finished(constraint)
    assert np.flatnonzero(allowed_tokens(constraint)).tolist() == stops
    constraint.accept(stops[1])
    assert is_finished(constraint)


def test_stop_token_finishes_a_grammar_that_could_continue():
    constraint = BYTES.compile("regex", "a*").start()
    constraint.accept(min(byte_tokenizer().stop_ids))
    assert is_finished(constraint)
    with pytest.raises(RequestError, match="after the end"):
        constraint.accept(TOKEN_OF_BYTE[ord("a")])


def test_special_tokens_are_never_text():
    tokenizer = byte_tokenizer()
    allowed = allowed_tokens(BYTES.compile("regex", "(?s:.)*").start())
    assert tokenizer.control_ids - tokenizer.stop_ids == {257}
    assert not allowed[257]
    assert allowed[list(tokenizer.stop_ids)].all()


def test_lark_grammar_can_name_special_tokens():
    constraint = BYTES.compile("lark", 'start: <|think|> "a"').start()
    assert np.flatnonzero(allowed_tokens(constraint)).tolist() == [257]
    constraint.accept(257)
    assert np.flatnonzero(allowed_tokens(constraint)).tolist() == [TOKEN_OF_BYTE[ord("a")]]


def test_boolean_and_packed_masks_agree():
    constraint = COMPILER.compile("json_object", "").start()
    for text in ('{"', "name", '":', "12", "}"):
        (token,) = WORDS.encode(text, add_special=False)
        words = constraint.words()
        allowed = allowed_tokens(constraint)
        assert allowed.shape == (WORDS.n_vocab,) and allowed.dtype == np.bool_
        unpacked = np.unpackbits(words.view(np.uint8), bitorder="little")[: WORDS.n_vocab]
        assert np.array_equal(unpacked.astype(bool), allowed)
        assert allowed[token]
        assert constraint.words() is words
        constraint.accept(token)
    assert is_finished(constraint)


def test_disallowed_token_is_a_permanent_error():
    constraint = BYTES.compile("regex", "ab").start()
    with pytest.raises(RequestError, match="cannot accept token"):
        constraint.accept(TOKEN_OF_BYTE[ord("b")])
    for ask in (lambda: allowed_tokens(constraint), constraint.words, lambda: is_finished(constraint)):
        with pytest.raises(RequestError):
            ask()
    with pytest.raises(RequestError, match="not an id"):
        BYTES.compile("regex", "ab").start().accept(10_000)


def test_constraints_of_one_grammar_are_independent():
    grammar = BYTES.compile("choice", '["ab", "ac"]')
    one, other = grammar.start(), grammar.start()
    one.accept(TOKEN_OF_BYTE[ord("a")])
    one.accept(TOKEN_OF_BYTE[ord("b")])
    assert is_finished(one)
    assert allowed_tokens(other)[TOKEN_OF_BYTE[ord("a")]]
    assert not allowed_tokens(one)[TOKEN_OF_BYTE[ord("a")]]


def test_grammar_is_compiled_once_and_the_cache_is_bounded():
    compiler = GrammarCompiler(byte_tokenizer())
    first = compiler.compile("regex", "a0")
    assert compiler.compile("regex", "a0") is first
    for n in range(40):
        compiler.compile("regex", f"a{n}")
    assert compiler.compile("regex", "a0") is not first


def test_many_threads_may_compile_and_start_concurrently():
    compiler, failed = GrammarCompiler(byte_tokenizer()), []

    def work(number: int) -> None:
        for n in range(10):
            grammar = compiler.compile("choice", json.dumps([f"x{(number + n) % 5}"]))
            if not accepts(grammar.start(), f"x{(number + n) % 5}".encode()):
                failed.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    gc.collect()


@pytest.mark.parametrize(
    "pattern", [r"[a-c]{1,3}(,[a-c]{1,3})*", r"(true|false|null)( \d+(\.\d+)?)?", r"é*(the|name){1,3}\n"]
)
def test_random_walks_of_a_regex_match_it(pattern):
    grammar = COMPILER.compile("regex", pattern)
    texts = [text for seed in range(40) if (text := walk(WORDS, grammar, seed)) is not None]
    assert len(set(texts)) > 5
    assert all(re.fullmatch(pattern, text) for text in texts)


def test_random_walks_of_a_choice_find_all_of_it():
    choices = ["true", "trueish", "the name", "12ab", ""]
    grammar = COMPILER.compile("choice", json.dumps(choices))
    assert {walk(WORDS, grammar, seed) for seed in range(150)} == set(choices)


def test_forced_tokens_match_the_tokenizer():
    constraint = COMPILER.compile("regex", r'\{"name":(12|ab)\}').start()
    assert constraint._matcher.compute_ff_tokens() == WORDS.encode('{"name":', add_special=False)[:3]
    for token in constraint._matcher.compute_ff_tokens():
        assert np.flatnonzero(allowed_tokens(constraint)).tolist() == [token]
        constraint.accept(token)


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [
        ("poem", "", "unknown kind of grammar 'poem'"),
        ("regex", "", "the regex is empty"),
        ("regex", "(", "the regex cannot be used: unclosed group"),
        ("regex", "(?=a)b", "the regex cannot be used: look-around"),
        ("regex", r"(a)\1", "the regex cannot be used: backreferences are not supported"),
        ("regex", "[^\\s\\S]", "no token of the vocabulary can come next"),
        ("regex", "\ud800", "lone surrogate"),
        ("choice", "[]", "one or more strings"),
        ("choice", '["a", 1]', "one or more strings"),
        ("choice", "red", "one or more strings"),
        ("lark", " \n", "the Lark grammar is empty"),
        ("lark", "begin: /a/", "the Lark grammar cannot be used"),
        ("lark", "start: missing", "the Lark grammar cannot be used"),
        ("lark", "start: s\ns: s", "no token of the vocabulary can come next"),
        ("lark", "start[temperature=0.5]: /a+/", "attribute temperature, which is not supported"),
        ("lark", 'start: a\na[lazy, stop="b"]: /.*/', "attribute stop, which is not supported; use suffix or lazy"),
        ("lark", 'start: %json {"extends": {}}', "uses 'extends' at #"),
        ("lark", 'start: %json {"x-guidance": {"lenient": true}, "type": "object"}', "uses 'x-guidance'"),
        ("grammar", 'root ::= "a', "line 1, column 10"),
        ("grammar", "# nothing", "no rule called root"),
    ],
)
def test_unenforceable_grammar_gives_a_one_line_error(kind, source, message):
    refused = refusal(BYTES.compile, kind, source)
    assert message in refused
    assert "\n" not in refused and len(refused) < 400


def test_vocabulary_without_stop_tokens_still_ends():
    tokenizer = Tokenizer.from_metadata(byte_level(eos_token_id=2**32 - 1))
    if tokenizer.stop_ids:  # an id by default, which here is a byte
        assert tokenizer.stop_ids == {11}
    grammar = GrammarCompiler(tokenizer).compile("regex", "xy")
    constraint = grammar.start()
    for byte in b"xy":
        constraint.accept(TOKEN_OF_BYTE[byte])
    assert is_finished(constraint)
    assert allowed_tokens(constraint).shape == (256,)


def test_sentencepiece_tokens_stand_for_their_bytes():
    pieces = [("▁yes", -1.0), ("yes", -2.0), ("no", -3.0), ("▁", -4.0), ("é", -5.0)]
    pieces += [(letter, -9.0) for letter in "noyes"] + [("ye", -8.0)]
    tokenizer = Tokenizer.from_metadata(sentencepiece(pieces))
    compiler = GrammarCompiler(tokenizer)

    def texts(pattern: str) -> set[str]:
        allowed = np.flatnonzero(allowed_tokens(compiler.compile("regex", pattern).start()))
        return {tokenizer.token_text(int(i)) for i in allowed}

    assert texts(" yes|no?") == {"▁yes", "▁", "<0x20>", "no", "n", "<0x6E>"}
    assert texts("[éß]") == {"é", "<0xC3>"}
    assert texts("(?s:.)*").isdisjoint({"<unk>", "<s>", "<0xFF>", "<0xC0>"})
    # A text that the grammar forces is spelled as the tokenizer would, without the space that it puts before a text.
    constraint = compiler.compile("regex", "noyes").start()
    assert [tokenizer.token_text(i) for i in constraint._matcher.compute_ff_tokens()] == ["no", "yes"]


def test_vocabulary_that_cannot_spell_the_grammar_is_an_error():
    compiler = GrammarCompiler(Tokenizer.from_metadata(wordpiece(["yes", "##no"])))
    assert walk(Tokenizer.from_metadata(wordpiece(["yes", "##no"])), compiler.compile("regex", " yesno"), 0) == " yesno"
    assert "cannot be used" in refusal(compiler.compile, "json_object", "")


def test_slow_grammar_delays_only_requests_for_it(monkeypatch):
    compiler = GrammarCompiler(WORDS)
    build, building, finish, built = compiler._build, threading.Event(), threading.Event(), []

    def slow(kind: str, source: str):
        built.append(source)
        if source == "slow":
            building.set()
            assert finish.wait(60)
        return build(kind, source)

    monkeypatch.setattr(compiler, "_build", slow)
    found = []
    threads = [threading.Thread(target=lambda: found.append(compiler.compile("regex", "slow"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert building.wait(60)
    other = threading.Thread(target=compiler.compile, args=("regex", "quick"), daemon=True)
    other.start()
    other.join(60)
    assert not other.is_alive()
    finish.set()
    for thread in threads:
        thread.join(60)
    assert found[0] is found[1] is compiler.compile("regex", "slow")
    assert built.count("slow") == 1


def test_failed_grammar_is_compiled_again(monkeypatch):
    compiler = GrammarCompiler(WORDS)
    build, errors = compiler._build, [KeyboardInterrupt(), RequestError("no")]

    def failing(kind: str, source: str):
        if errors:
            raise errors.pop()
        return build(kind, source)

    monkeypatch.setattr(compiler, "_build", failing)
    for error in (RequestError, KeyboardInterrupt):
        with pytest.raises(error):
            compiler.compile("regex", "a")
    assert compiler.compile("regex", "a") is compiler.compile("regex", "a")
