"""Flags for devices, layers, memory and threads."""

from __future__ import annotations

import re
from collections.abc import Sequence

from woolly.cli.parse.flags.foreign_flag import ForeignFlag, alias, harmless, rejected, switch, words
from woolly.cli.parse.usage_errors import UsageError

_LAYERS = "a GPU gets the layers that it has room for, experts last"
_MAPPED = "model files are always mapped into memory"
_PLACED = "Woolly does not place its threads, for which there are taskset, nice and numactl"
_ON_GPUS = "-dev cuda:0,1 splits the layers over GPUs in proportion to their free memory"
_CACHED = "computed prompts stay in the cache as long as it has room, --kv-tokens in all"


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
    rejected("-dev --device", "`woolly run`, `woolly chat` and `woolly serve` take it", done="none auto cpu"),
    harmless("-sm --split-mode", _ON_GPUS, done="none layer"),
    harmless("-ts --tensor-split", _ON_GPUS),
    harmless("-mg --main-gpu", "-dev cuda:1 selects a GPU", done="0"),
    words("-cmoe --cpu-moe", "--n-cpu-moe", "all"),
    ForeignFlag("-ot --override-tensor", "--n-cpu-moe", into=_experts),
    harmless("-ot --override-tensor", "layers are placed as a whole or without experts, see -ngl"),
    switch("-cmoe --cpu-moe", _LAYERS),
    harmless("-ncmoe --n-cpu-moe", _LAYERS, done="0"),
    harmless("-fit --fit", _LAYERS, done="on 1 true", bare="on"),
    harmless("-fitt --fit-target -fitc --fit-ctx -fitp --fit-print", _LAYERS),
    switch(
        "-kvo --kv-offload",
        "the cache of a layer is on the layer's device",
        off_names="-nkvo --no-kv-offload",
        done="on",
    ),
    switch(
        "--op-offload",
        "each layer is computed by the device that holds it",
        off_names="--no-op-offload -nopo",
        done="on",
    ),
    switch("--no-host", "host buffers are chosen by the backend"),
    rejected("-rpc --rpc", "llama.cpp's RPC is not supported, `woolly stage` runs layers on other machines"),
    # Files and memory.
    harmless("-dio --direct-io -mmp --mmap", _MAPPED, commands="bench"),
    harmless(
        "-fa --flash-attn",
        "attention is always computed block by block, which only on or auto can mean",
        done="on auto 1 true -1",
        bare="on",
    ),
    rejected("-ctv --cache-type-v", "--kv-type sets both types, as in --kv-type q8_0/q4", done="f16"),
    switch("-cb --cont-batching", "requests always share steps", off_names="-nocb --no-cont-batching", done="on"),
    switch("-kvu --kv-unified", "all requests share one cache", off_names="-no-kvu --no-kv-unified", done="on"),
    switch("--repack", "weights are always packed for the kernels", off_names="-nr --no-repack", done="on"),
    switch("--mmap", _MAPPED, off_names="--no-mmap", done="on"),
    switch("--mlock", f"{_MAPPED} and not locked there"),
    harmless("-lm --load-mode", _MAPPED, done="auto mmap"),
    switch("-dio --direct-io", _MAPPED, off_names="-ndio --no-direct-io", done="off"),
    switch("--check-tensors", "a header that contradicts its file is always refused"),
    switch("--swa-full", "a sliding window's cache has the size of the window, which changes no answer"),
    switch("--warmup", "a model is ready without a first run", off_names="--no-warmup", done="off on"),
    harmless("-ub --ubatch-size", "the number of tokens per step changes no answer"),
    harmless("-b --batch-size", "the number of tokens per step changes no answer"),
    harmless("-np --parallel -ns --sequences", "one request runs at a time"),
    # Prompt cache: reuse does not change the output.
    harmless("-cram --cache-ram -ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step", _CACHED),
    harmless("--cache-reuse", "what follows a difference is computed again, because shifted keys give other answers"),
    harmless("-sps --slot-prompt-similarity", "every request finds the longest beginning that is in the cache"),
    harmless("-dt --defrag-thold", "the cache has pages, which need no defragmentation"),
    switch("--cache-prompt", "reuse changes no answer", off_names="--no-cache-prompt", done="on"),
    switch("--cache-idle-slots", _CACHED, off_names="--no-cache-idle-slots", done="on"),
    # Threads.
    harmless("--numa -C --cpu-mask -Cr --cpu-range --cpu-strict --poll --prio", _PLACED),
    harmless("-Cb --cpu-mask-batch -Crb --cpu-range-batch --cpu-strict-batch --poll-batch --prio-batch", _PLACED),
    harmless("-tb --threads-batch", "the same threads, which --threads counts, compute prompts and answers"),
    harmless("--threads-http", "one event loop serves all connections"),
    # Names of options.
    alias("--cache-type-k", "--kv-type"),
    alias("--ctx-size", "--ctx"),
)
