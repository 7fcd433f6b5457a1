"""KL divergence and top-1 agreement of quantized arithmetic with f32, on real text.

    python -m benchmarks.kl MODEL TEXT [--tokens 2048] [--chunk 512] [--levels scalar,neon,cuda] [--peer-python PYTHON]

The reference computes the same file's weights, dequantized, in f32 with NumPy: it is slow, and takes 4 bytes of memory
per weight. Each chunk starts from an empty cache, with BOS in its first place where the file asks for BOS; every
position counts. The KL divergence is that of the engine's next-token distribution from the reference's, in nats. Its
error is the standard error of the mean; that of the difference to llama.cpp is smaller, since both see the same text.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.versus.comparison import machine, markdown
from benchmarks.versus.process import ServerError, start_peer
from woolly.engine import Engine
from woolly.errors import WoollyError
from woolly.gguf import GGUFFile, open_gguf
from woolly.models import trace
from woolly.runtime import Backend, Options, get_backend
from woolly.runtime.cpu import kernel_level
from woolly.tokens import Tokenizer

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Compute = Callable[[list[int]], Float32]  # ids -> logits after each

# Rows whose distributions are held in f64 at once.
BLOCK = 64


@dataclass
class Divergence:
    """Measurements of one engine, position by position."""

    name: str
    kl: list[float] = field(default_factory=list)
    agreed: list[bool] = field(default_factory=list)
    surprise: list[float] = field(default_factory=list)  # -log p of the token that came

    def add(self, reference: Float32, logits: Float32, following: list[int]) -> None:
        """Logits of some positions beside the reference's, and the tokens that follow them, one less at the end."""
        for first in range(0, len(logits), BLOCK):
            rows = slice(first, first + BLOCK)
            p, q = log_softmax(reference[rows]), log_softmax(logits[rows])
            self.kl += kl_divergence(p, q).tolist()
            self.agreed += (p.argmax(1) == q.argmax(1)).tolist()
            self.surprise += [-float(row[token]) for row, token in zip(q, following[rows], strict=False)]

    def as_json(self) -> dict[str, Any]:
        """The figures."""
        kl = np.asarray(self.kl)
        return {
            "engine": self.name,
            "positions": len(kl),
            "mean_kl": float(kl.mean()),
            "standard_error": standard_error(kl),
            "largest_kl": float(kl.max()),
            "top1_agreement": float(np.mean(self.agreed)),
            "perplexity": math.exp(float(np.mean(self.surprise))) if self.surprise else None,
        }


def log_softmax(logits: npt.NDArray[Any]) -> Float64:
    """Log-softmax of each row, in f64."""
    x = logits.astype(np.float64)
    x -= x.max(1, keepdims=True)
    x -= np.log(np.exp(x).sum(1, keepdims=True))
    return x


def kl_divergence(p: Float64, q: Float64) -> Float64:
    """KL divergence of q from p per row, both given as logarithms; in nats."""
    out: Float64 = (np.exp(p) * (p - q)).sum(1)
    return out


def standard_error(values: Float64) -> float:
    """Standard error of the mean."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def chunks(ids: list[int], size: int, bos: int | None) -> Iterator[list[int]]:
    """Pieces of the text; BOS, where there is one, takes the place of a piece's first token."""
    for first in range(0, len(ids), size):
        piece = ids[first : first + size]
        yield piece if bos is None else [bos, *piece[1:]]


def woolly_logits(file: GGUFFile, tokenizer: Tokenizer, backend: Backend, options: Options, ctx: int) -> Compute:
    """Woolly's own backends."""
    return Engine(backend.compile(trace(file), file.tensors, options), tokenizer, ctx=ctx).logits


