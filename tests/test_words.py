"""The house rules for words: docstrings begin with a verb or a noun, and names use the field's terms."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("woolly", "tests", "benchmarks", "docs")

# A docstring says what something is or does: it begins with a noun or a verb, not with a relative clause.
NOT_A_NOUN = re.compile(
    r"(Those|That|The same|Its?|What|Which|Whether|None|One of|All that|Of|Who|Whose|How|Where|Nothing|Some of)\b"
)
# Words that nobody in the field would search for, and the term that they stood for.
RETIRED = {
    "ears": "audio", "eyes": "encoder scheduler", "hears": "audio", "sight": "vision, images or window view",
    "senses": "multimodal", "picture": "image", "pictures": "images", "purse": "speculation budget",
    "purses": "speculation budget", "breadth": "adaptive batch size", "seats": "replica launcher",
    "seat": "replica launcher", "flights": "pending requests", "bell": "notifier", "shelf": "bounded store",
    "speller": "transducer decoder", "settler": "output processor", "workshop": "kernel compiler",
    "brought": "injected embeddings", "halves": "f16, projectors or neox", "beside": "companion files",
    "own_code": "remote code", "most": "max", "guesses": "draft tokens", "powers": "exp weights",
}  # fmt: skip


def files():
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def docstrings(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""


def test_docstrings_begin_with_a_verb_or_a_noun():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in files()
        for line, text in docstrings(path)
        if NOT_A_NOUN.match(text)
    ]
    assert wrong == [], "begin with a verb or a noun phrase: 'Return the pages of a sequence.', 'True if ...'"
