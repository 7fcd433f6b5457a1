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
# Words that nobody in the field would search for, and the term in their place; parts of names, split at underscores.
RETIRED = {
    "ears": "audio", "hears": "audio", "hearing": "audio or transcription", "sight": "vision or visible pages",
    "senses": "multimodal", "pictures": "images", "purse": "speculation budget", "breadth": "adaptive batch size",
    "seats": "replica launchers", "seat": "replica launcher", "flights": "pending requests", "bell": "notifier",
    "shelf": "bounded store", "speller": "transducer decoder", "settler": "output processor",
    "saw": "observe", "doubles": "f64", "bring": "inject", "steer": "control vectors", "seer": "vision model",
    "telling": "report", "sayer": "printer", "compressing": "compressed attention",
    "workshop": "kernel compiler", "mailbox": "chunk queue", "purses": "speculation budget", "ear": "audio",
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


def names(path):
    """Yield line and name of the classes, functions, parameters and variables that a file defines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr


def words(name):
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower().split("_")


def test_names_use_the_terms_of_the_field():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}: say {RETIRED[word]}"
        for path in files()
        for line, name in [(0, path.stem), *names(path)]
        for word in words(name)
        if word in RETIRED
    ]
    assert wrong == []
