"""`woolly perplexity`: perplexity of a model on a text, and KL divergence from another model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.options import (
    AS_JSON,
    BACKEND,
    CHANGES,
    DEVICE,
    GPU_LAYERS,
    KV_TYPE,
    MODEL,
    NAMED,
    TEXT_FILE,
    THREADS,
    model_and_file,
)
from woolly.cli.parse.parameter import Argument, Option
from woolly.cli.terminal.files import read_utf8
from woolly.cli.terminal.human_readable import format_duration, plural
from woolly.cli.terminal.progress import steps_bar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from woolly.measure.divergence import Totals
    from woolly.measure.perplexity import MeanEstimate, Scorer


@command(
    MODEL,
    Argument("text", "FILE", "A text file in UTF-8.", shown="standard input, as with -"),
    NAMED,
    TEXT_FILE,
    Option("--ctx -c", "Tokens per window; the second half is scored.", int, default=512),
    Option("--chunks -n", "Maximum windows of the text.", int, shown="all"),
    Option(
        "--kl",
        "Compare with this model, usually the unquantized one: KL divergence and share of tokens with the same top"
        " token.",
        metavar="OTHER",
    ),
    THREADS,
    KV_TYPE,
    BACKEND,
    DEVICE,
    GPU_LAYERS,
    CHANGES,
    AS_JSON,
)
def perplexity(
    model: str | None,
    text: str | None,
    named: str | None,
    file: str | None,
    ctx: int,
    chunks: int | None,
    kl: str | None,
    threads: int | None,
    kv_type: str | None,
    backend: str | None,
    device: str | None,
    gpu_layers: str | None,
    changes: dict[str, Any],
    as_json: bool,
) -> None:
    """Measure perplexity. Results are comparable with llama.cpp's tool; lower is better."""
    from woolly.measure.divergence import Divergence, Totals, check_same_vocabulary, exponential
    from woolly.measure.perplexity import Scorer, mean_and_error, windows_of

    model, text = model_and_file(
        "perplexity", model, text, named, file, "missing text: woolly perplexity smollm2 text.txt"
    )
    content = read_utf8(text)
    options: dict[str, Any] = {
        "threads": threads,
        "kv_type": kv_type,
        "backend": backend or "auto",
        "device": device,
        "gpu_layers": gpu_layers,
    }
    with Scorer(model, ctx, **options, changes=changes) as scorer:
        windows = windows_of(scorer.tokens_of(content), ctx, chunks)
        start = time.perf_counter()
        facts: dict[str, Any] = {"model": str(scorer.loaded.path), "ctx": ctx, "chunks": len(windows)}
        if kl is None:
            import numpy as np

            surprises = np.concatenate(_each(windows, scorer.surprise))
            result, totals = exponential(mean_and_error(surprises)), None
        else:
            # It uses the default cache type and no changes, so that their loss is measured as well.
            with Scorer(kl, ctx, **options | {"kv_type": None}) as base:
                check_same_vocabulary(scorer, base)
                parts = _each(windows, lambda window: Divergence.of_window(scorer, base, window))
            totals = Totals.of(Divergence.join(parts))
            result = totals.perplexity
            facts["kl_against"] = str(base.loaded.path)
        seconds = time.perf_counter() - start
    rate = len(windows) * ctx / seconds
    facts |= {"seconds": round(seconds, 2), "tokens_per_second": round(rate, 1)}
    if as_json:
        click.echo(json.dumps({**facts, **_figures(result, totals)}, indent=2))
    else:
        _print(facts, result, totals, scorer)


def _each(windows: list[Sequence[int]], job: Callable[[Sequence[int]], Any]) -> list[Any]:
    results = []
    with steps_bar("scoring", "windows") as report:
        for i, window in enumerate(windows):
            results.append(job(window))
            if report is not None:
                report(i + 1, len(windows))
    return results


def _figures(result: MeanEstimate, totals: Totals | None) -> dict[str, Any]:
    if totals is None:
        return {"perplexity": result.mean, "error": result.error}
    figures = asdict(totals)
    del figures["perplexity"]
    return {"perplexity": result.mean, "error": result.error, **figures}


def _print(facts: dict[str, Any], result: MeanEstimate, totals: Totals | None, scorer: Scorer) -> None:
    click.echo(f"perplexity  {result.mean:.4f} ± {result.error:.4f}")
    if totals is not None:
        for name, value in (
            ("of the other", f"{totals.base_perplexity.mean:.4f} ± {totals.base_perplexity.error:.4f}"),
            ("ratio", f"{totals.ratio.mean:.5f} ± {totals.ratio.error:.5f}"),
            ("KL divergence", f"{totals.kl.mean:.6f} ± {totals.kl.error:.6f} nats"),
            ("  median, 99 %, most", f"{totals.kl_median:.6f}, {totals.kl_99:.6f}, {totals.kl_max:.6f}"),
            ("same likeliest token", f"{totals.same_top.mean:.2%} ± {totals.same_top.error:.2%}"),
            ("change of probability", f"{totals.probability_rms:.2%} (root mean square)"),
        ):
            click.echo(f"{name:<22}{value}")
    click.echo(
        f"{plural(facts['chunks'], 'window')} of {facts['ctx']} tokens in {format_duration(facts['seconds'])}, "
        f"{facts['tokens_per_second']:.0f} tokens/s",
        err=True,
    )
