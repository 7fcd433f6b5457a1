"""Description of a model from the header of its file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from woolly import _native
from woolly.errors import WoollyError
from woolly.gguf import GGUFFile, open_gguf
from woolly.gguf.main_type import main_type
from woolly.models import trace
from woolly.plan import Plan
from woolly.serving.observability.logs import log
from woolly.store import Preset, quant_of

# token_embedding: one vector per token, for models without a pooling type.
Kind = Literal["completion", "embedding", "rerank", "transcription"]
Capability = Kind | Literal["chat", "tools", "token_embedding", "classify"]

_MAX_METADATA_TEXT = 2000


@dataclass(frozen=True)
class ModelInfo:
    """A model as described by the header of its file."""

    name: str
    path: Path
    description: str
    size_bytes: int
    parameters: int  # number of weights
    quantization: str | None  # from the file name, or the type with the most bytes
    architecture: str
    context_length: int  # context of one request with the current or default loading options
    n_ctx_train: int  # trained context length
    token_bytes: float  # bytes per token of an f16 cache
    capabilities: tuple[Capability, ...]  # includes chat and tools if the file has a suitable template
    created: int  # modification time of the file, in seconds since 1970
    aliases: tuple[str, ...] = ()  # additional names from the file name and the model catalogue
    given_names: tuple[str, ...] = ()  # names of --alias
    tags: tuple[str, ...] = ()
    unsupported: str | None = None  # reason why the model cannot run; None if it can
    state: str = "unloaded"  # unloaded, loading, ready, unloading
    stage: str | None = None  # stage of loading: waiting, reading, freeing or opening
    progress: float | None = None  # share of the weights on the GPU while they are loaded
    metadata: Mapping[str, Any] = field(default_factory=dict)  # general.* metadata of the file
    base: str | None = None  # base model of a derived model
    loading: Preset | None = None  # derived model that determines the loading settings

    @property
    def loaded(self) -> bool:
        """True if the model is ready for requests."""
        return self.state == "ready"

    def has_name(self, name: str) -> bool:
        """Return True if the model has a name, ignoring case and Ollama's tag `:latest`."""
        wanted = name.lower()
        return any(own.lower() in (wanted, wanted.removesuffix(":latest")) for own in (self.name, *self.aliases))

    @property
    def transcribes(self) -> bool:
        """True for speech-to-text models (Whisper, Parakeet)."""
        return "transcription" in self.capabilities

    @property
    def kind(self) -> Kind:
        """Kind of the model: text generation, embedding, reranking or speech recognition."""
        if self.transcribes:
            return "transcription"
        if {"embedding", "token_embedding"} & set(self.capabilities):
            return "embedding"
        return "rerank" if "classify" in self.capabilities else "completion"


def read_header(path: Path, created: int) -> ModelInfo:
    """Return the description of a model from the header of its file."""
    with open_gguf(path) as file:
        metadata = file.metadata
        architecture = readable(str(metadata.get("general.architecture", "unknown")))
        template = metadata.get("tokenizer.chat_template")
        plan = _plan_of(file)
        has_tools = "tools" in str(template) or "tokenizer.chat_template.tool_use" in metadata
        n_ctx = metadata.get(f"{architecture}.context_length", 0)
        if isinstance(plan, Plan) and plan.positions is not None and isinstance(n_ctx, int):
            n_ctx = min(n_ctx, plan.positions)
        general = {
            readable(key): readable(value[:_MAX_METADATA_TEXT]) if isinstance(value, str) else value
            for key in metadata
            if key.startswith("general.") and isinstance(value := metadata[key], (str, int, float, bool))
        }
        return ModelInfo(
            name=readable(path.stem),
            path=path,
            description=readable(str(metadata.get("general.name", path.stem))[:_MAX_METADATA_TEXT]),
            size_bytes=file.n_bytes,
            parameters=sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
            quantization=quant_of(path.name) or main_type(file),
            architecture=architecture,
            context_length=n_ctx if isinstance(n_ctx, int) else 0,
            n_ctx_train=n_ctx if isinstance(n_ctx, int) else 0,
            token_bytes=0.0 if isinstance(plan, str) else plan.bytes_per_token(_native.kv_value_bytes("f16")),
            capabilities=_capabilities(plan, isinstance(template, str), has_tools),
            created=created,
            unsupported=plan if isinstance(plan, str) else None,
            metadata=MappingProxyType(general),
        )


def _plan_of(file: GGUFFile) -> Plan | str:
    """Return the plan of a model, without computing anything, or the reason why it cannot run."""
    try:
        return trace(file)
    except WoollyError as error:
        return readable(str(error)).removeprefix(f"{file.path}: ").partition("; supported:")[0]
    except Exception as error:  # an unexpected header must not break the list of other models
        log.warning("model cannot be traced", extra={"model": file.path.name, "reason": repr(error)}, exc_info=error)
        return "the header has invalid values for its architecture"


def _capabilities(plan: Plan | str, has_template: bool, has_tools: bool) -> tuple[Capability, ...]:
    if isinstance(plan, str):
        return ()
    if plan.transcribes:
        return ("transcription",)
    if plan.result == "embeddings":
        return ("token_embedding",) if plan.pooling == "none" else ("embedding",)
    if plan.result == "scores":
        ranks = plan.width == 1 or "yes" in map(str.lower, plan.labels)
        return ("rerank", "classify") if ranks else ("classify",)
    if not has_template:
        return ("completion",)
    return ("completion", "chat", "tools") if has_tools else ("completion", "chat")


def readable(text: str) -> str:
    """Replace bytes that are not UTF-8 with U+FFFD, because JSON cannot represent them."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
