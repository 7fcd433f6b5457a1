"""Woolly and llama.cpp side by side, measured in turn in one run: speed, start and memory, as ratios of medians.

    python benchmarks/versus.py MODEL --peer-python PEER/bin/python [--threads 2] [--rounds 5] [--batch 1,8] [--json]

Both engines keep the model loaded in a process of their own and are asked in turn: ours, theirs, ours, theirs. What
disturbs the machine then hits both, so the ratio means more than the figures. llama.cpp runs at its best: flash
attention on and off (and, for several sequences, a shared and a split cache) are tried first for each figure, and the
better is kept. Start and peak memory are taken in fresh processes, with the page cache warm; peak memory is that of a
process that has loaded the model and done each work once, mapped files included. The read bandwidth of the machine is
taken once per round.

Woolly's kernel level is the best of the machine, or what WOOLLY_ISA says. The peer is any environment that has
llama-cpp-python built for this machine: pip install llama-cpp-python with CMAKE_ARGS=-DGGML_NATIVE=ON.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison import Comparison, comparison_table, machine, markdown
from servers import GET_THE_PEER, Server, ServerError, start_ours, start_peer

from woolly._native import measure_bandwidth

# llama.cpp's OpenMP workers go on spinning for 200 ms after their work, which would slow down whoever comes next.
PAUSE_S = 0.4
BANDWIDTH_MEGABYTES = 1024


@dataclass(frozen=True)
class Setting:
    """How llama.cpp is to compute."""

    flash: str
    unified: bool  # one cache for all sequences, or one for each

    @property
    def arguments(self) -> dict[str, Any]:
        return {"flash": self.flash, "unified": self.unified}

    def __str__(self) -> str:
        return f"flash attention {self.flash}, {'shared' if self.unified else 'split'} cache"


@dataclass(frozen=True)
class Figure:
    """One rate to measure."""

    name: str
    do: str
    n: int  # tokens of each sequence
    sequences: int = 1

    @property
    def settings(self) -> list[Setting]:
        """What is worth trying on llama.cpp; with one sequence there is nothing to share or split."""
        return [Setting(flash, unified) for unified in (True, False)[: self.sequences] for flash in ("on", "off")]

    def seconds(self, server: Server, setting: Setting | None) -> dict[str, Any]:
        """Asks an engine to do it once."""
        arguments: dict[str, Any] = {"n": self.n} if self.do == "prompt" else {"n": self.n, "sequences": self.sequences}
        time.sleep(PAUSE_S)
        return server.ask(self.do, **arguments, **(setting.arguments if setting else {}))

    def rate(self, answer: dict[str, Any]) -> float:
        """Tokens per second."""
        return self.n * self.sequences / float(answer["seconds"])


class Versus:
    """One run of all comparisons."""

    def __init__(self, options: argparse.Namespace, say: Callable[[str], None]) -> None:
        self.options = options
        self.say = say
        self.figures = [Figure(f"prompt, {options.prompt} tokens", "prompt", options.prompt)] if options.prompt else []
        for size in options.batch if options.generate else ():
            name = f"generation, {options.generate} tokens" + (f" x {size} sequences" if size > 1 else "")
            self.figures.append(Figure(name, "generate", options.generate, size))
        sequences = max(options.batch)
        # Room for the longest work; llama.cpp rounds up to 256 itself.
        ctx = max(options.prompt, sequences * options.generate, 256)
        self.load_arguments = {
            "model": str(options.model),
            "threads": options.threads,
            "ctx": -(-ctx // 256) * 256,
            "sequences": sequences,
        }
        self.best: dict[Figure, Setting] = {}

    def run(self) -> dict[str, Any]:
        """All figures, with what is needed to judge them."""
        before = machine()
        rates = self.rates()
        starts = self.starts()
        return {
            "date": datetime.datetime.now().astimezone().isoformat(timespec="minutes"),
            "model": self.options.model.name,
            "threads": self.options.threads,
            "rounds": self.options.rounds,
            "machine": before,
            "load_average_after": machine()["load_average"],
            "versions": self.versions,
            "settings": {figure.name: str(setting) for figure, setting in self.best.items()},
            "bandwidth_gbs": statistics.median(self.bandwidths),
            "bandwidth_rounds": self.bandwidths,
            "bandwidth_share": self.shares(rates),
            "comparisons": [*rates, *starts],
        }

    def rates(self) -> list[Comparison]:
        """Rates of both engines, in turn, with the models loaded."""
        values: dict[Figure, tuple[list[float], list[float]]] = {figure: ([], []) for figure in self.figures}
        self.bandwidths: list[float] = []
        self.n_bytes: dict[str, int] = {}
        with start_peer(self.options.peer_python) as peer, start_ours() as ours:
            self.versions = {"Woolly": ours.ask("about"), "llama-cpp-python": peer.ask("about")}
            self.say("loading")
            peer.ask("load", **self.load_arguments, **Setting("on", True).arguments)
            ours.ask("load", **self.load_arguments)
            for figure in self.figures:
                self.say(f"{figure.name}: llama.cpp's best setting")
                self.best[figure] = self.best_setting(peer, figure)
                self.n_bytes[figure.name] = figure.seconds(ours, None)["n_bytes"]  # and the first time does not count
            for turn in range(self.options.rounds):
                self.bandwidths.append(measure_bandwidth(self.options.threads, BANDWIDTH_MEGABYTES))
                for figure, (mine, others) in values.items():
                    self.say(f"{figure.name}: round {turn + 1} of {self.options.rounds}")
                    mine.append(figure.rate(figure.seconds(ours, None)))
                    others.append(figure.rate(figure.seconds(peer, self.best[figure])))
        return [Comparison(f.name, "tokens/s", "more", tuple(a), tuple(b)) for f, (a, b) in values.items()]

    def best_setting(self, peer: Server, figure: Figure) -> Setting:
        """The setting whose better of two tries is the fastest."""
        for setting in figure.settings:
            figure.seconds(peer, setting)  # the first time pays for memory
        tried = [
            (figure.rate(figure.seconds(peer, setting)), i)
            for _ in range(2)
            for i, setting in enumerate(figure.settings)
        ]
        return figure.settings[max(tried)[1]]

    def starts(self) -> list[Comparison]:
        """Load to first token, and peak memory, of fresh processes in turn."""
        setting = self.best[self.figures[-1]] if self.figures else Setting("on", True)
        loads: tuple[list[float], list[float]] = ([], [])
        peaks: tuple[list[float], list[float]] = ([], [])
        for turn in range(self.options.load_rounds):
            self.say(f"start and memory: round {turn + 1} of {self.options.load_rounds}")
            for i, start in enumerate((start_ours, lambda: start_peer(self.options.peer_python))):
                with start() as server:
                    arguments = setting.arguments if i else {}
                    loads[i].append(float(server.ask("load", **self.load_arguments, **arguments)["seconds"]))
                    if turn == 0:
                        for figure in self.figures:
                            figure.seconds(server, setting if i else None)
                        peaks[i].append(float(server.ask("peak")["mib"]))
        if not self.options.load_rounds:
            return []
        return [
            Comparison("load to first token", "s", "less", tuple(loads[0]), tuple(loads[1])),
            Comparison("peak memory", "MiB", "less", tuple(peaks[0]), tuple(peaks[1])),
        ]

    def shares(self, rates: list[Comparison]) -> dict[str, dict[str, float]]:
        """Of the read bandwidth, what weights and cache take in generation; the same bytes are counted for both."""
        bandwidth = statistics.median(self.bandwidths)
        shares = {}
        for figure, rate in zip(self.figures, rates, strict=True):
            if figure.do == "generate":
                gigabytes = self.n_bytes[figure.name] / (figure.n * figure.sequences) / 1e9  # per token
                shares[figure.name] = {
                    "ours": gigabytes * statistics.median(rate.ours) / bandwidth,
                    "theirs": gigabytes * statistics.median(rate.theirs) / bandwidth,
                }
        return shares


def report(result: dict[str, Any]) -> str:
    """Markdown for people."""
    this, versions = result["machine"], result["versions"]
    woolly, peer = versions["Woolly"], versions["llama-cpp-python"]
    settings = dict.fromkeys(result["settings"].values())
    lines = [
        f"{result['model']}, {result['threads']} threads, medians of {result['rounds']} rounds, {result['date']}",
        f"{this['cpu']}, {this['cores']} cores, {this['system']}; load average {this['load_average'][0]} before,"
        f" {result['load_average_after'][0]} after",
        f"Woolly {woolly['version']} ({woolly['system']}); llama-cpp-python {peer['version']} ({'; '.join(settings)})",
        f"read bandwidth {result['bandwidth_gbs']:.1f} GB/s"
        f" ({min(result['bandwidth_rounds']):.1f} to {max(result['bandwidth_rounds']):.1f})",
    ]
    out = "\n".join(f"- {line}" for line in lines) + "\n\n" + comparison_table(result["comparisons"])
    if result["bandwidth_share"]:
        rows = [("share of the read bandwidth", "Woolly", "llama.cpp")]
        rows += [(name, f"{s['ours']:.0%}", f"{s['theirs']:.0%}") for name, s in result["bandwidth_share"].items()]
        out += "\n\n" + markdown(rows)
    return out


def sizes(text: str) -> list[int]:
    """Numbers of sequences, such as 1,8."""
    values = [int(part) for part in text.split(",")]
    if min(values) < 1:
        raise ValueError(text)
    return list(dict.fromkeys(values))


def positive(text: str) -> int:
    """A whole number from 1."""
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path, help="a GGUF file")
    p.add_argument("--peer-python", help="Python of an environment that has llama-cpp-python")
    p.add_argument("--threads", "-t", type=positive, default=2)
    p.add_argument("--rounds", type=positive, default=5, help="rounds of rates")
    p.add_argument("--load-rounds", type=int, default=3, help="rounds of fresh processes; 0 for none")
    p.add_argument("--prompt", "-p", type=int, default=512, help="tokens of the prompt; 0 for none")
    p.add_argument("--generate", "-n", type=int, default=64, help="tokens to generate; 0 for none")
    p.add_argument("--batch", type=sizes, default=[1, 8], help="sequences that generate at once, such as 1,8")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    return p


def main() -> None:
    """Measures and prints."""
    p = parser()
    options = p.parse_args()
    if options.peer_python is None:
        p.error(GET_THE_PEER)
    if not options.model.is_file():
        p.error(f"{options.model} is not a file")
    quiet = not sys.stderr.isatty()
    try:
        result = Versus(options, lambda text: None if quiet else print(text, file=sys.stderr)).run()
    except ServerError as error:
        sys.exit(f"versus.py: error: {error}")
    if options.json:
        print(json.dumps({**result, "comparisons": {c.name: c.as_json() for c in result["comparisons"]}}, indent=2))
    else:
        print(report(result))


if __name__ == "__main__":
    main()
