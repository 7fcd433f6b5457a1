"""The house rules that a machine can check."""

import ast
import functools
import importlib
import io
import pkgutil
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path
from types import FunctionType

import pytest

import woolly
from tests.cases.tiny import TINY, write_tiny
from woolly.multimodal import audio_families, vision_families
from woolly.runtime import GPU_KINDS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "woolly"
# What the rules see: code that a person wrote, for processors of any kind.
NATIVE = {".cpp", ".h", ".cu", ".cuh", ".slang"}
SOURCES = {".py", ".pyi", *NATIVE}

# A room imports only rooms on a lower rung; rooms on one rung do not import each other.
LADDER = (
    ("machine", "quant", "wire"),
    ("gguf", "store"),
    ("tokens", "templates", "quantize"),
    ("grammar", "plan"),
    ("multimodal",),  # its families trace plans; models with an encoder of their own use its blocks
    ("sampling", "models"),
    ("chat", "convert", "runtime"),
    ("cache", "mcp"),
    ("engine",),
    ("speech",),
    ("llm",),
    ("measure",),
    ("serving",),
    ("cluster",),
    ("cli",),
    ("__main__",),
)
RUNG = {name: height for height, names in enumerate(LADDER) for name in names}
FREE = {"errors", "lazy_imports", "_native", "__init__"}

# Folders that may be long, because all their files are leaves of one shape: one model, sampler, command, ... each.
LEAVES = {"models", "families", "samplers", "commands", "passes", "ops"}
MAX_FILES = 20
# Folders of tests that belong to no room of the package.
TEST_FOLDERS = {"cases", "clients", "docs", "goldens", "native", "packaging", "soak"}

ROOT_FILES = {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "pyproject.toml"}
ROOT_FOLDERS = {"woolly", "native", "tests", "benchmarks", "docs", "scripts", "deploy"}


@functools.cache
def modules():
    return sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


def dotted(node):
    """A name as it is written, such as sys.exit; None if it is more than names and dots."""
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


@functools.cache
def facts(path):
    """Imports, comparisons, calls, attributes and classes of a file with their lines, parsed once."""
    found = {"imports": [], "comparisons": [], "calls": [], "attributes": [], "classes": []}
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found["imports"].append((node.lineno, [alias.name for alias in node.names]))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found["imports"].append((node.lineno, [f"{node.module}.{alias.name}" for alias in node.names]))
        elif isinstance(node, ast.Compare):
            said = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
            found["comparisons"].append((node.lineno, said))
        elif isinstance(node, ast.Call):
            found["calls"].append((node.lineno, [dotted(node.func)]))
        elif isinstance(node, ast.Attribute):
            found["attributes"].append((node.lineno, [dotted(node)]))
    found["classes"] = [(node.lineno, [node.name]) for node in tree.body if isinstance(node, ast.ClassDef)]
    return found


@functools.cache
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


def imported_modules(path):
    """Modules of woolly that a file imports, anywhere in it, with the names that it takes from them."""
    for _, names in facts(path)["imports"]:
        yield from (name for name in names if name.startswith("woolly."))


def test_package_imports_only_packages_on_lower_rungs():
    for path in modules():
        own = room(path)
        for other in {name.split(".")[1] for name in imported_modules(path)} if own not in FREE else ():
            if other in RUNG and other != own:
                assert RUNG[other] < RUNG[own], f"{path} imports {other}, which is not on a lower rung"


def test_only_runtime_names_a_concrete_backend():
    backends = {path.name for path in (PACKAGE / "runtime").iterdir() if (path / "__init__.py").exists()}
    for path in modules():
        if room(path) != "runtime":
            for name in imported_modules(path):
                parts = name.split(".")
                named = parts[:2] == ["woolly", "runtime"] and backends & set(parts[2:])
                assert not named, f"{path} imports {name}; ask the protocols of runtime/program.py instead"


def test_no_gpu_kind_is_checked_outside_its_folder():
    kinds = set(GPU_KINDS)
    for path in modules():
        if path.relative_to(PACKAGE).parts[:2] in {("runtime", kind) for kind in kinds}:
            continue
        for line, said in facts(path)["comparisons"]:
            assert not said & kinds, f"{path}:{line}; ask is_gpu_backend or Backend.is_gpu instead"


def test_family_of_encoders_is_named_in_one_file():
    """Adding a family is adding a file.

    Text architectures and templates may have the same names, such as gemma3 and phi4.
    """
    architectures = {"convert", "gguf", "models", "templates"}
    files = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())) if room(path) not in architectures else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                files.setdefault(node.value, set()).add(path.relative_to(PACKAGE))
    for name in {*vision_families(), *audio_families()}:
        assert {path.parent for path in files[name]} == {Path("multimodal/families")} and len(files[name]) == 1, name


