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

_EVAL = "use `woolly eval` for benchmarks with known answers"
_KL = "use --kl OTHER to compare with another model; it needs no file of logits"
_PART = "the file is written at the end"


def _normalized(value: str) -> Sequence[str]:
    if value not in ("-1", "2"):
        raise UsageError(f"--embd-normalize is {value}; expected 2 (Euclidean) or -1 (none)")
    return ("--normalize" if value == "2" else "--no-normalize",)


TOOLS = (
    # llama-bench.
    rejected("-pg", "-p and -n measure a prompt and an answer, -d an answer after a prompt"),
    alias("--batch-size", "--batch", commands="bench", noted="-b and --batch-size are the number of sequences here"),
    harmless("--delay --prio", "tests run one after the other; use nice for the priority", done="0", commands="bench"),
    harmless("-oe --output-err", "results go to standard output, notices to standard error", done="none"),
    switch("--progress", "progress is shown on terminals"),
    harmless(
        "-nkvo --no-kv-offload", "the KV cache of a layer is on the device of the layer", done="0", commands="bench"
    ),
    harmless("-nopo --no-op-offload", "each layer runs on the device that holds it", done="0", commands="bench"),
    harmless("--no-host", "the backend chooses its host buffers", done="0", commands="bench"),
    # llama-perplexity.
    rejected_switch("--hellaswag --winogrande --multiple-choice", _EVAL),
    rejected("--hellaswag-tasks --winogrande-tasks --multiple-choice-tasks", _EVAL),
    rejected_switch("--kl-divergence", _KL),
    rejected("--save-all-logits --kl-divergence-base", _KL),
    rejected("--ppl-stride", "windows do not overlap", done="0"),
    rejected("--ppl-output-type", "--json prints the result", done="0"),
    # llama-imatrix.
    harmless("-ofreq --output-frequency --save-frequency", _PART, done="0 10"),
    rejected("--output-format", "importance matrices are always written as GGUF, which llama.cpp reads", done="gguf"),
    rejected("--chunk --from-chunk", "every run starts with the first chunk", done="0"),
    rejected_switch("--show-statistics", "use `woolly show FILE` to print an importance matrix"),
    switch("--parse-special", done="on", commands="imatrix"),
    # llama-tokenize.
    words("--stdin", "--file", "-", commands="tokenize"),
    words("--no-bos", "--no-special"),
    words("--show-count", "--count", commands="tokenize", noted="use --count to print only the number"),
    # llama-embedding.
    ForeignFlag("--embd-normalize", "--normalize", into=_normalized),
    rejected(
        "--embd-output-format", "each embedding is printed as a line of JSON; -o FILE writes .npy, .jsonl or .parquet"
    ),
    rejected("--embd-separator", "separate texts by lines, or use a .jsonl file", done="\\n"),
    rejected("--cls-separator", "`woolly rerank` scores pairs of a query and a document"),
    rejected("-ctk --cache-type-k", "the KV cache has its default type", done="f16", commands="imatrix embed"),
    rejected("--attention", "the model file determines whether attention is causal"),
    # llama-quantize.
    rejected("--prune-layers", "layers cannot be removed from a model"),
    rejected("--tensor-type-file", "--tensor-type REGEX=TYPE may be repeated"),
)
