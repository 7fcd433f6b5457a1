"""Registry of architectures, which traces a model file to a plan.

Every module of this folder with `read` and `build` is the architecture of the same name. `ARCHITECTURES` lists the
names if a module has several, or if the name is not a Python identifier. `injection` returns how the model treats image
rows. An installed package adds architectures with entry points of the group `woolly.models`: NAME = "package.module".
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import TYPE_CHECKING, Any, get_args

from woolly import models
from woolly.errors import ModelError, RequestError, UnsupportedError
from woolly.gguf.keys import Keys
from woolly.plan import Plan, Pooling, Result, Tracer
from woolly.plan.passes import tap_hidden

if TYPE_CHECKING:
    from woolly.gguf import GGUFFile, ModelDescription, Tensor
    from woolly.multimodal.encoder.tracing import TracedTower

# Missing features of known unsupported architectures.
_NEEDS = {
    "attention over residuals of earlier layers, and experts with the activation SiTU": "kimi-k3",
    "adapters that tokens of the text select": "graniteswitch",
    "diffusion of a canvas over a cached prefix": "diffusion-gemma",
    "images or audio": "clip",
}

# Draft heads stored in separate files, with their modules; avoids importing all modules.
_HEADS = {"dflash": "dflash", "eagle3": "eagle3", "gemma4-assistant": "gemma4_assistant"}

GROUP = "woolly.models"

# Indexed by the file's `pooling_type`.
_POOLINGS: tuple[Pooling, ...] = ("none", "mean", "cls", "last", "rank")


def architectures() -> tuple[str, ...]:
    """Return the supported values of `general.architecture`."""
    return tuple(sorted({*(name for module in _modules() for name in _names(module)), *_installed()}))


def trace(
    file: ModelDescription, result: Result | None = None, pooling: Pooling | None = None, ctx: int | None = None
) -> Plan:
    """Trace the plan of a file's model, for a context of `ctx` positions; None: the file's maximum.

    By default, encoders return embeddings or scores and decoders return logits; decoders with a pooling in the file
    return embeddings or scores. `pooling` overrides the file's pooling.
    """
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ModelError(f"{file.path}: metadata key general.architecture is missing, so the file is not a model")
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedError(f"{file.path}: the file type is {kind!r}; only files of type 'model' can be run")
    module = _module(name)
    if module is None and is_head(file):
        raise UnsupportedError(
            f"{file.path}: {name} is a draft head for another model; open that model and pass this file as the draft"
            " model (-md)"
        )
    if module is None:
        raise UnsupportedError(f"{file.path}: architecture {name!r} is not supported yet{_why(name)}")
    if not file.tensors:
        raise ModelError(f"{file.path}: the file has a vocabulary but no weights, so it cannot be run")
    if is_block(file):
        raise UnsupportedError(
            f"{file.path}: the file has only the draft block of a {name} model; open the model and pass this file as"
            " the draft model (-md)"
        )
    try:
        keys = Keys(file.metadata, name, ctx)
        tracer = Tracer(name, file.tensors, _pooling(keys, result, pooling))
        params = module.read(keys)
        module.build(tracer, params)
        plan = tracer.plan()
        labels = _labels(keys, plan.width) if plan.result == "scores" else ()
        plan = replace(plan, labels=labels, positions=keys.positions, transcribes=_transcribes(module))
        if hasattr(module, "injection"):
            plan = replace(plan, injection=module.injection(params))
        if hasattr(module, "diffusion") and plan.result == "logits":
            decoding = module.diffusion(keys)
            plan = replace(plan, diffusion=decoding)
            _check_mask(file, decoding.mask, plan.n_tokens)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"{file.path}: cannot build the {name} model from the metadata: {error}") from error
    if result not in (None, plan.result):
        raise UnsupportedError(f"{file.path}: the model returns {plan.result}, not {result}")
    return plan


def transcribes(architecture: object) -> bool:
    """Return True if models of an architecture only transcribe speech."""
    if not isinstance(architecture, str) or not architecture.isidentifier():
        return False
    try:  # such models are in a file of the same name, so not all modules are imported
        return _transcribes(importlib.import_module(f"{models.__name__}.{architecture}"))
    except ImportError:
        return False


def _transcribes(module: Any) -> bool:
    return hasattr(module, "trace_tower")


def is_block(file: ModelDescription) -> bool:
    """Return True if a file contains draft blocks (MTP) without the model's layers."""
    blocks = {".".join(tensor.split(".", 2)[:2]) for tensor in file.tensors if tensor.startswith("blk.")}
    guessing = {tensor.removesuffix(_PROJECTION) for tensor in file.tensors if tensor.endswith(_PROJECTION)}
    return bool(guessing) and "blk.0" not in blocks