def test_dialects_do_not_import_each_other():
    folder = PACKAGE / "serving" / "dialects"
    shared = {"completions", "embeddings"}  # not a dialect: shapes that several reply in
    dialects = {path.name for path in folder.iterdir() if (path / "__init__.py").exists()} - shared
    assert dialects
    for path in folder.rglob("*.py"):
        own = path.relative_to(folder).parts[0]
        for name in imported_modules(path):
            parts = name.split(".")
            others = dialects - {own}
            named = parts[1:3] == ["serving", "dialects"] and len(parts) > 3 and parts[3] in others
            assert not named, f"{path} imports {name}; what two dialects share belongs to neither"


def test_every_package_is_on_the_ladder():
    rooms = {room(path) for path in modules()} - FREE
    assert rooms <= set(RUNG)


def test_only_the_cluster_imports_ray():
    for path in modules():
        for line, names in facts(path)["imports"]:
            if any(name.split(".")[0] == "ray" for name in names):
                assert room(path) == "cluster", f"{path}:{line}"


def test_no_package_has_more_than_20_files_unless_they_are_leaves_of_one_shape():
    sources = Counter(p.parent for p in tracked() if p.suffix in SOURCES - {".pyi"} and p.name != "__init__.py")
    for folder, n_files in sources.items():
        if folder.parts[:1] in {("woolly",), ("native",)} and folder.name not in LEAVES:
            assert n_files <= MAX_FILES, f"{folder} has {n_files} files: make rooms in it"


def test_test_folders_mirror_the_packages():
    folders = {p.parts[1] for p in tracked() if p.parts[0] == "tests" and len(p.parts) > 2}
    assert folders - TEST_FOLDERS == {p.parent.name for p in PACKAGE.glob("*/__init__.py")}


def test_no_source_file_is_longer_than_400_lines():
    sources = [p for p in tracked() if p.suffix in SOURCES]
    assert not [str(p) for p in sources if len((ROOT / p).read_text().splitlines()) > 400]


@pytest.mark.parametrize(
    "name",
    ["woolly", *(m.name for m in pkgutil.walk_packages(woolly.__path__, "woolly.") if m.ispkg)],
)
def test_all_is_sorted_complete_and_real(name):
    package = importlib.import_module(name)
    names = package.__all__
    assert len(names) == len(set(names))
    # Constants first, then classes, then the rest, each in order: as ruff sorts.
    kind = {n: 0 if n.isupper() and len(n) > 1 else 1 if n[:1].isupper() else 2 for n in names}
    assert names == sorted(names, key=lambda n: (kind[n], n))
    for exported in names:
        assert hasattr(package, exported), f"{name}.__all__ names {exported}, which does not exist"
    own = {n for n, value in vars(package).items() if getattr(value, "__module__", None) == name and n[0] != "_"}
    own = {n for n in own if isinstance(vars(package)[n], (type, FunctionType))}
    assert own <= set(names), f"public, but not in {name}.__all__"


def test_only_packages_have_a_list_of_public_names():
    """In a module, an underscore says what is private."""
    assert [
        str(m) for m in modules() if m.name != "__init__.py" and re.search(r"^__all__\b", m.read_text(), re.M)
    ] == []


def test_public_surface_is_exactly_this():
    assert set(woolly.__all__) == {
        "LLM", "AsyncChatStream", "AsyncLLM", "AsyncStream", "CallbackError", "ChatChunk", "ChatCompletion",
        "ChatStream", "Chunk", "Completion", "DeviceError", "GGUFError", "KeywordError", "ModelError", "PlanError",
        "RequestError", "SamplingParams", "Score", "StageError", "StoreError", "Stream", "TemplateError", "Tokenizer",
        "TokenizerError", "ToolCall", "ToolError", "UnsupportedError", "WoollyError", "__version__",
    }  # fmt: skip


