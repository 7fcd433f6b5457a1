"""llama.cpp's flags that Woolly spells otherwise or does not have: one row each, for every command.

A command takes its own options first: a row counts only for a command that has no option of that name. A flag that asks
for what Woolly does anyway is taken quietly; one that cannot change an answer, with a notice; one that would change the
answer is refused with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from woolly.cli.parse.usage_errors import UsageError


@dataclass(frozen=True)
class LlamaFlag:
    """A flag that people bring along: Woolly's name of it, or what becomes of it without one."""

    names: str
    ours: str = ""  # the option that means the same
    reason: str = ""  # why Woolly has no such option
    takes_value: bool = True
    off_names: str = ""  # of a switch, those that turn it off
    done: str = ""  # values that ask for what Woolly does anyway; a switch has on and off
    is_harmless: bool = False  # without it, every other value changes the answer and is refused
    bare: str = ""  # what it means without a value, if it may come without one

    # What the next word may be to belong to a flag that has `bare`.
    values: ClassVar[frozenset[str]] = frozenset({"on", "off", "auto", "0", "1", "true", "false"})

    def notice(self, command: str, name: str, value: str) -> str:
        """Returns what to print_status about the flag as it was typed, nothing if Woolly does what it asks for.

        UsageError if it would change the answer.
        """
        if not self.takes_value:
            value = "off" if name in self.off_names.split() else "on"
        if value.lower() in self.done.split() or not self.reason:
            return ""
        typed = f"{name} {value}".rstrip() if self.takes_value else name
        if self.is_harmless:
            return f"{typed} has no effect: {self.reason}"
        raise UsageError(f"{command} does not take {typed}: {self.reason}; leave it out")


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
    # Which layers a GPU has, for commands without an option for it: it changes no answer.
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
    _F("-rpc --rpc", reason="Woolly does not speak llama.cpp's RPC"),
    # How files, memory and threads are used.
    _harmless(
        "-fa --flash-attn",
        "attention is always computed block by block, which only on or auto can mean",
        done="on auto 1 true",
        bare="on",
    ),
    _F("-ctv --cache-type-v", reason="--kv-type names both types, as in --kv-type q8_0/q4", done="f16"),
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
    # The cache of computed prompts: reuse changes no answer.
    _harmless("-cram --cache-ram -ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step", _CACHE),
    _harmless("--cache-reuse", "what follows a difference is computed again, because shifted keys give other answers"),
    _harmless("-sps --slot-prompt-similarity", "every request finds the longest beginning that is in the cache"),
    _harmless("-dt --defrag-thold", "the cache has pages, which need no defragmentation"),
    _switch("--cache-prompt", "reuse changes no answer", off_names="--no-cache-prompt", done="on"),
    _switch("--cache-idle-slots", off_names="--no-cache-idle-slots"),
    # What a server does. A model's file says whether it makes embeddings or ranks, so that no flag is needed.
    _switch("--embedding --embeddings --rerank --reranking"),
    _switch("--offline"),
    _switch("--jinja", "Jinja always renders chat templates", off_names="--no-jinja", done="on"),
    _switch("-bs --backend-sampling --backend_sampling", "tokens are chosen on the CPU"),
    _switch("--mmproj-auto"),
    _F("--no-mmproj --no-mmproj-auto", reason="--mmproj none opens a model without eyes", takes_value=False),
    _switch("--log-prefix --log-timestamps", _LOGGED, off_names="--no-log-prefix --no-log-timestamps", done="on"),
    _harmless("--log-colors", _LOGGED, done="off auto", bare="on"),
    _harmless("--ui-config --webui-config --ui-config-file --webui-config-file", "the page has settings of its own"),
    _harmless("--sse-ping-interval", "streams show a sign of life every 15 seconds"),
    _switch("--models-autoload", "give --no-models-autoload to `woolly serve`", done="on"),
    _harmless("--spec-type", "--model-draft says what guesses tokens ahead", done="draft-mtp none"),
    _harmless("--draft-min --draft-n-min --spec-draft-n-min --draft-p-min --spec-draft-p-min", _GUESSED),
    _harmless("--draft-p-split --spec-draft-p-split", _GUESSED),
    # What would change the answer.
    _F("-mmu --mmproj-url", reason="`woolly pull` fetches the projector of a model with it"),
    _F("-mm --mmproj --image", reason="images belong to `woolly run`, `chat` and `serve`"),
    _F("--media-path", reason="files of the server are not read for clients, which send images themselves"),
    _F("--rope-freq-scale", reason="--rope-scale has its inverse"),
    _F("--yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast", reason=_KEYS),
    _F("-gan --grp-attn-n -gaw --grp-attn-w", reason=_FILE_SAYS),
    _F("-hf -hfr --hf-repo -hff --hf-file -mu --model-url", reason=_PULL),
    _F("-hfd -hfrd --hf-repo-draft --spec-draft-hf", reason=_PULL),
    _F("-cnv --conversation -i --interactive -if -st --single-turn", reason=_CHAT, takes_value=False),
    _F("-no-cnv --no-conversation", reason="--raw continues a prompt without a chat template", takes_value=False),
    _F("-pg", reason="-p and -n measure a prompt and an answer, -d an answer after a prompt"),
    _F("--tools --tools-runtime", reason="the server runs no tools for its clients"),
    _F("--models-preset", reason="presets.toml of the models folder has presets"),
    _F(
        "--ui-mcp-proxy --webui-mcp-proxy",
        reason="the server forwards no requests to other servers",
        takes_value=False,
        off_names="--no-ui-mcp-proxy --no-webui-mcp-proxy",
        done="off",
    ),
    _F("--skip-chat-parsing", reason="answers are always read", takes_value=False, off_names="--no-skip-chat-parsing"),
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
    # Ollama's.
    _F("--format", reason="--json prints one JSON object, --json-schema holds the answer to a schema"),
)

LLAMA_FLAGS = {name: row for row in _ROWS for name in (*row.names.split(), *row.off_names.split())}
