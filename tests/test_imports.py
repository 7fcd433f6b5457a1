"""No import cycle that executes, neither at the top of files nor inside functions."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "woolly"
# Imports inside functions: of optional packages, and of code that most commands do not run. Lower it, never raise it.
MOST_IN_FUNCTIONS = 410


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(node, in_function=False):
    """Yields (what an import names, whether a function executes it); type-only imports never execute."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield [alias.name for alias in child.names], in_function
        elif isinstance(child, ast.ImportFrom):
            yield [f"{child.module}.{alias.name}" for alias in child.names], in_function
        else:
            yield from imports(child, in_function or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))


def graph(trees):
    """Returns the modules that each module imports, by its name."""
    edges = {}
    for module, tree in trees.items():
        named = {name for names, _ in imports(tree) for name in names}
        found = {next((part for part in prefixes(name) if part in trees), module) for name in named}
        edges[module] = found - {module}
    return edges


def prefixes(name):
    """Yields woolly.store.names.is_url, woolly.store.names, woolly.store, woolly."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def cycles(edges):
    """Returns the modules that cannot be put in an order: what is left when those without imports are taken away."""
    left = {module: set(imported) for module, imported in edges.items()}
    for direction in ("imports", "is imported"):
        while True:
            free = {one for one, others in left.items() if not others & left.keys()}
            if not free:
                break
            left = {one: others - free for one, others in left.items() if one not in free}
        if direction == "imports":
            turned = {one: set() for one in left}
            for one, others in left.items():
                for other in others & left.keys():
                    turned[other].add(one)
            left = turned
    return set(left)


def parsed():
    return {module_name(path): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def test_no_import_cycle_executes_and_few_imports_are_inside_functions():
    trees = parsed()
    assert cycles(graph(trees)) == set()
    n_inside = sum(in_function for tree in trees.values() for _, in_function in imports(tree))
    assert n_inside <= MOST_IN_FUNCTIONS


def test_cycles_at_the_top_and_inside_functions_are_found():
    trees = {
        "a": "import b",
        "b": "def f():\n    if True:\n        from c import x",
        "c": "import a",
        "d": "import a\nif TYPE_CHECKING:\n    import e",
        "e": "import d",
    }
    assert cycles(graph({name: ast.parse(text) for name, text in trees.items()})) == {"a", "b", "c"}