_PROJECTION = ".nextn.eh_proj.weight"  # tensor of each draft block


def trace_draft(file: GGUFFile, plan: Plan, ctx: int | None = None, other: GGUFFile | None = None) -> Plan | None:
    """Trace the draft of a plan from `trace` (`Plan.draft`), or return None if the file has no draft block.

    `other` is a separate file with the block; table, head and norm come from the model. Raises UnsupportedError if the
    architecture does not support drafts, and ModelError if the block is invalid.
    """
    name, source = plan.architecture, file if other is None else other
    try:
        keys = Keys(source.metadata, name, ctx)
        n_drafts = keys.integer("nextn_predict_layers", 0)
        block = f"blk.{keys.integer('block_count', 0) - n_drafts}"
        if plan.result != "logits" or n_drafts < 1 or f"{block}{_PROJECTION}" not in source.tensors:
            return None
        module = _module(name)
        if not hasattr(module, "build_draft"):
            raise UnsupportedError(f"{source.path}: draft blocks of {name} models are not supported yet")
        tracer = Tracer(name, {**file.tensors, **draft_tensors(other)})
        module.build_draft(tracer, module.read(keys))
        return tracer.plan(block)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"{source.path}: cannot build the draft of {name} from the metadata: {error}") from error


def is_head(file: ModelDescription) -> bool:
    """Return True if a file is a draft head for a model in another file."""
    name = file.metadata.get("general.architecture")
    return isinstance(name, str) and name in _HEADS


def trace_head(file: GGUFFile, plan: Plan, other: GGUFFile, ctx: int | None = None) -> Plan:
    """Return a plan from `trace` with the draft head of `other` and the features that the head reads."""
    name = str(other.metadata["general.architecture"])
    try:
        module, tensors = _head(name), {**file.tensors, **draft_tensors(other)}
        params = module.read(Keys(other.metadata, name, ctx))
        if not hasattr(module, "build_features"):
            return replace(plan, draft=_borrowing(module, params, name, tensors, plan))
        plans = []
        for build in (module.build_features, module.build_draft):
            tracer = Tracer(name, tensors)
            with tracer.scope("head"):
                build(tracer, params)
            plans.append(tracer)
        features, draft = plans[0].plan("head.fc"), plans[1].plan("head")
        if hasattr(params, "block"):
            draft = replace(draft, mask=_mask(other, draft.n_tokens), n_masks=params.block - 1)
        return replace(tap_hidden(plan, features, params.layers), draft=draft)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"{other.path}: cannot build the draft head {name} from the metadata: {error}") from error


def _mask(other: GGUFFile, n_tokens: int) -> int:
    """Return the mask token of a draft block."""
    mask = other.metadata.get("tokenizer.ggml.mask_token_id")
    return _check_mask(other, mask, n_tokens)


def _check_mask(file: ModelDescription, mask: Any, n_tokens: int) -> int:
    if not isinstance(mask, int) or not 0 <= mask < n_tokens:
        raise ModelError(f"{file.path}: mask_token_id is {mask}, which is not a token of the vocabulary")
    return mask


def _borrowing(module: Any, params: Any, name: str, tensors: Mapping[str, Tensor], plan: Plan) -> Plan:
    """Trace a draft head that attends to K and V of the plan's last sliding-window and last global layer."""
    entries = {s.integer("window") > 0: s.integer("entry") for s in plan.steps if s.op == "attention"}
    if len(entries) != 2:
        raise ModelError(f"draft head {name} needs a model with both sliding-window and global layers")
    tracer = Tracer(name, tensors, state=plan.state)
    with tracer.scope("head"):
        following = module.build_draft(tracer, params, entries)
    draft = tracer.plan("head")
    if draft.state != plan.state:  # pages before the model's window may already belong to other requests
        raise ModelError(f"draft head {name} has a larger sliding window than the model")
    return replace(draft, borrows=True, features=following.value.id)


def draft_tensors(other: GGUFFile | None) -> dict[str, Tensor]:
    """Return the tensors of a draft file that are not shared with the model; a head's tensors get the prefix `head.`.

    Only draft blocks are used, never layers of the model.
    """
    if other is None:
        return {}
    if is_head(other):
        return {f"head.{name}": own for name, own in other.tensors.items()}
    keys = Keys(other.metadata, str(other.metadata.get("general.architecture")))
    first = keys.integer("block_count", 0) - keys.integer("nextn_predict_layers", 0)
    return {name: own for name, own in other.tensors.items() if _block(name) >= first}


def _block(tensor: str) -> int:
    """Return the block number of a tensor, or -1 outside blocks."""
    kind, _, rest = tensor.partition(".")
    number = rest.partition(".")[0]
    return int(number) if kind == "blk" and number.isdecimal() else -1


