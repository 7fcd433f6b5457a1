"""The report of versus.py: a Markdown table, plots, and all values as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.versus.comparison import Comparison, comparison_table, markdown, short
from benchmarks.versus.figures import Figure
from benchmarks.versus.plots import Bar, Line, line_plot, ratio_plot


def markdown_report(result: dict[str, Any]) -> str:
    """Markdown for people."""
    out = "\n".join(f"- {line}" for line in facts(result)) + "\n\n" + comparison_table(result["comparisons"])
    out += (
        "\n\nA ratio above 1 is in favour of Woolly, whichever direction is good. pp512: a prompt of 512 tokens;"
        " tg64x8: 64 tokens of\neach of 8 sequences at once; @ d8192: after 8192 cached tokens. Ratios are of medians."
    )
    if result["bandwidth_share"]:
        rows = [("share of the read bandwidth", "Woolly", "llama.cpp")]
        rows += [(name, f"{s['ours']:.0%}", f"{s['theirs']:.0%}") for name, s in result["bandwidth_share"].items()]
        out += "\n\n" + markdown(rows)
    rows = [("llama.cpp's best setting", "")]
    rows += [(", ".join(names), setting) for setting, names in _by_setting(result["settings"]).items()]
    return out + ("\n\n" + markdown(rows) if len(rows) > 1 else "")


def facts(result: dict[str, Any]) -> list[str]:
    """Model, machine and versions."""
    this, versions = result["machine"], result["versions"]
    woolly, peer = versions["Woolly"], versions["llama-cpp-python"]
    return [
        f"{result['model']} ({result['description']}), {result['threads']} threads, medians of {result['rounds']}"
        f" rounds, {result['date']}",
        f"{this['cpu']}, {this['cores']} cores, {this['system']}; load average {this['load_average'][0]} before,"
        f" {result['load_average_after'][0]} after",
        f"read bandwidth {result['bandwidth_gbs']:.1f} GB/s"
        f" ({min(result['bandwidth_rounds']):.1f} to {max(result['bandwidth_rounds']):.1f})",
        f"Woolly {woolly['version']} ({woolly['system']})",
        f"llama-cpp-python {peer['version']} ({peer['system'].strip(' |')})".replace(" | ", ", "),
    ]


def as_json(result: dict[str, Any]) -> dict[str, Any]:
    """All values."""
    kept = {key: value for key, value in result.items() if key != "figures"}
    return {**kept, "comparisons": {c.name: c.as_json() for c in result["comparisons"]}}


def write_report(result: dict[str, Any], folder: Path, arguments: Sequence[str]) -> list[Path]:
    """MODEL.md with its plots, and MODEL.json, in a folder that is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = Path(result["model"]).stem
    written = {f"{stem}.json": json.dumps(as_json(result), indent=2) + "\n"}
    drawn = plots(result)
    written |= {f"{stem}-{name}.svg": svg for name, svg in drawn.items()}
    images = "\n\n".join(f"![{name}]({stem}-{name}.svg)".replace(" ", "%20") for name in drawn)
    command = " ".join(_without_folders(arguments))
    written[f"{stem}.md"] = (
        f"# Woolly beside llama.cpp: {result['description']}\n\n{markdown_report(result)}\n\n{images}\n\n"
        f"Measured in {result['minutes']:.0f} minutes by:\n\n    python -m benchmarks.versus {command}\n"
    )
    for name, content in written.items():
        Path(folder, name).write_text(content, encoding="utf-8")
    return [folder / name for name in written]


def plots(result: dict[str, Any]) -> dict[str, str]:
    """SVG by name: all ratios; rates over sequences and over the prompt's length where there are two or more."""
    notes = [
        f"{result['machine']['cpu']}, {result['threads']} threads, {result['versions']['Woolly']['system']},"
        f" read bandwidth {result['bandwidth_gbs']:.1f} GB/s",
        f"Woolly {result['versions']['Woolly']['version']},"
        f" llama-cpp-python {result['versions']['llama-cpp-python']['version']},"
        f" medians of {result['rounds']} rounds, {result['date'][:10]}",
    ]
    comparisons: list[Comparison] = result["comparisons"]
    title = f"Woolly beside llama.cpp: {result['description']}"
    out = {"ratios": ratio_plot(title, notes, [_bar(c) for c in comparisons])} if comparisons else {}
    by_name = {c.name: c for c in comparisons}
    figures: list[Figure] = result["figures"]
    batches = [f for f in figures if f.do == "generate" and not f.depth and f.n == _most_common(figures)]
    prompts = [f for f in figures if f.do == "prompt" and not f.depth]
    if len({f.sequences for f in batches}) > 1:
        lines = _lines([(f.sequences, by_name[f.name]) for f in batches])
        title = f"Generation, tokens/s of all sequences: {result['description']}"
        out["batch"] = line_plot(title, notes, "sequences at once", "tokens/s", lines)
    if len({f.n for f in prompts}) > 1:
        lines = _lines([(f.n, by_name[f.name]) for f in prompts])
        title = f"Prompts: {result['description']}"
        out["prompt"] = line_plot(title, notes, "tokens of the prompt", "tokens/s", lines)
    return out


def _bar(c: Comparison) -> Bar:
    ours, theirs = short(statistics.median(c.ours)), short(statistics.median(c.theirs))
    return Bar(c.name, c.ratio, min(c.ratios), max(c.ratios), f"{ours} : {theirs} {c.unit}")


def _lines(points: Sequence[tuple[int, Comparison]]) -> list[Line]:
    ordered = sorted(points, key=lambda point: point[0])

    def line(name: str, side: str) -> Line:
        values = [(x, getattr(c, side)) for x, c in ordered]
        return Line(name, tuple((x, statistics.median(v), min(v), max(v)) for x, v in values))

    return [line("Woolly", "ours"), line("llama.cpp", "theirs")]


def _most_common(figures: Sequence[Figure]) -> int:
    """Tokens that most figures generate: a plot has one length."""
    return statistics.mode([f.n for f in figures if f.do == "generate"] or [0])


def _by_setting(settings: dict[str, str]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for name, setting in settings.items():
        out.setdefault(setting, []).append(name)
    return out


def _without_folders(arguments: Sequence[str]) -> list[str]:
    """The command as another person would type it: files by their names, folders by what they are."""
    places = {"--peer-python": "PEER/bin/python", "--report": "DIR"}
    out: list[str] = []
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if equals and name in places:
            out.append(f"{name} {places[name]}")
        elif out and out[-1] in places:
            out.append(places[out[-1]])
        else:
            out.append(Path(argument).name if "/" in argument else argument)
    return out
