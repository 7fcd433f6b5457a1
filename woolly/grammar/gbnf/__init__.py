"""GBNF, llama.cpp's grammar language, translated to llguidance's Lark.

llguidance has a converter of its own (`llguidance.gbnf_to_lark`), which is not used: it makes greedy lexemes of
regular rules, so that a grammar such as `"a" ws "\\n"`, in which `ws` also matches newlines, can never finish. Of five
grammars that were tried, two came out wrong; see `lexemes.py` for what this one does instead.
"""

__all__: list[str] = []
