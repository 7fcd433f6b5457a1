"""Structured output: JSON schemas, regular expressions, Lark and GBNF grammars."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.grammar.compiler import Grammar, GrammarCompiler
    from woolly.grammar.constraint import Constraint

__all__ = ["Constraint", "Grammar", "GrammarCompiler"]

__getattr__ = lazy_getattr(
    __name__,
    {
        "compiler": "Grammar GrammarCompiler",
        "constraint": "Constraint",
    },
)