@dataclass(frozen=True)
class TracedEncoder:
    """Plan of an encoder for the prompts of an encoder-decoder model (`Plan.has_source`)."""

    plan: Plan  # returns a row per token for the decoder
    start: int  # start token of the decoder

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Plans of the encoder, always a single one."""
        return (self.plan,)


def trace_encoder(file: GGUFFile, plan: Plan, ctx: int | None = None) -> TracedEncoder | TracedTower:
    """Trace the text or audio encoder of an encoder-decoder plan from `trace`."""
    name = plan.architecture
    try:
        module, tracer = _module(name), Tracer(name, file.tensors)
        params = module.read(Keys(file.metadata, name, ctx))
        if plan.transcribes:
            tower: TracedTower = module.trace_tower(file.tensors, params)
            return tower
        module.build_encoder(tracer, params)
        encoder = tracer.plan()
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"{file.path}: cannot build the encoder of {name} from the metadata: {error}") from error
    if not 0 <= params.start < plan.n_tokens:
        raise ModelError(
            f"{file.path}: decoder_start_token_id is {params.start}, which is not a token of the vocabulary"
        )
    return TracedEncoder(encoder, params.start)


def _pooling(keys: Keys, result: Result | None, pooling: Pooling | None) -> Pooling | None:
    """Return the requested pooling, else the model's. For decoders, type 0 in a file means that no pooling is set."""
    if result == "logits":
        return None
    kind = keys.integer("pooling_type", 0)
    if kind not in range(len(_POOLINGS)):
        raise UnsupportedError(f"metadata key {keys.architecture}.pooling_type is {kind}, which is not supported yet")
    if pooling is not None:
        return pooling
    if result == "scores":
        return "rank"
    if kind == 0 and result == "embeddings":
        raise RequestError(
            f"the file does not specify a pooling; choose one of: {', '.join(get_args(Pooling)[:4])}", field="pooling"
        )
    return _POOLINGS[kind] if kind else None


def _labels(keys: Keys, n: int) -> tuple[str, ...]:
    labels = keys.strings("classifier.output_labels")
    if labels and len(labels) != n:
        raise ModelError(f"the file has {len(labels)} labels, but its head returns {n} scores")
    return labels


def _why(name: str) -> str:
    """Return the end of an error message: features that the architecture needs, or similar supported architectures."""
    needs = next((f": it needs {what}" for what, names in _NEEDS.items() if name in names.split()), "")
    # Similar names are only suggested for typing errors.
    near = "" if needs else ", ".join(difflib.get_close_matches(name, architectures(), n=4, cutoff=0.6))
    runs = f"similar supported architectures: {near}; " if near else ""
    return f"{needs}; {runs}see `woolly list --architectures`"


def _modules(first: str = "") -> Iterator[ModuleType]:
    """Yield the model modules lazily. The module named `first` comes first, so usually no other one is imported."""
    names = [found.name for found in pkgutil.iter_modules(models.__path__) if not found.ispkg]
    for name in sorted(names, key=lambda name: name != first):
        module = importlib.import_module(f"{models.__name__}.{name}")
        if hasattr(module, "build"):
            yield module


def _head(name: str) -> Any:
    """Return the module of a draft head."""
    return importlib.import_module(f"{models.__name__}.{_HEADS[name]}")


def _module(name: str) -> Any:
    """Return the module of an architecture, or None.

    Cached: listing a folder of a hundred files takes as long as tracing a small model.
    """
    key = (name, *models.__path__)
    if key not in _KNOWN:
        found = next((module for module in _modules(name) if name in _names(module)), None)
        if found is None and name in _installed():
            found = _load(name)
        if found is None:
            return None
        _KNOWN[key] = found
    return _KNOWN[key]


@lru_cache(1)
def _installed() -> dict[str, EntryPoint]:
    """Return the architectures of installed packages by name."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _load(name: str) -> ModuleType:
    """Return the module of an installed package."""
    where = _installed()[name].value
    try:
        module = _installed()[name].load()
    except Exception as error:  # any error of a foreign module
        raise ModelError(f"the entry point {name} = {where} of {GROUP} cannot be imported: {error}") from error
    if not (isinstance(module, ModuleType) and hasattr(module, "read") and hasattr(module, "build")):
        raise ModelError(f"the entry point {name} = {where} of {GROUP} must name a module with read and build")
    return module


_KNOWN: dict[tuple[str, ...], ModuleType] = {}


def _names(module: ModuleType) -> tuple[str, ...]:
    names: tuple[str, ...] = getattr(module, "ARCHITECTURES", (module.__name__.rpartition(".")[2],))
    return names
