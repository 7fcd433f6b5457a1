"""The house rules that a machine can check."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

import woolly

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "woolly"

# A package imports only what stands on a lower rung. Names on one rung do not import each other,
# except that text reads vocabularies with gguf.
LADDER = (
    ("gguf", "store"),
    ("quantize", "text"),
    ("plan",),
    ("models",),
    ("runtime",),
    ("engine",),
    ("llm",),
    ("async_llm",),
    ("serving",),
    ("cli",),
    ("__main__",),
)
RUNG = {name: height for height, names in enumerate(LADDER) for name in names}
FREE = {"errors", "_native", "__init__"}

ROOT_FILES = {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"}
ROOT_FOLDERS = {"woolly", "native", "tests", "benchmarks", "docs", "scripts", "deploy"}


def modules():
    return sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


def tracked():
    """Files of the checkout; without git (or outside a clone) those that are not plainly generated."""
    try:
        listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return [Path(line) for line in listing.splitlines() if (ROOT / line).exists()]
    except (OSError, subprocess.CalledProcessError):
        generated = {".venv", "build", "dist", "__pycache__", ".git"}
        files = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
        return [p for p in files if not generated & set(p.parts) and not any(q.startswith(".") for q in p.parts)]


def room(path):
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported_rooms(path):
    """Rooms of woolly that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [node.module]
            if node.module == "woolly":
                names = [f"woolly.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "woolly" and len(parts) > 1:
                yield parts[1]


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_package_imports_only_what_stands_to_its_left(path):
    own = room(path)
    if own in FREE:
        return
    assert own in RUNG, f"{own} has no place on the ladder"
    for other in imported_rooms(path):
        if other in FREE or other == own or not ((PACKAGE / other).exists() or (PACKAGE / f"{other}.py").exists()):
            continue
        assert RUNG[other] < RUNG[own], f"{own} imports {other}, which does not stand to its left"


def test_every_rung_that_exists_is_on_the_ladder():
    rooms = {room(path) for path in modules()} - FREE
    assert rooms <= set(RUNG)


@pytest.mark.parametrize(
    "path",
    [p for p in tracked() if p.suffix in {".py", ".cpp", ".h", ".pyi"}],
    ids=str,
)
def test_no_source_file_is_longer_than_400_lines(path):
    assert len((ROOT / path).read_text().splitlines()) <= 400


@pytest.mark.parametrize(
    "name",
    [
        "woolly",
        *(m.name for m in pkgutil.walk_packages(woolly.__path__, "woolly.") if m.name != "woolly._native"),
    ],
)
def test_all_is_sorted_complete_and_real(name):
    module = importlib.import_module(name)
    names = module.__all__
    assert len(names) == len(set(names))
    # Constants first, then classes, then the rest, each in order: as ruff sorts.
    kind = {n: 0 if n.isupper() and len(n) > 1 else 1 if n[:1].isupper() else 2 for n in names}
    assert names == sorted(names, key=lambda n: (kind[n], n))
    for exported in names:
        assert hasattr(module, exported), f"{name}.__all__ names {exported}, which does not exist"
    own = {n for n, value in vars(module).items() if getattr(value, "__module__", None) == name and n[0] != "_"}
    own = {n for n in own if isinstance(vars(module)[n], (type, FunctionType))}
    assert own <= set(names), f"public, but not in {name}.__all__"


def test_the_public_surface_is_exactly_this():
    assert set(woolly.__all__) == {
        "LLM", "AsyncLLM", "CallbackError", "Chunk", "Completion", "GGUFError", "ModelError", "PlanError",
        "RequestError", "SamplingParams", "Score", "StoreError", "TemplateError", "Tokenizer", "TokenizerError",
        "UnsupportedError", "WoollyError", "__version__",
    }  # fmt: skip


def test_nothing_lies_loose_at_the_root():
    loose = {p.parts[0] for p in tracked() if not p.parts[0].startswith(".")} - ROOT_FILES - ROOT_FOLDERS
    assert not loose


def test_importing_woolly_stays_light():
    script = "import sys, woolly; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    heavy = {
        "torch",
        "transformers",
        "fastapi",
        "uvicorn",
        "pydantic",
        "numpy",
        "jinja2",
        "tokenizers",
        "rich",
        "typer",
    }
    assert not heavy & set(loaded)


def test_the_library_never_prints_or_exits():
    for path in modules():
        if room(path) == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in {"print", "exit", "quit", "sys.exit", "os._exit", "os.abort"}, (
                    f"{path}:{node.lineno}"
                )
            if isinstance(node, ast.Attribute):
                assert ast.unparse(node) not in {"sys.stdout", "sys.stderr"}, f"{path}:{node.lineno}"


def test_a_checkout_holds_no_weights_or_built_files():
    for path in tracked():
        assert path.suffix not in {".gguf", ".so", ".o", ".whl"}, path
        assert (ROOT / path).stat().st_size < 1 << 20, f"{path} is over 1 MiB"
