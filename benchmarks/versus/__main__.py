"""Woolly and llama.cpp side by side, measured in turn in one run: speed, start and memory, as ratios of medians.

    python -m benchmarks.versus MODEL [--peer-python PEER/bin/python] [--report docs/benchmarks] [--quick]

Both engines keep the model loaded in a process of their own and are asked in turn: ours, theirs, theirs, ours. What
disturbs the machine then hits both, so the ratio means more than the figures. llama.cpp runs at its best: flash
attention on and off (for several sequences also a shared and a split cache, for long prompts also a larger ubatch) are
tried first for each figure, and the better is kept. Start and peak memory are taken in fresh processes, with the page
cache warm; peak memory is that of a process that has loaded the model, computed a prompt of 512 tokens and generated
some, mapped files included. The read bandwidth of the machine is taken once per round.

Tests are named by --tests: prefill, decode, batch, depth, first-token, load, memory, or single ones such as pp512,
tg64, tg64x8 (8 sequences at once), pp512@d4096 (after 4096 cached tokens). Woolly's kernel level is the best of the
machine, or what WOOLLY_ISA says; --backend cuda measures both on the GPU, where peak memory is that of the host and
the bandwidth what the GPU's clock and bus allow. The peer is any environment that has llama-cpp-python built for this
machine: CMAKE_ARGS=-DGGML_NATIVE=ON pip install llama-cpp-python.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.versus.comparison import Comparison, machine
from benchmarks.versus.figures import GROUPS, Figure, Setting, UnknownTestError, plan
from benchmarks.versus.process import GET_THE_PEER, Server, ServerError, start_ours, start_peer
from benchmarks.versus.report import as_json, markdown_report, write_report
from woolly._native import measure_bandwidth
from woolly.engine.loading.load import context_limit
from woolly.errors import WoollyError
from woolly.gguf import open_gguf
from woolly.machine.cores import default_threads
from woolly.models import trace
from woolly.quantize.describe import describe_model
from woolly.store import resolve

BANDWIDTH_MEGABYTES = 1024
# A try of a setting that takes longer than this is not repeated: its noise is small beside its length. A quick run has
# more noise, and what it finds best may be another setting.
LONG_S, LONG_QUICK_S = 10.0, 0.25

T = TypeVar("T")


class Versus:
    """One run of all comparisons."""

    def __init__(self, options: argparse.Namespace, say: Callable[[str], None]) -> None:
        self.options = options
        self.say = say
        self.pause: float = options.pause
        self.long: float = LONG_QUICK_S if options.quick else LONG_S
        self.worked: Server | None = None  # whoever worked last
        with open_gguf(options.model) as file:
            traced = trace(file)
            self.description = describe_model(file)
            limit = context_limit(file, traced)
        self.figures, self.start_tests = plan(
            options.tests, options.prompt, options.generate, options.batch, options.depth, limit
        )
        self.load_arguments = {"model": str(options.model), "threads": options.threads, "ctx": 256, "sequences": 1}
        self.load_arguments["backend"] = options.backend
        self.memory_figures = [Figure("prompt", min(512, limit // 2)), Figure("generate", min(16, limit // 2))]
        self.best: dict[Figure, Setting] = {}
        self.n_bytes: dict[str, int] = {}
        self.bandwidths: list[float] = []

    def run(self) -> dict[str, Any]:
        """All figures, with what is needed to judge them."""
        before, start = machine(), time.perf_counter()
        with start_ours() as ours, start_peer(self.options.peer_python) as peer:
            versions = {"Woolly": ours.ask("about"), "llama-cpp-python": peer.ask("about")}
            rates = self.rates(peer, ours)
        versions["Woolly"]["system"] = self.system
        starts = self.starts() if self.start_tests else []
        return {
            "date": datetime.datetime.now().astimezone().isoformat(timespec="minutes"),
            "minutes": (time.perf_counter() - start) / 60,
            "model": self.options.model.name,
            "description": self.description,
            "threads": self.options.threads,
            "rounds": self.options.rounds,
            "machine": before,
            "load_average_after": machine()["load_average"],
            "versions": versions,
            "settings": {figure.name: str(setting) for figure, setting in self.best.items()},
            "bandwidth_gbs": statistics.median(self.bandwidths),
            "bandwidth_rounds": self.bandwidths,
            "bandwidth_share": self.shares(rates),
            "figures": self.figures,
            "comparisons": [*rates, *starts],
        }

    def rates(self, peer: Server, ours: Server) -> list[Comparison]:
        """Figures of both engines, in turn, with the models loaded."""
        values: dict[Figure, tuple[list[float], list[float]]] = {figure: ([], []) for figure in self.figures}
        self.say("loading")
        peer.ask("load", **self.load_arguments, **Setting("on", True).arguments)
        loaded = ours.ask("load", **self.load_arguments)
        self.system, bandwidth = loaded["system"], loaded["bandwidth_gbs"]
        for figure in self.figures:
            self.say(f"{figure.name}: llama.cpp's best setting")
            self.best[figure] = self.best_setting(peer, figure)
            answer = self.ask(figure, ours, None, -1)  # the first time does not count
            self.n_bytes[figure.name] = answer.get("n_bytes", 0)
        for turn in range(self.options.rounds):
            if turn == 0 or not self.options.quick:
                self.bandwidths.append(bandwidth or measure_bandwidth(self.options.threads, BANDWIDTH_MEGABYTES))
            for figure, (mine, others) in values.items():
                self.say(f"{figure.name}: round {turn + 1} of {self.options.rounds}")
                asked = [(mine, ours, None), (others, peer, self.best[figure])]
                for values_of, server, setting in in_turn(asked, turn):
                    values_of.append(figure.value(self.ask(figure, server, setting, turn)))
        return [Comparison(f.name, f.unit, f.better, tuple(a), tuple(b)) for f, (a, b) in values.items()]

    def ask(self, figure: Figure, server: Server, setting: Setting | None, turn: int = 0) -> dict[str, Any]:
        """Asks an engine once, after a pause if the other one worked before it."""
        pause = 0.0 if server is self.worked else self.pause
        self.worked = server
        return figure.ask(server, setting, pause, turn)

    def best_setting(self, peer: Server, figure: Figure) -> Setting:
        """The setting whose best try is the fastest; contexts of the others are freed."""
        fastest: dict[Setting, float] = {}
        # On a GPU flash attention is always the better one, and without it caches of long texts may not fit.
        settings = [one for one in figure.settings if self.options.backend == "cpu" or one.flash == "on"]
        for setting in settings:
            answer = self.ask(figure, peer, setting)
            # Of a short work the first time pays for memory and does not count.
            fastest[setting] = answer["seconds"] if answer["seconds"] > self.long else float("inf")
        for _ in range(1 if self.options.quick else 2):
            for setting in settings:
                if fastest[setting] == float("inf") or fastest[setting] <= self.long:
                    fastest[setting] = min(fastest[setting], self.ask(figure, peer, setting)["seconds"])
        best = min(fastest, key=lambda setting: fastest[setting])
        if figure.do != "first_token":
            for setting in fastest:
                if setting != best:
                    size = {"n": figure.n, "sequences": figure.sequences, "depth": figure.depth}
                    peer.ask("forget", **setting.arguments, **size)
        return best

    def starts(self) -> list[Comparison]:
        """Load to first token, and peak memory, of fresh processes in turn."""
        setting = Setting("on", True)
        loads: tuple[list[float], list[float]] = ([], [])
        peaks: tuple[list[float], list[float]] = ([], [])
        for turn in range(self.options.load_rounds):
            self.say(f"start and memory: round {turn + 1} of {self.options.load_rounds}")
            for i, start in in_turn([(0, start_ours), (1, lambda: start_peer(self.options.peer_python))], turn):
                with start() as server:
                    arguments = setting.arguments if i else {}
                    time.sleep(self.pause)
                    loads[i].append(float(server.ask("load", **self.load_arguments, **arguments)["seconds"]))
                    if turn == 0 and "memory" in self.start_tests:
                        for figure in self.memory_figures:
                            figure.ask(server, setting if i else None, self.pause)
                        peaks[i].append(float(server.ask("peak")["mib"]))
        out = []
        if "load" in self.start_tests:
            out.append(Comparison("load to first token", "s", "less", tuple(loads[0]), tuple(loads[1])))
        if "memory" in self.start_tests:
            out.append(Comparison("peak memory", "MiB", "less", tuple(peaks[0]), tuple(peaks[1])))
        return out

    def shares(self, rates: list[Comparison]) -> dict[str, dict[str, float]]:
        """Return the share of the read bandwidth that weights and cache take in generation."""
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


def in_turn(both: Sequence[T], turn: int) -> Sequence[T]:
    """Ours and theirs, and in every other round theirs and ours: whoever comes second finds the machine warmer."""
    return both[::-1] if turn % 2 else both


def sizes(text: str) -> list[int]:
    """Whole numbers from 1, such as 1,8."""
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
    """The options. Those that --quick changes have no default here."""
    p = argparse.ArgumentParser(
        prog="python -m benchmarks.versus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("model", help="a GGUF file or a model's name")
    p.add_argument("--peer-python", help="Python of an environment that has llama-cpp-python (this one)")
    p.add_argument("--tests", type=lambda t: t.split(","), default=list(GROUPS), help=f"some of {','.join(GROUPS)}")
    p.add_argument("--quick", action="store_true", help="fewer and shorter tests, 3 rounds, for a first look")
    p.add_argument("--backend", choices=("cpu", "cuda"), default="cpu", help="of both engines (cpu)")
    p.add_argument("--threads", "-t", type=positive, default=default_threads(), help="of both engines (all cores)")
    p.add_argument("--rounds", "-r", type=positive, help="rounds of each figure (5; 3 with --quick)")
    p.add_argument("--load-rounds", type=positive, help="rounds of fresh processes (3; 1 with --quick)")
    p.add_argument("--prompt", "-p", type=sizes, help="tokens of prompts (128,512,2048; 128,512 with --quick)")
    p.add_argument("--generate", "-n", type=positive, help="tokens to generate (64; 16 with --quick)")
    p.add_argument("--batch", "-b", type=sizes, help="sequences at once (1,2,4,8,16,32; 1,4,8 with --quick)")
    p.add_argument(
        "--depth", "-d", type=positive, help="tokens cached before the last prompt (8192; 2048 with --quick)"
    )
    # llama.cpp's OpenMP workers go on spinning for 0.2 s after their work, which would slow down the other engine.
    p.add_argument("--pause", type=float, help="seconds before the other engine's work (0.4; 0.25 with --quick)")
    p.add_argument("--report", type=Path, metavar="DIR", help="write Markdown, plots and JSON to this folder")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    return p


QUICK = {
    "rounds": 3, "load_rounds": 1, "prompt": [128, 512], "generate": 16, "batch": [1, 4, 8], "depth": 2048,
    "pause": 0.25,
}  # fmt: skip
WHOLE = {
    "rounds": 5, "load_rounds": 3, "prompt": [128, 512, 2048], "generate": 64, "batch": [1, 2, 4, 8, 16, 32],
    "depth": 8192, "pause": 0.4,
}  # fmt: skip


def main() -> None:
    """Measures and prints."""
    p = parser()
    options = p.parse_args()
    for name, value in (QUICK if options.quick else WHOLE).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.peer_python is None:
        if importlib.util.find_spec("llama_cpp") is None:
            p.error(GET_THE_PEER)
        options.peer_python = sys.executable
    quiet = not sys.stderr.isatty()
    try:
        options.model = resolve(options.model)
        result = Versus(options, lambda text: None if quiet else print(text, file=sys.stderr)).run()
    except (ServerError, UnknownTestError, WoollyError) as error:
        sys.exit(f"versus: error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    if options.report is not None:
        written = write_report(result, options.report, sys.argv[1:])
        print(f"wrote {', '.join(map(str, written))}", file=sys.stderr)
    print(json.dumps(as_json(result), indent=2) if options.json else markdown_report(result))


if __name__ == "__main__":
    main()
