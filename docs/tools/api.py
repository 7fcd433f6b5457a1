"""docs/reference/api.md, from signatures and docstrings."""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import re
import textwrap
from typing import Any

import woolly

_HEAD = """# The Python API

Generated from signatures and docstrings by `scripts/generate`. [Library](../use/library.md) is the guide. Names that
are neither on this page nor in the `__all__` of a package may change without notice.
"""

# (title, module, names); woolly's own names first, then what they give back, then the two rooms that work alone.
_ROOMS = (
    ("Models", "woolly", ("LLM", "AsyncLLM")),
    ("Requests and answers", "woolly", ("SamplingParams", "Completion", "Chunk", "Score")),
    ("Tokens", "woolly", ("Tokenizer",)),
    ("What calls give back", "woolly.engine", ("Stream",)),
    ("", "woolly.llm", ("ChatCompletion", "ChatChunk")),
    ("", "woolly.speech", ("Transcript", "TranscriptSegment")),
    ("", "woolly.chat", ("ToolCall",)),
    ("", "woolly.sampling", ("TokenLogprob",)),
    ("", "woolly.cache", ("PrefixStats",)),
    ("", "woolly.llm.async_llm", ("AsyncStream",)),
    ("GGUF files", "woolly.gguf", ("open_gguf", "GGUFFile", "Tensor", "GGUFWriter", "copy_gguf")),
    ("", "woolly.quant", ("dequantize",)),
    ("Quantizing", "woolly.quantize", ("find_mix", "make_recipe", "quantize_file", "Summary")),
)
# For the engine and the server: they take or give objects that callers do not have.
_SHARED = ("DynamicAdaptersMixin", "TranscriptionMixin")  # parts of a class whose members are shown as its own
_INTERNAL = {"Chunk.take", "Completion.of", "Score.of", "Tokenizer.render", "LLM.new_transcriber", "LLM.decode_request"}


def reference() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for title, module, names in _ROOMS:
        if title:
            note = "" if module in ("woolly", "woolly.engine") else f"\n\nFrom `{module}`."
            parts.append(f"## {title}{note}")
        for name in names:
            thing = getattr(importlib.import_module(module), name)
            parts.append(_class(thing) if inspect.isclass(thing) else _function(name, thing))
    parts.append(_errors())
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _class(thing: type) -> str:
    parts = [f"### {thing.__name__}"]
    if dataclasses.is_dataclass(thing):
        parts += [_text(thing), _fields(thing)]
    elif issubclass(thing, enum.Enum) or _is_given(thing):
        parts.append(_text(thing))
    else:
        parts += [_signature(thing.__name__, thing.__init__), _text(thing), _text(thing.__init__)]
    shared = [base for base in thing.__bases__ if base.__name__ in _SHARED]
    for name, member in [pair for one in (*shared, thing) for pair in vars(one).items()]:
        if name.startswith("_") or f"{thing.__name__}.{name}" in _INTERNAL:
            continue
        if isinstance(member, (property, functools.cached_property)):
            getter = member.fget if isinstance(member, property) else member.func
            kind = inspect.get_annotations(getter).get("return", "") if getter else ""
            parts.append(f"#### {thing.__name__}.{name}\n\n`{kind}`. {_text(member)}")
        elif inspect.isfunction(member) or isinstance(member, (classmethod, staticmethod)):
            parts.append(_function(f"{thing.__name__}.{name}", getattr(thing, name), level=4))
    return "\n\n".join(part for part in parts if part)


def _is_given(thing: type) -> bool:
    """Return True if callers receive such objects and do not create them: the engine's own are excluded."""
    text = str(inspect.signature(thing.__init__))
    return any(word in text for word in ("Driver", "FileMap", "Vocabulary"))


def _function(name: str, thing: Any, level: int = 3) -> str:
    return f"{'#' * level} {name}\n\n{_signature(name.rpartition('.')[2], thing)}\n\n{_text(thing)}"


