"""Flags of llama-bench, llama-perplexity, llama-imatrix, llama-quantize, llama-tokenize and llama-embedding."""

from __future__ import annotations

from collections.abc import Sequence

from woolly.cli.parse.flags.foreign_flag import (
    ForeignFlag,
    alias,
    harmless,
    rejected,
    rejected_switch,
    switch,
    words,
)
from woolly.cli.parse.usage_errors import UsageError

_EVAL = "`woolly eval` measures answers to questions with known answers"
_KL = "--kl OTHER compares with another model, and needs no file of logits"
_PART = "a run writes its file at the end"


def _normalized(value: str) -> Sequence[str]:
    if value not in ("-1", "2"):
        raise UsageError(f"--embd-normalize is {value}; expected 2 (Euclidean) or -1 (none)")
    return ("--normalize" if value == "2" else "--no-normalize",)


TOOLS = (
    # llama-bench.
    rejected("-pg", "-p and -n measure a prompt and an answer, -d an answer after a prompt"),
    alias("--batch-size", "--batch", commands="bench", noted="--batch-size is the number of sequences here, as -b is"),
    harmless("--delay --prio", "tests follow each other, and `nice` sets priorities", done="0", commands="bench"),
    harmless("-oe --output-err", "results go to standard output, notices to standard error", done="none"),
    switch("--progress", "a terminal shows the progress"),
    harmless("-nkvo --no-kv-offload", "the cache of a layer is on the layer's device", done="0", commands="bench"),
    harmless("-nopo --no-op-offload", "each layer is computed by its device", done="0", commands="bench"),
    harmless("--no-host", "host buffers are chosen by the backend", done="0", commands="bench"),
    # llama-perplexity.
    rejected_switch("--hellaswag --winogrande --multiple-choice", _EVAL),
    rejected("--hellaswag-tasks --winogrande-tasks --multiple-choice-tasks", _EVAL),
    rejected_switch("--kl-divergence", _KL),
    rejected("--save-all-logits --kl-divergence-base", _KL),
    rejected("--ppl-stride", "windows do not overlap", done="0"),
    rejected("--ppl-output-type", "--json prints the result", done="0"),
    # llama-imatrix.
    harmless("-ofreq --output-frequency --save-frequency", _PART, done="0 10"),
    rejected("--output-format", "matrices are GGUF files, which llama.cpp reads", done="gguf"),
    rejected("--chunk --from-chunk", "a run begins with the first window", done="0"),
    rejected_switch("--show-statistics", "`woolly show FILE` shows a matrix"),
    switch("--parse-special", done="on", commands="imatrix"),
    # llama-tokenize.
    words("--stdin", "--file", "-", commands="tokenize"),
    words("--no-bos", "--no-special"),
    words("--show-count", "--count", commands="tokenize", noted="--show-count prints only the number, as --count does"),
    # llama-embedding.
    ForeignFlag("--embd-normalize", "--normalize", into=_normalized),
    rejected("--embd-output-format", "a line of JSON is printed for each text, -o writes .npy, .jsonl or .parquet"),
    rejected("--embd-separator", "texts are separated by lines, or by objects in a .jsonl file", done="\\n"),
    rejected("--cls-separator", "`woolly rerank` scores pairs of a query and a document"),
    rejected("-ctk --cache-type-k", "the cache has its default type", done="f16", commands="imatrix embed"),
    rejected("--attention", "a model's file says whether its attention is causal"),
    # llama-quantize.
    rejected("--prune-layers", "layers cannot be removed from a model"),
    rejected("--tensor-type-file", "--tensor-type REGEX=TYPE may be repeated"),
)
