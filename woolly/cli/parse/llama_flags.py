"""llama.cpp's flags that have other names in Woolly or are not supported, with one row per flag for all commands.

A command's own options take precedence over rows with the same name. A flag that requests Woolly's default behavior is
accepted silently. A flag that cannot change the output is accepted with a notice. A flag that would change the output
is rejected with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from woolly.cli.parse.usage_errors import UsageError


@dataclass(frozen=True)
class LlamaFlag:
    """Flag of llama.cpp: its name in Woolly, or how it is handled."""

    names: str
    ours: str = ""  # equivalent option
    reason: str = ""  # why it is not supported
    takes_value: bool = True
    off_names: str = ""  # names that turn a switch off
    done: str = ""  # values that request default behavior; a switch has on and off
    is_harmless: bool = False  # False: other values change the output and are rejected
    bare: str = ""  # value if the flag is used without one

    # Pattern of a next word that belongs to a flag with `bare`.
    values: ClassVar[frozenset[str]] = frozenset({"on", "off", "auto", "0", "1", "true", "false"})

    def notice(self, command: str, name: str, value: str) -> str:
        """Return the notice about the flag as typed, or an empty string if Woolly does what it requests.

        Raises UsageError if the flag would change the output.
        """
        if not self.takes_value:
            value = "off" if name in self.off_names.split() else "on"
        if value.lower() in self.done.split() or not self.reason:
            return ""
        typed = f"{name} {value}".rstrip() if self.takes_value else name
        if self.is_harmless:
            return f"{typed} has no effect: {self.reason}"
        raise UsageError(f"{command} does not support {typed}: {self.reason}; omit it")


_LAYERS = "a GPU gets the layers that it has room for, experts last"
_MAPPED = "model files are always mapped into memory"
_PULL = "`woolly pull hf:org/repo:QUANT` fetches a model, and -m takes its name"
_CHAT = "`woolly chat` talks with a model, `woolly run` answers one prompt"
_PLACED = "Woolly does not place its threads, for which there are taskset, nice and numactl"
_CACHE = "computed prompts stay in the cache as long as it has room, --kv-tokens in all"
_GUESSED = "--draft-max bounds how many tokens are guessed ahead, and a model's luck decides how many are"
_LOGGED = "a line of the log has its time and level, and no colours"
_KEYS = "--override-kv gives these, such as qwen3.rope.scaling.yarn_beta_fast=float:32"
_FILE_SAYS = "the model's file says how positions are turned"

_F = LlamaFlag


def _harmless(names: str, reason: str = "", **given: Any) -> LlamaFlag:
    return LlamaFlag(names, reason=reason, is_harmless=True, **given)


def _switch(names: str, reason: str = "", **given: Any) -> LlamaFlag:
    return LlamaFlag(names, reason=reason, takes_value=False, is_harmless=True, **given)


_ROWS = (
    _F("--cache-type-k", "--kv-type"),
    _F("--ctx-size", "--ctx"),
    _F("--grammar-file", "--grammar"),
    _F("--json-schema-file -j -jf", "--json-schema"),
    _F("--n-predict --predict", "--max-tokens"),
    _F("--reverse-prompt", "--stop"),
    _F("--system-prompt", "--system"),
    _F("--spec-draft-model", "--model-draft"),
    _F("--spec-draft-n-max --draft-n", "--draft-max"),
    _F("--words", "--word-timestamps", takes_value=False),
    # Layers on the GPU, for commands without this option: no effect on the output.
    _harmless("-ngl --gpu-layers --n-gpu-layers", _LAYERS, done="0 auto"),
    _harmless("-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl", _LAYERS, done="0 auto"),
    _F("-dev --device", reason="`woolly run`, `woolly chat` and `woolly serve` take it", done="none auto cpu"),
    _harmless("-devd --device-draft --spec-draft-device", "a draft is computed where its model is", done="none"),
    _harmless("-sm --split-mode", _LAYERS, done="none"),
    _harmless("-ts --tensor-split -mg --main-gpu -ot --override-tensor -ncmoe --n-cpu-moe", _LAYERS),
    _harmless("-fit --fit", _LAYERS, done="off"),
    _harmless("-fitt --fit-target -fitc --fit-ctx", _LAYERS),
    _switch("-kvo --kv-offload", off_names="-nkvo --no-kv-offload"),
    _switch("--op-offload", off_names="--no-op-offload"),
    _switch("-cmoe --cpu-moe --no-host"),
    _F("-rpc --rpc", reason="llama.cpp's RPC is not supported"),
    # Files, memory and threads.
    _harmless(
        "-fa --flash-attn",
        "attention is always computed block by block, which only on or auto can mean",
        done="on auto 1 true",
        bare="on",
    ),
    _F("-ctv --cache-type-v", reason="--kv-type sets both types, as in --kv-type q8_0/q4", done="f16"),
    _switch("-cb --cont-batching", "requests always share steps", off_names="-nocb --no-cont-batching", done="on"),
    _switch("-kvu --kv-unified", "all requests share one cache", off_names="-no-kvu --no-kv-unified", done="on"),
    _switch("--repack", "weights are always packed for the kernels", off_names="-nr --no-repack", done="on"),
    _switch("--mmap", _MAPPED, off_names="--no-mmap", done="on"),
    _switch("--mlock", f"{_MAPPED} and not locked there"),
    _harmless("-lm --load-mode", _MAPPED, done="auto mmap"),
    _switch("-dio --direct-io", _MAPPED, off_names="-ndio --no-direct-io", done="off"),
    _harmless("-mmp", _MAPPED),
    _harmless("--numa -C --cpu-mask -Cr --cpu-range --cpu-strict --poll --prio", _PLACED),
    _harmless("-Cb --cpu-mask-batch -Crb --cpu-range-batch --cpu-strict-batch --poll-batch --prio-batch", _PLACED),
    _harmless("-tb --threads-batch", "the same threads, which --threads counts, compute prompts and answers"),
    _harmless("-td --threads-draft --spec-draft-threads", "a draft is computed by the threads that --threads counts"),
    _harmless("--threads-http", "one event loop serves all connections"),
    _switch("--warmup", "a model is ready without a first run", off_names="--no-warmup", done="off on"),
    _switch("--check-tensors", "a header that contradicts its file is always refused"),
    _switch("--swa-full --log-disable --perf --escape -e", off_names="--no-perf --no-escape"),
    # Prompt cache: reuse does not change the output.
    _harmless("-cram --cache-ram -ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step", _CACHE),
    _harmless("--cache-reuse", "what follows a difference is computed again, because shifted keys give other answers"),
    _harmless("-sps --slot-prompt-similarity", "every request finds the longest beginning that is in the cache"),
    _harmless("-dt --defrag-thold", "the cache has pages, which need no defragmentation"),
    _switch("--cache-prompt", "reuse changes no answer", off_names="--no-cache-prompt", done="on"),
    _switch("--cache-idle-slots", off_names="--no-cache-idle-slots"),
    # Server options. Model files determine if a model computes embeddings or scores, so no flag is needed.
    _switch("--embedding --embeddings --rerank --reranking"),
    _switch("--offline"),
    _switch("--jinja", "Jinja always renders chat templates", off_names="--no-jinja", done="on"),
    _switch("-bs --backend-sampling --backend_sampling", "tokens are chosen on the CPU"),
    _switch("--mmproj-auto"),
    _F("--no-mmproj --no-mmproj-auto", reason="--mmproj none opens a model without a projector", takes_value=False),
    _switch("--log-prefix --log-timestamps", _LOGGED, off_names="--no-log-prefix --no-log-timestamps", done="on"),
    _harmless("--log-colors", _LOGGED, done="off auto", bare="on"),
    _harmless("--ui-config --webui-config --ui-config-file --webui-config-file", "the page has settings of its own"),
    _harmless("--sse-ping-interval", "streams show a sign of life every 15 seconds"),
    _switch("--models-autoload", "give --no-models-autoload to `woolly serve`", done="on"),
    _harmless("--spec-type", "--model-draft says what guesses tokens ahead", done="draft-mtp none"),
    _harmless("--draft-min --draft-n-min --spec-draft-n-min --draft-p-min --spec-draft-p-min", _GUESSED),
    _harmless("--draft-p-split --spec-draft-p-split", _GUESSED),
    # Flags that would change the output.
    _F("-mmu --mmproj-url", reason="`woolly pull` downloads the model's projector"),
    _F("-mm --mmproj --image", reason="use images with `woolly run`, `chat` and `serve`"),
    _F("--media-path", reason="clients send images themselves; the server does not read local files for them"),
    _F("--rope-freq-scale", reason="use --rope-scale with the inverse"),
    _F("--yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast", reason=_KEYS),
    _F("-gan --grp-attn-n -gaw --grp-attn-w", reason=_FILE_SAYS),
    _F("-hf -hfr --hf-repo -hff --hf-file -mu --model-url", reason=_PULL),
    _F("-hfd -hfrd --hf-repo-draft --spec-draft-hf", reason=_PULL),
    _F("-cnv --conversation -i --interactive -if -st --single-turn", reason=_CHAT, takes_value=False),
    _F("-no-cnv --no-conversation", reason="--raw continues a prompt without a chat template", takes_value=False),
    _F("-pg", reason="-p and -n measure a prompt and an answer, -d an answer after a prompt"),
    _F("--tools --tools-runtime", reason="the server runs no tools for its clients"),
    _F("--models-preset", reason="use presets.toml in the models folder"),
    _F(
        "--ui-mcp-proxy --webui-mcp-proxy",
        reason="the server forwards no requests to other servers",
        takes_value=False,
        off_names="--no-ui-mcp-proxy --no-webui-mcp-proxy",
        done="off",
    ),
    _F(
        "--skip-chat-parsing", reason="answers are always parsed", takes_value=False, off_names="--no-skip-chat-parsing"
    ),
    _F(
        "--no-prefill-assistant",
        reason="a request that sends continue_final_message: false begins a new turn",
        takes_value=False,
    ),
    _switch("--prefill-assistant"),
    _switch(
        "-v --verbose --log-verbose",
        "--json prints timings, `woolly why` explains them, and `woolly serve` has --log-level debug",
    ),
    # Flags of Ollama.
    _F("--format", reason="--json prints one JSON object, --json-schema enforces a schema"),
)

LLAMA_FLAGS = {name: row for row in _ROWS for name in (*row.names.split(), *row.off_names.split())}