def _signature(name: str, thing: Any) -> str:
    """Return the signature as in the source, on one line where it fits."""
    node = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(thing)))).body[0]
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    arguments = node.args
    for group in (arguments.posonlyargs, arguments.args):
        if group and group[0].arg in ("self", "cls"):
            del group[0]
    result = "" if node.returns is None or name[0].isupper() else f" -> {ast.unparse(node.returns)}"
    word = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    shown = getattr(inspect.unwrap(thing), "__signature__", None)  # of options that have rows
    parts = _split(ast.unparse(arguments)) if shown is None else _written(shown)
    line = f"{word}{name}({', '.join(parts)}){result}"
    if len(line) > 118:
        line = f"{word}{name}(\n    {(',' + chr(10) + '    ').join(parts)},\n){result}"
    return f"```text\n{line}\n```"


def _written(signature: inspect.Signature) -> list[str]:
    """The parameters without the first, as a source would have them."""
    parts: list[str] = []
    for one in list(signature.parameters.values())[1:]:
        if one.kind is one.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(f"{one.name}: {one.annotation}" + ("" if one.default is one.empty else f" = {one.default!r}"))
    return parts


def _split(arguments: str) -> list[str]:
    """At commas outside of brackets, with spaces around the defaults of annotated arguments."""
    parts, depth = [""], 0
    for character in arguments:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [re.sub(r"(?<=[^=])=(?=[^=]+$)", " = ", part.strip()) for part in parts if part.strip()]


def _fields(thing: type) -> str:
    """A table of a dataclass's fields: type, default, and the help of its row or the comment beside it."""
    known = {one.name: one for one in dataclasses.fields(thing)}
    lines = inspect.getsource(thing).splitlines()
    node = ast.parse(textwrap.dedent("\n".join(lines))).body[0]
    assert isinstance(node, ast.ClassDef)
    rows = ["| field | type | default | |", "|---|---|---|---|"]
    for field in node.body:
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        beside = re.search(r"  # (.*)$", lines[(field.end_lineno or 1) - 1])
        comment = beside or re.match(r"\s+# (.*)$", lines[field.lineno - 2])
        default = "" if field.value is None else _default(ast.unparse(field.value))
        text = comment[1] if comment else ""
        row = known[field.target.id].metadata.get("option")
        if row is not None:
            assert isinstance(field.value, ast.Call)
            default = "`{}`" if "factory" in ast.unparse(field.value) else f"`{ast.unparse(field.value.args[0])}`"
            text = row["help"]
        kind = ast.unparse(field.annotation).replace("|", "\\|")
        rows.append(f"| `{field.target.id}` | `{kind}` | {default} | {_cell(text)} |")
    return "\n".join(rows)


def _default(source: str) -> str:
    if source.startswith("field("):
        return "`{}`" if "default_factory=dict" in source else ""
    return f"`{source}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _text(thing: Any) -> str:
    """The docstring, with its examples as blocks of Python."""
    paragraphs = []
    for paragraph in inspect.cleandoc(thing.__doc__ or "").split("\n\n"):
        if paragraph.lstrip().startswith(">>> "):
            code = "\n".join(line.strip()[4:] for line in paragraph.splitlines())
            paragraphs.append(f"```python\n{_complete(code)}\n```")
        elif paragraph.startswith("    "):
            paragraphs.append(f"```text\n{textwrap.dedent(paragraph)}\n```")
        else:
            paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def _complete(code: str) -> str:
    """An example that can be run as it stands."""
    names = sorted({name for name in woolly.__all__ if re.search(rf"\b{name}\b", code)})
    head = f"from woolly import {', '.join(names)}\n\n"
    if "async " not in code:
        return head + code
    body = textwrap.indent(code, "    ")
    return f"import asyncio\n\n{head}\nasync def main() -> None:\n{body}\n\n\nasyncio.run(main())"


def _errors() -> str:
    names = [name for name in woolly.__all__ if name.endswith("Error")]
    rows = [f"| `{name}` | {' '.join(_text(getattr(woolly, name)).split())} |" for name in names]
    head = "## Errors\n\nAll are subclasses of `WoollyError`; `str(error)` is one sentence. "
    head += "[Troubleshooting](../use/troubleshooting.md) explains them."
    return "\n".join([head, "", "| | |", "|---|---|", *rows])
