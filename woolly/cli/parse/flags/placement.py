"""Flags for devices, layers, memory and threads."""

from __future__ import annotations

import re
from collections.abc import Sequence

from woolly.cli.parse.flags.foreign_flag import ForeignFlag, alias, harmless, rejected, switch, words
from woolly.cli.parse.usage_errors import UsageError

_LAYERS = "layers are placed on the GPU as far as they fit, experts last"
_MAPPED = "model files are always mapped into memory"
_PLACED = "Woolly does not pin threads; use taskset, nice or numactl"
_ON_GPUS = "-dev cuda:0,1 splits the layers over GPUs in proportion to their free memory"
_CACHED = "the prefix cache is bounded by --kv-tokens"


def _experts(value: str) -> Sequence[str]:
    """Return the option for experts on the CPU, which is what most patterns of --override-tensor say."""
    pattern, _, target = value.rpartition("=")
    if target.upper() == "CPU" and "exps" in pattern and "," not in value and not re.search(r"blk\\?\.", pattern):
        return ("--n-cpu-moe", "all")
    raise UsageError(
        f"-ot is {value!r}, but layers are placed as a whole or without experts; use -ngl N, or --n-cpu-moe N for the"
        " experts of the first layers"
    )


PLACEMENT = (
    # Layers on the GPU, for commands without this option: no effect on the output.
    harmless("-ngl --gpu-layers --n-gpu-layers", _LAYERS, done="0 auto -1"),
    rejected("-dev --device", "only `woolly run`, `woolly chat` and `woolly serve` support it", done="none auto cpu"),
    harmless("-sm --split-mode", _ON_GPUS, done="none layer"),
    harmless("-ts --tensor-split", _ON_GPUS),
    harmless("-mg --main-gpu", "-dev cuda:1 selects a GPU", done="0"),
    words("-cmoe --cpu-moe", "--n-cpu-moe", "all"),
    ForeignFlag("-ot --override-tensor", "--n-cpu-moe", into=_experts),
    harmless("-ot --override-tensor", "only experts and complete layers can be placed; see -ngl, -cmoe and -ncmoe"),
    switch("-cmoe --cpu-moe", _LAYERS),
    harmless("-ncmoe --n-cpu-moe", _LAYERS, done="0"),
    harmless("-fit --fit", _LAYERS, done="on 1 true", bare="on"),
    harmless("-fitt --fit-target -fitc --fit-ctx -fitp --fit-print", _LAYERS),
    switch(
        "-kvo --kv-offload",
        "the KV cache of a layer is on the device of the layer",
        off_names="-nkvo --no-kv-offload",
        done="on",
    ),
    switch(
        "--op-offload",
        "each layer runs on the device that holds it",
        off_names="--no-op-offload -nopo",
        done="on",
    ),
    switch("--no-host", "the backend chooses its host buffers"),
    rejected("-rpc --rpc", "llama.cpp's RPC is not supported; use `woolly stage` to run layers on other machines"),
    # Files and memory.
    harmless("-dio --direct-io -mmp --mmap", _MAPPED, commands="bench"),
    harmless(
        "-fa --flash-attn",
        "flash attention is always used; only on and auto are supported",
        done="on auto 1 true -1",
        bare="on",
    ),
    rejected("-ctv --cache-type-v", "--kv-type sets both types, as in --kv-type q8_0/q4", done="f16"),
    switch("-cb --cont-batching", "continuous batching is always on", off_names="-nocb --no-cont-batching", done="on"),
    switch("-kvu --kv-unified", "all requests share one cache", off_names="-no-kvu --no-kv-unified", done="on"),
    switch("--repack", "weights are always repacked", off_names="-nr --no-repack", done="on"),
    switch("--mmap", _MAPPED, off_names="--no-mmap", done="on"),
    switch("--mlock", f"{_MAPPED} and not locked there"),
    harmless("-lm --load-mode", _MAPPED, done="auto mmap"),
    switch("-dio --direct-io", _MAPPED, off_names="-ndio --no-direct-io", done="off"),
    switch("--check-tensors", "tensors are always checked when a file is opened"),
    switch(
        "--swa-full", "the cache of sliding-window layers has the size of the window, which does not change answers"
    ),
    switch("--warmup", "Woolly needs no warm-up run", off_names="--no-warmup", done="off on"),
    harmless("-ub --ubatch-size", "the number of tokens per step does not change answers"),
    harmless("-b --batch-size", "the number of tokens per step does not change answers"),
    harmless("-np --parallel -ns --sequences", "this command runs one request at a time"),
    # Prompt cache: reuse does not change the output.
    harmless("-cram --cache-ram -ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step", _CACHED),
    harmless("--cache-reuse", "tokens after a difference are recomputed, because shifted keys would change answers"),
    harmless("-sps --slot-prompt-similarity", "every request uses the longest cached prefix"),
    harmless("-dt --defrag-thold", "the KV cache is paged and needs no defragmentation"),
    switch("--cache-prompt", "reuse changes no answer", off_names="--no-cache-prompt", done="on"),
    switch("--cache-idle-slots", _CACHED, off_names="--no-cache-idle-slots", done="on"),
    # Threads.
    harmless("--numa -C --cpu-mask -Cr --cpu-range --cpu-strict --poll --prio", _PLACED),
    harmless("-Cb --cpu-mask-batch -Crb --cpu-range-batch --cpu-strict-batch --poll-batch --prio-batch", _PLACED),
    harmless("-tb --threads-batch", "prompts and answers use the same threads; set --threads"),
    harmless("--threads-http", "one event loop serves all connections"),
    # Names of options.
    alias("--cache-type-k", "--kv-type"),
    alias("--ctx-size", "--ctx"),
)
