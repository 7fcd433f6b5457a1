"""Translation of GBNF, llama.cpp's grammar language, to llguidance's Lark.

llguidance's converter (`llguidance.gbnf_to_lark`) is not used, because it turns regular rules into greedy lexemes: a
grammar such as `"a" ws "\\n"`, in which `ws` also matches newlines, could never finish. Of five tested grammars, it
translated two incorrectly. See `lexemes.py` for the method used here.
"""

__all__: list[str] = []