def functions(text):
    """(its head, how many lines it has) of each function of C++ code that is formatted as ours is."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda macro: "\n" * macro[0].count("\n"), text, flags=re.MULTILINE)
    rooms, start = [], 0  # whether each open brace is of a namespace or a type; where the text before the next begins
    for found in re.finditer(r"[{};]", text):
        head = text[start : found.start()]
        start = found.end()
        if found[0] == "{":
            is_room = (
                re.match(r"\s*(template\s*<[^{]*>\s*)?(namespace|struct|class|enum|union|extern)\b", head) is not None
            )
            is_function = all(room for room, _, _ in rooms) and not is_room and "(" in head
            rooms.append((is_room, head.strip() if is_function else "", found.start() - len(head.lstrip())))
        elif found[0] == "}":
            _, head, first = rooms.pop()
            if head:
                yield head, text.count("\n", first, found.end()) + 1


def test_no_native_function_is_longer_than_80_lines():
    """A kernel has roles (producer, consumer, epilogue), and each is a function; so has every other long work."""
    for path in tracked():
        if path.parts[0] == "native" and path.suffix in NATIVE:
            for head, n_lines in functions((ROOT / path).read_text()):
                assert n_lines <= 80, f"{path}: {n_lines} lines of {' '.join(head.split())[:120]}"


def test_c_functions_are_counted_completely():
    text = 'namespace {\nstruct A {\n    int f() const {\n        if (x) { y("}"); }  // }\n    }\n};\n'
    text += "#define B() \\\n    {\n"
    text += "template <int N>\nvoid g(int a,\n       int b) {\n}\n}\n"
    assert [(head.split("(")[0].split()[-1], n) for head, n in functions(text)] == [("f", 3), ("g", 4)]


def test_public_class_names_are_unique():
    """Dialects apart, which use the words of their APIs."""
    # click's option with our defaults, and a sampler's row
    known = {"Option"}
    found = {}
    for path in modules():
        if "dialects" not in path.parts:
            for _, (name,) in facts(path)["classes"]:
                if not name.startswith("_") and name not in known:
                    found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


def test_no_loose_files_at_the_root():
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
        "click",
    }
    assert not heavy & set(loaded)


def test_run_imports_only_what_a_text_model_on_the_cpu_needs(tmp_path):
    """Each of these would delay the first token of every model: a module takes half a millisecond, and some take 20."""
    model = write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    script = "import sys; from woolly import LLM; opening = ' '.join(sys.modules); from woolly.cli.app import app;"
    script += "app(standalone_mode=False); print(opening, ' '.join(sys.modules), sep='\\n')"
    command = [sys.executable, "-c", script, "run", str(model), "Hi", "-n", "1", "--device", "cpu"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    opening, running = (set(line.split()) for line in printed.splitlines()[-2:])
    assert "woolly.llm.llm" in opening and "woolly.models.llama" in running
    others = {"asyncio", "http.client", "ssl", "urllib.request", "numpy.random", "rich", "pydantic", "huggingface_hub"}
    assert not (others | {"jinja2"}) & opening and not others & running
    rooms = "woolly.serving woolly.cluster woolly.measure woolly.convert woolly.mcp woolly.grammar woolly.wire"
    files = "woolly.multimodal.inputs woolly.multimodal.pdf woolly.multimodal.processing"
    files += " woolly.multimodal.encoder.tracing woolly.engine.multimodal.tower woolly.engine.drafts.draft_model"
    files += " woolly.speech.whisper woolly.cache.disk_tier"
    files += " woolly.runtime.cuda woolly.runtime.vulkan woolly.runtime.metal woolly.runtime.split woolly.tokens.rwkv"
    assert not {*rooms.split(), *files.split()} & running
    assert sum(name.startswith("woolly") for name in running) < 310


def test_library_never_prints_or_exits():
    for path in modules():
        if room(path) == "cli":
            continue
        for line, (called,) in facts(path)["calls"]:
            assert called not in {"print", "exit", "quit", "sys.exit", "os._exit", "os.abort"}, f"{path}:{line}"
        for line, (name,) in facts(path)["attributes"]:
            assert name not in {"sys.stdout", "sys.stderr"}, f"{path}:{line}"


def prose(wanted):
    """Yields the comments and docstrings of the package, of native code and the pages for makers, with their places.

    Modules without a match of `wanted` are passed over: to find the comments of all takes three seconds.
    """
    for path in modules():
        text = path.read_text()
        if not wanted.search(text):
            continue
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""')):
                for number, line in enumerate(token.string.splitlines(), token.start[0]):
                    yield f"{path.relative_to(ROOT)}:{number}", line.strip('# "')
    for path in (p for p in tracked() if p.parts[0] == "native" and p.suffix in NATIVE):
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            if "//" in line:
                yield f"{path}:{number}", line.partition("//")[2].strip()
    for path in (ROOT / "docs" / "make").glob("*.md"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", line.lstrip("-*| ")


def test_prose_is_plain():
    # Name the number (n_rows), the actor (caller, client) and the act (says, reports); begin with the subject.
    quaint = re.compile(r"\bso many\b|\bwhoever\b|\btold\b|^Of ")
    anywhere = re.compile(quaint.pattern.replace("^", r"\b"))
    assert not [f"{place}: {line}" for place, line in prose(anywhere) if quaint.search(line)]


def test_checkout_has_no_weights_or_built_files():
    for path in tracked():
        assert path.suffix not in {".gguf", ".so", ".o", ".whl"}, path
        assert (ROOT / path).stat().st_size < 1 << 20, f"{path} is over 1 MiB"
