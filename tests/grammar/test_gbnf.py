"""GBNF: what a source means, where it is wrong, and that its Lark grammar is the same language."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cases.grammars import Recognizer, accepts, byte_tokenizer, refusal, walk, word_tokenizer
from woolly.errors import RequestError
from woolly.grammar import GrammarCompiler
from woolly.grammar.gbnf.lark import gbnf_to_lark
from woolly.grammar.gbnf.nodes import Alternatives, Characters, Concat, Literal, Reference, Repeat
from woolly.grammar.gbnf.parser import parse_gbnf

BYTES = GrammarCompiler(byte_tokenizer())
WORDS = word_tokenizer()
COMPILER = GrammarCompiler(WORDS)

JSON = r"""
# any object
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") space
object ::= "{" space (pair ("," space pair)*)? "}" space
pair   ::= string ":" space value
array  ::= "[" space (value ("," space value)*)? "]" space
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" space
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? space
space  ::= ([ \t\n] space)?
"""
ARITHMETIC_VERSION = r"""
root ::= (sum "=" blank value "\n")+
sum  ::= value ([-+*/] value)*
value ::= name | number | "(" blank sum ")" blank
name ::= [a-z] [a-z0-9_]* blank
number ::= [0-9]+ blank
blank ::= [ \t\n]*   # takes new lines too, and yet the literal above must find one
"""
LIST = 'root ::= item+\nitem ::= "- " [^\\r\\n]+ "\\n"\n'
CHESS = r"""
root ::= (
    "1. " move " " move "\n"   # at least this
    ([1-9] [0-9]? ". " move " " move "\n")*
)
move ::= (pawn | piece | castle) [+#]?
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBRQ])?
piece ::= [NBRQK] [a-h]? [1-8]? "x"? [a-h] [1-8]
castle ::= "O-O" "-O"?
"""
LISP = 'root ::= "(" root* ")" | [a-z]+ " "?'
LEFT = 'root ::= root "+" item | item\nitem ::= [0-9] | "(" root ")"'


def test_every_syntax_element_is_parsed():
    rules = parse_gbnf(
        'root ::= "a\\"\\n" [a-c\\]x] [^\\x00-\\x7f] .{2} | other-one? # comment\n'
        'other-one ::= (\n "b"+ |\n "c"{2,}\n){1,3}'
    )
    everything = Characters(((0, 0xD7FF), (0xE000, 0x10FFFF)))
    assert rules == {
        "root": Alternatives(
            (
                Concat(
                    (
                        Literal('a"\n'),
                        Characters(((0x5D, 0x5D), (0x61, 0x63), (0x78, 0x78))),
                        Characters(((0x80, 0xD7FF), (0xE000, 0x10FFFF))),
                        Repeat(everything, 2, 2),
                    )
                ),
                Repeat(Reference("other-one"), 0, 1),
            )
        ),
        "other-one": Repeat(Alternatives((Repeat(Literal("b"), 1, None), Repeat(Literal("c"), 2, None))), 1, 3),
    }


def test_escapes_name_characters():
    assert parse_gbnf(r'root ::= "\x41\u00e9\U0001F600\t\r\n\\\[\]"') == {"root": Literal("Aé😀\t\r\n\\[]")}


def test_dash_at_either_end_of_a_class_is_a_dash():
    assert parse_gbnf("root ::= [-+] [+-]") == {"root": Concat((Characters(((0x2B, 0x2B), (0x2D, 0x2D))),) * 2)}


def test_rule_may_continue_after_a_bar_and_end_without_a_newline():
    assert parse_gbnf('root ::=\n "a" |\n  # why\n  "b"\r\n\r\n') == {
        "root": Alternatives((Literal("a"), Literal("b")))
    }


def test_unreachable_rules_are_dropped():
    assert set(parse_gbnf('root ::= a\na ::= "x"\nb ::= "y" b')) == {"root", "a"}


@pytest.mark.parametrize(
    ("source", "where", "what"),
    [
        ("", "", "no rule called root"),
        ('a ::= "b"', "", "no rule called root"),
        ('root ::= "a" missing', "line 1, column 14", "'missing' is not defined"),
        ('root ::= "a"\nroot ::= "b"', "line 2, column 1", "'root' is defined twice"),
        ('root := "a"', "line 1, column 6", "expected ::= after the name 'root' but found ':'"),
        ('root ::= "a', "line 1, column 10", 'no closing "'),
        ("root ::= [a", "line 1, column 10", "no closing ]"),
        ("root ::= []", "line 1, column 10", "no characters"),
        ("root ::= [^]", "line 1, column 10", "excludes nothing"),
        ("root ::= [z-a]", "line 1, column 11", "ends (U+0061) before it begins (U+007A)"),
        (r'root ::= "\q"', "line 1, column 11", r"\q is not an escape"),
        (r'root ::= "\x4"', "line 1, column 11", r"\x needs 2 hexadecimal digits"),
        (r'root ::= "\U00110000"', "line 1, column 11", "beyond the last character"),
        (r'root ::= "\ud83d"', "line 1, column 11", "half of a character"),
        ('root ::= ("a"', "line 1, column 14", "expected ) for the group"),
        ('root ::= "a")', "line 1, column 13", "expected the end of the line but found ')'"),
        ("root ::= *", "line 1, column 10", "'*' has nothing before it to repeat"),
        ('root ::= "a"{x}', "line 1, column 14", "expected a number of repetitions but found 'x'"),
        ('root ::= "a"{2', "line 1, column 15", "expected } after the number of repetitions but the grammar ends"),
        ('root ::= "a"{3,2}', "line 1, column 13", "smaller upper than lower bound"),
        ('root ::= "a"{999999999999}', "line 1, column 14", "too many"),
        ("root ::= <think> .*", "line 1, column 10", "tokens such as <[1000]> or <think> are not supported"),
        ("root ::= !<[7]>", "line 1, column 10", "tokens such as <[1000]> or <think> are not supported"),
        ('root ::= "a" | b\n\nb ::= "c" b', "line 3, column 1", "'b' can never end"),
        ("root ::= " + "(" * 200 + '"a"' + ")" * 200, "line 1, column 110", "nested deeper than 100 levels"),
        ('root ::= "a"\n::= "b"', "line 2, column 1", "expected the name of a rule but found ':'"),
    ],
)
def test_invalid_grammar_is_rejected_with_place_and_reason(source, where, what):
    message = refusal(parse_gbnf, source)
    assert where in message
    assert what in message
    assert "\n" not in message


def test_deep_and_exploding_rules_are_rejected():
    chain = "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1} [ab]" for i in range(900)) + '\nr900 ::= "a"'
    assert "too deep" in refusal(gbnf_to_lark, chain)
    explosion = "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60)) + "\nr60 ::= [ab]"
    assert "too large" in refusal(gbnf_to_lark, explosion)
    text = explosion.replace("[ab]", '"a"')
    assert "too large" in refusal(gbnf_to_lark, text)
    many = "root ::= r0\n" + "\n".join(f'r{i} ::= "a"' for i in range(3000))
    assert "too many rules; the maximum is 1000" in refusal(gbnf_to_lark, many)


def language(source: str, alphabet: str, most: int) -> tuple[list[str], list[str]]:
    """The texts of a grammar as the recognizer and as the compiled grammar have them."""
    grammar, recognizer = BYTES.compile("grammar", source), Recognizer(parse_gbnf(source))
    texts = ["".join(letters) for n in range(most + 1) for letters in itertools.product(alphabet, repeat=n)]
    return (
        [text for text in texts if recognizer.accepts(text)],
        [text for text in texts if accepts(grammar.start(), text.encode())],
    )


@pytest.mark.parametrize(
    ("source", "alphabet", "most"),
    [
        (ARITHMETIC_VERSION, "a=+\n", 5),  # a greedy blank would swallow the new line that ends an equation
        (LISP, "(a )", 5),
        (LEFT, "1+()", 5),
        ('root ::= [ab]* "ab"', "ab", 6),  # a greedy class would swallow the literal
        ('root ::= "(" root ")" | "x" "yz" | "x" tail\ntail ::= "yx" root | "y"', "xyz", 5),  # one begins another
        ('root ::= "a" root "b" | ""', "ab", 6),
        ("root ::= word root?\nword ::= [a] | [a] [b]", "ab", 6),  # recursion that only repeats
        ('root ::= ("a" root)? "b"?', "ab", 5),
        ('root ::= a "b" | root root\na ::= ("a" a)?', "ab", 5),
        ('root ::= "aaa" | ("a" "aa") | "a"{3}', "a", 5),  # one text in several pieces
    ],
)
def test_greedy_lexemes_accept_the_same_texts(source, alphabet, most):
    expected, got = language(source, alphabet, most)
    assert got == expected
    assert expected


leaves = st.one_of(
    st.text("ab", max_size=3).map(lambda text: f'"{text}"'),
    st.sampled_from(["[a]", "[ab]", "[^a]", ".", "root", "one", "two"]),
)
marks = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}"])
expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda items: f"({' '.join(items)})"),
        st.lists(inner, min_size=2, max_size=3).map(lambda items: f"({' | '.join(items)})"),
        st.tuples(inner, marks).map(lambda item: f"({item[0]}){item[1]}"),
    ),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(expressions, expressions, expressions)
def test_any_grammar_gives_the_same_language_in_lark(root, one, two):
    same_in_lark(root, one, two)


@pytest.mark.rare
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(expressions, expressions, expressions)
def test_many_grammars_give_the_same_language_in_lark(root, one, two):
    same_in_lark(root, one, two)


def same_in_lark(root, one, two):
    source = f"root ::= {root}\none ::= {one}\ntwo ::= {two}"
    try:
        parse_gbnf(source)
    except RequestError as error:
        assert "can never end" in str(error)
        return
    expected, got = language(source, "ab", 4)
    assert got == expected, gbnf_to_lark(source)


@pytest.mark.parametrize("source", [JSON, ARITHMETIC_VERSION, LIST, CHESS, LISP, LEFT])
def test_random_walks_over_longer_tokens_stay_within_the_language(source):
    grammar, recognizer = COMPILER.compile("grammar", source), Recognizer(parse_gbnf(source))
    texts = [text for seed in range(25) if (text := walk(WORDS, grammar, seed, 60)) is not None]
    assert len(set(texts)) >= 3
    for text in texts:
        assert recognizer.accepts(text), text


def test_random_walks_of_a_regular_grammar_match_its_regex():
    grammar = COMPILER.compile("grammar", CHESS)
    move = r"(?:(?:[a-h]x)?[a-h][1-8](?:=[NBRQ])?|[NBRQK][a-h]?[1-8]?x?[a-h][1-8]|O-O(?:-O)?)[+#]?"
    pattern = re.compile(rf"1\. {move} {move}\n(?:[1-9][0-9]?\. {move} {move}\n)*")
    texts = [text for seed in range(30) if (text := walk(WORDS, grammar, seed)) is not None]
    assert texts
    assert all(pattern.fullmatch(text) for text in texts)
