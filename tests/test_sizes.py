"""Sizes of files, classes and functions of woolly/."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "woolly"
# Files above 360 lines, to be split by subject before they reach 400. Lower it, never raise it.
MOST_LONG_FILES = 18
# The tracer has a base for each group of ops, settings one for each source of rows; ops have a parameter for each
# attribute, LLM and engines one per option.
MANY_BASES = {"Tracer", "LLM", "Settings"}
MANY_PARAMETERS = {"attention", "moe", "norm", "launch", "__init__", "load_model", "read_chat"}


def test_few_files_are_close_to_the_limit():
    assert sum(len(path.read_text().splitlines()) > 360 for path in PACKAGE.rglob("*.py")) <= MOST_LONG_FILES


def test_classes_have_three_bases_and_functions_ten_parameters_at_most():
    """Functions of commands have a parameter for each option."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                assert len(node.bases) <= 3 or node.name in MANY_BASES, f"{path}:{node.lineno}: {node.name}"
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and path.parent.name != "commands":
                names = {one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
                few = len(names - {"self", "cls"}) <= 10
                assert few or node.name in MANY_PARAMETERS, f"{path}:{node.lineno}: {node.name}"