@contextmanager
def peer_logits(python: str, model: Path, threads: int, ctx: int) -> Iterator[Compute]:
    """llama.cpp's logits, through a file: they are too many for a line of JSON."""
    setting = {"flash": "on", "unified": True}
    with start_peer(python) as peer, tempfile.TemporaryDirectory() as folder:
        peer.ask("load", model=str(model), threads=threads, ctx=-(-ctx // 256) * 256, sequences=1, **setting)
        file = Path(folder, "logits.f32")

        def compute(ids: list[int]) -> Float32:
            n_vocab = peer.ask("logits", tokens=ids, file=str(file), **setting)["n_vocab"]
            return np.fromfile(file, np.float32).reshape(len(ids), n_vocab)

        yield compute


def run(options: argparse.Namespace, say: Callable[[str], None]) -> list[Divergence]:
    """All engines over all chunks."""
    with ExitStack() as stack:
        file = stack.enter_context(open_gguf(options.model))
        tokenizer = Tokenizer.from_metadata(file.metadata)
        # A token is rarely longer than 16 characters, and the text is much longer than what is wanted of it.
        text = options.text.read_text(encoding="utf-8")[: 16 * options.tokens]
        ids = tokenizer.encode(text, add_special=False, parse_special=False)[: options.tokens]
        if not ids:
            raise ServerError(f"{options.text} holds no text")
        reference = woolly_logits(file, tokenizer, get_backend("reference"), Options(options.threads), options.chunk)
        engines: dict[str, Compute] = {}
        for level in options.levels or [kernel_level()]:
            is_gpu = level == "cuda"
            settings = Options(options.threads, None, options.kv_type, None if is_gpu else level)
            name = f"Woolly, {level}, {options.kv_type} cache"
            backend = get_backend("cuda" if is_gpu else "cpu")
            engines[name] = woolly_logits(file, tokenizer, backend, settings, options.chunk)
        if options.peer_python:
            peer = peer_logits(options.peer_python, options.model, options.threads, options.chunk)
            engines["llama.cpp, f16 cache"] = stack.enter_context(peer)
        exact = Divergence("reference, f32")
        found = {name: Divergence(name) for name in engines}
        done = 0
        for piece in chunks(ids, options.chunk, tokenizer.bos_id if tokenizer.add_bos else None):
            want = reference(piece)
            exact.add(want, want, piece[1:])
            for name, compute in engines.items():
                found[name].add(want, compute(piece), piece[1:])
            done += len(piece)
            say(f"{done} of {len(ids)} tokens")
        return [exact, *found.values()]


def report(found: list[Divergence], options: argparse.Namespace) -> str:
    """Markdown for people."""
    rows = [("engine", "mean KL", "error", "largest KL", "same top token", "perplexity")]
    for facts in (divergence.as_json() for divergence in found):
        figures = [f"{facts[key]:.3g}" for key in ("mean_kl", "standard_error", "largest_kl")]
        perplexity = "" if facts["perplexity"] is None else f"{facts['perplexity']:.3f}"
        rows.append((facts["engine"], *figures, f"{facts['top1_agreement']:.2%}", perplexity))
    this = machine()
    n = len(found[0].kl)
    out = (
        f"- {options.model.name}, {n} tokens of {options.text.name} in chunks of {options.chunk}\n"
        f"- {this['cpu']}, {this['system']}\n\n{markdown(rows)}"
    )
    if options.peer_python:
        for ours in found[1:-1]:
            difference = np.subtract(ours.kl, found[-1].kl)
            out += (
                f"\n\n{ours.name}: mean KL {difference.mean():+.2g} against llama.cpp's,"
                f" standard error {standard_error(difference):.2g}"
            )
    return out


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path, help="a GGUF file")
    p.add_argument("text", type=Path, help="a text file in UTF-8")
    p.add_argument("--tokens", "-n", type=int, default=2048, help="first tokens of the text that are taken")
    p.add_argument("--chunk", type=int, default=512, help="tokens of each chunk")
    p.add_argument("--threads", "-t", type=int, default=2)
    p.add_argument("--levels", type=lambda t: t.split(","), help="kernel levels, or cuda; the CPU's best unless told")
    p.add_argument("--kv-type", "-ctk", default="f16", help="of Woolly's cache: f16, f32 or q8_0")
    p.add_argument("--peer-python", help="Python of an environment that has llama-cpp-python; without it, Woolly only")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    return p


def main() -> None:
    """Computes and prints."""
    p = parser()
    options = p.parse_args()
    if options.tokens < 2 or options.chunk < 2:
        p.error("--tokens and --chunk must be at least 2")
    for path in (options.model, options.text):
        if not path.is_file():
            p.error(f"{path} is not a file")
    quiet = not sys.stderr.isatty()
    try:
        found = run(options, lambda text: None if quiet else print(text, file=sys.stderr))
    except (ServerError, WoollyError) as error:
        sys.exit(f"kl: error: {error}")
    if options.json:
        engines = [divergence.as_json() for divergence in found]
        print(json.dumps({"model": options.model.name, "text": options.text.name, "engines": engines}, indent=2))
    else:
        print(report(found, options))


if __name__ == "__main__":
    main()
