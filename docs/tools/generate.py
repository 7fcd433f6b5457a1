"""Generated documentation: the pages of docs/reference, and marked parts of other pages. `scripts/generate` writes it.

A part stands between `<!-- generate NAME -->` and `<!-- /generate -->`; `PARTS` has the function of each name.
docs/reference/architectures.md is not among them: tests/goldens/peer*.py writes it, which needs llama.cpp.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from docs.tools import api, chat_templates, cli, flags, http, man, models, reasoning, settings
from tests.cases.templates import find_templates
from woolly.models import architectures
from woolly.multimodal import audio_families, vision_families
from woolly.quant import GGMLType, can_dequantize
from woolly.store import read_catalogue

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/api.md": api.reference,
    "docs/reference/cli.md": cli.reference,
    "docs/reference/http.md": http.reference,
    "docs/reference/models.md": models.reference,
    "docs/reference/settings.md": settings.reference,
}
_MARKS = re.compile(r"(<!-- generate ([a-z_]+) -->)(.*?)(<!-- /generate -->)", re.S)


def main(arguments: list[str]) -> int:
    """Write what differs, or with --check only list it; return 1 if --check found something."""
    parser = argparse.ArgumentParser(prog="scripts/generate", description="Write the generated documentation.")
    parser.add_argument("--check", action="store_true", help="list the files that differ, write nothing")
    parser.add_argument("--man", type=Path, metavar="FOLDER", help="only write manual pages, woolly.1 and others")
    options = parser.parse_args(arguments)
    if options.man is not None:
        print(f"{len(man.write(options.man))} manual pages in {options.man}")
        return 0
    is_check = options.check
    stale = dict(stale_files())
    if find_templates() and (text := chat_templates.reference()) != chat_templates.PAGE.read_text():
        stale[str(chat_templates.PAGE.relative_to(ROOT))] = text
    for name, text in stale.items():
        if is_check:
            print(f"{name} is not up to date: run `scripts/generate`", file=sys.stderr)
        else:
            (ROOT / name).write_text(text)
            print(name)
    return int(is_check and bool(stale))


def stale_files() -> Iterator[tuple[str, str]]:
    """Yield the path and the new text of each file that differs from what would be generated."""
    texts = {name: page() for name, page in PAGES.items()}
    for name in marked_pages():
        if name not in PAGES:
            texts[name] = _MARKS.sub(_filled, (ROOT / name).read_text())
    for name, text in texts.items():
        path = ROOT / name
        if not path.exists() or path.read_text() != text:
            yield name, text


def marked_pages() -> list[str]:
    """Paths of the pages that may have marks."""
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(path.relative_to(ROOT)) for path in paths]


def _filled(match: re.Match[str]) -> str:
    begin, name, _, end = match.groups()
    text = PARTS[name]()
    return f"{begin}\n{text}\n{end}" if "\n" in text else f"{begin}{text}{end}"


def _weight_types() -> list[str]:
    return [kind.name for kind in GGMLType if can_dequantize(kind) and not re.fullmatch(r"I\d+|F64", kind.name)]


def packages() -> str:
    """Return the table of all packages, bottom rung first, with their docstrings."""
    from tests.test_house import LADDER

    rows = ["| rung | package | contents |", "|---|---|---|"]
    for rung, names in enumerate(LADDER[:-1], 1):
        for name in names:
            for path in sorted((ROOT / "woolly" / name).rglob("__init__.py")):
                package = ".".join(path.parent.relative_to(ROOT).parts)
                shown = "/".join(path.parent.relative_to(ROOT / "woolly").parts) + "/"
                text = inspect.getdoc(importlib.import_module(package)) or ""
                summary = " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")
                summary = re.sub(r"^[A-Z][A-Z ,]+: (.)", lambda match: match[1].upper(), summary)
                rows.append(f"| {rung if shown.count('/') == 1 else ''} | `{shown}` | {summary} |")
    return "\n".join(rows)


PARTS: dict[str, Callable[[], str]] = {
    "n_architectures": lambda: str(len(architectures())),
    "architectures": lambda: ", ".join(f"`{name}`" for name in sorted(architectures())),
    "n_weight_types": lambda: str(len(_weight_types())),
    "weight_types": lambda: " ".join(_weight_types()),
    "n_image_families": lambda: str(len(vision_families())),
    "n_audio_families": lambda: str(len(audio_families())),
    "n_catalogue_families": lambda: str(len(read_catalogue().families)),
    "n_catalogue_sizes": lambda: str(sum(len(family.tags) for family in read_catalogue().families.values())),
    "packages": packages,
    "reasoning_terms": reasoning.terms,
    "reasoning_variables": reasoning.variables,
    "llama_flags": lambda: flags.flags_of("llama.cpp"),
    "vllm_flags": lambda: flags.flags_of("vLLM"),
    "ollama_flags": lambda: flags.flags_of("Ollama"),
    "ollama_variables": flags.ollama_variables,
}
