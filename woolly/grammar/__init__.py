"""WHAT MAY COME NEXT: JSON schemas, regular expressions, Lark and GBNF grammars."""

from woolly.grammar.compiler import Grammar, GrammarCompiler
from woolly.grammar.constraint import Constraint

__all__ = ["Constraint", "Grammar", "GrammarCompiler"]
