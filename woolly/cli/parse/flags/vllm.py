"""Flags of `vllm serve`: those that people use most."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

from woolly.cli.parse.flags import foreign_flag as row
from woolly.cli.parse.flags.foreign_flag import ForeignFlag
from woolly.cli.parse.usage_errors import UsageError

_FILE = "the GGUF file determines it"
_MEMORY = "-ngl, --weight-memory and --kv-tokens bound the memory, which is otherwise used as needed"
_LAYERS = "-dev cuda:0,1 splits the layers over GPUs"
_CALLS = "the formats of tool calls and reasoning are derived from the chat template"
_SAMPLING = "--temp, --top-k, --top-p, --min-p and others set the defaults of requests"

_harmless = partial(row.harmless, program="vLLM", commands="serve")
_switch = partial(row.switch, program="vLLM", commands="serve")
_rejected = partial(row.rejected, program="vLLM", commands="serve")


def _alias(names: str, ours: str, shown: str = "") -> ForeignFlag:
    noted = f"{names.split()[0]} is {shown or ours} here"
    return ForeignFlag(names, ours, program="vLLM", commands="serve", noted=noted)


def _length(value: str) -> Sequence[str]:
    """Return the context for a number, or one with a unit such as 32k or 1M."""
    units = {"k": 1000, "K": 1024, "m": 10**6, "M": 2**20}
    text, unit = (value[:-1], units[value[-1]]) if value[-1:] in units else (value, 1)
    if value in ("auto", "-1"):
        return ("--ctx-size", "0")
    try:
        return ("--ctx-size", str(int(float(text) * unit)))
    except ValueError:
        raise UsageError(f"--max-model-len is {value!r}; expected a number of tokens, such as 32768 or 32k") from None


def _cache_type(value: str) -> Sequence[str]:
    ours = {"auto": "", "float16": "f16", "half": "f16", "float32": "f32"}
    if value.startswith("fp8") or value not in ours:
        raise UsageError(f"--kv-cache-dtype is {value!r}; -ctk q8_0 halves the cache, -ctk q4 quarters it")
    return ("--cache-type-k", ours[value]) if ours[value] else ()


def _origins(value: str) -> Sequence[str]:
    try:
        origins = json.loads(value)
    except ValueError:
        origins = [value]
    return ("--cors-origins", ",".join(map(str, origins if isinstance(origins, list) else [origins])))


VLLM = (
    ForeignFlag(
        "--max-model-len",
        "--ctx-size",
        into=_length,
        noted="--max-model-len is -c, --ctx-size here",
        program="vLLM",
        commands="serve",
    ),
    _alias("--max-num-seqs", "--parallel", "-np, --parallel"),
    ForeignFlag(
        "--served-model-name",
        "--alias",
        into=lambda names: ("--alias", names),
        is_list=True,
        noted="--served-model-name is -a, --alias here",
        program="vLLM",
        commands="serve",
    ),
    _alias("--data-parallel-size -dp", "--replicas"),
    _alias("--root-path", "--api-prefix"),
    _alias("--ssl-keyfile", "--tls-key"),
    _alias("--ssl-certfile", "--tls-cert"),
    _alias("--uvicorn-log-level", "--log-level"),
    _alias("--default-chat-template-kwargs", "--chat-template-kwargs"),
    ForeignFlag("--kv-cache-dtype", "--cache-type-k", into=_cache_type, program="vLLM", commands="serve"),
    ForeignFlag("--allowed-origins", "--cors-origins", into=_origins, program="vLLM", commands="serve"),
    # No effect.
    _harmless("--dtype", "weights keep the types of the file", done="auto"),
    _harmless("--quantization -q", "weights keep the types of the file"),
    _harmless("--tokenizer-mode --load-format --config-format --model-impl", _FILE, done="auto gguf"),
    _harmless("--gpu-memory-utilization --swap-space --cpu-offload-gb --kv-cache-memory-bytes", _MEMORY),
    _harmless("--tensor-parallel-size -tp --pipeline-parallel-size -pp", _LAYERS, done="1"),
    _harmless("--distributed-executor-backend", _LAYERS),
    _harmless("--max-num-batched-tokens --block-size --max-seq-len-to-capture", "steps and pages have fixed sizes"),
    _harmless("--tool-call-parser --reasoning-parser", _CALLS),
    _switch("--enable-auto-tool-choice --enable-reasoning", done="on"),
    _switch("--trust-remote-code", "a GGUF file contains no code"),
    _switch(
        "--enable-prefix-caching",
        "the prefix cache is always on and does not change answers",
        off_names="--no-enable-prefix-caching",
        done="on",
    ),
    _switch(
        "--enable-chunked-prefill",
        "chunked prefill is always on",
        off_names="--no-enable-chunked-prefill",
        done="on",
    ),
    _switch("--enforce-eager --async-scheduling", "the backend chooses how kernels are launched"),
    _harmless("--compilation-config -O", "the backend chooses how kernels are launched"),
    _switch("--enable-lora", "--lora FILE loads an adapter", done="on"),
    _harmless("--max-loras --max-lora-rank --max-cpu-loras", "all adapters of --lora are loaded"),
    _harmless("--guided-decoding-backend --structured-outputs-config", "llguidance enforces schemas and grammars"),
    _harmless("--generation-config", _SAMPLING, done="auto vllm"),
    _harmless(
        "--task --runner --convert",
        "the model file determines whether it generates text, embeds or reranks",
        done="auto generate",
    ),
    _harmless("--max-logprobs", "requests set the number of log-probabilities"),
    _harmless("--limit-mm-per-prompt", "images and audio are limited by the context only"),
    _harmless("--chat-template-content-format", "the chat template determines the form of messages", done="auto"),
    _switch("--disable-log-requests --no-enable-log-requests", "prompts are logged only with --log-prompts", done="on"),
    _switch("--enable-log-requests", "--log-prompts writes prompts and answers to the log"),
    _switch("--disable-log-stats", "/metrics has the statistics"),
    # Rejected.
    _rejected("--tokenizer", "a GGUF file contains its tokenizer"),
    _rejected("--revision", "`woolly pull` downloads the main revision"),
    _rejected("--download-dir", "WOOLLY_HOME names the folder of pulled models"),
    _rejected("--lora-modules", "--lora FILE loads an adapter"),
    _rejected("--speculative-config", "-md FILE or -md prompt_lookup chooses a draft method, --draft-max its length"),
    _rejected("--override-generation-config", _SAMPLING),
    _rejected("--hf-overrides", "--override-kv KEY=TYPE:VALUE changes the metadata of a file"),
    _rejected("--mm-processor-kwargs", "the model's processor determines the tokens of an image"),
    _rejected("--middleware", "a proxy in front of the server can do this"),
    _rejected("--response-role", "answers have the role assistant", done="assistant"),
)
