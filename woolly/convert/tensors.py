"""Mapping from a checkpoint's tensors to the tensors of a GGUF file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woolly.convert.family import CheckpointFamily
from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.source import Plain, Source
from woolly.convert.tensor_mapping import LAYER, LEFT_OUT, MTP, PREFIXES, TOP, find_name
from woolly.convert.tensor_ops import PLUS_ONE, TensorOp, in_pairs, one_of
from woolly.errors import ModelError, UnsupportedError

_EXPERT = re.compile(r"(?:.+\.)?(?:(chunk_)?experts|moe)\.(\d+)\.(\w+)\.(weight|bias)")
_EXPERT_PARTS = {
    "w1": "gate",
    "w3": "up",
    "w2": "down",
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "gate": "gate",
    "up": "up",
    "down": "down",
    "linear": "gate",
    "linear_v": "up",
    "linear_1": "down",
}
_NORM_OF_HEAD = re.compile(r"(.+_layernorm)\.norms\.(\d+)\.weight")
_ENDS = (".weight", ".bias", ".scale")
# Names of tied tables that some encoder-decoder checkpoints store several times.
_TABLES = frozenset(["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"])


@dataclass(frozen=True)
class Fragment:
    """Tensor of the checkpoint with the ops to apply."""

    source: Source
    ops: tuple[TensorOp, ...] = ()
    order: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape after all ops. Raises ModelError if the ops do not fit the tensor."""
        shape = self.source.shape
        try:
            for op in self.ops:
                shape = op.shape(shape)
        except (ModelError, IndexError) as error:
            reason = error if isinstance(error, ModelError) else f"its shape {self.source.shape} is not what is needed"
            raise ModelError(f"tensor {self.source.name!r:.90}: {reason}") from None
        return shape

    @property
    def computes(self) -> bool:
        """True if the ops change values, not only their positions."""
        return any(op.floats for op in self.ops)

    def array(self, as_floats: bool) -> NDArray[Any]:
        """Return the data as F32, or in the source's format."""
        array = self.source.floats() if as_floats else self.source.array()
        for op in self.ops:
            array = op.apply(array)
        return np.ascontiguousarray(array)


@dataclass(frozen=True)
class Target:
    """Tensor of the GGUF file, made of one or several consecutive pieces."""

    name: str
    pieces: tuple[Fragment, ...]
    stacked: bool = False  # stack pieces along a new axis

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in NumPy's order. Raises ModelError for inconsistent pieces."""
        shapes = [piece.shape for piece in self.pieces]
        first = shapes[0]
        ends = [shape if self.stacked else shape[1:] for shape in shapes]
        if any(end != ends[0] for end in ends):
            odd = next(piece for piece, end in zip(self.pieces, ends, strict=True) if end != ends[0])
            raise ModelError(
                f"tensor {odd.source.name!r:.90} has shape {odd.source.shape}, which does not match the other parts of"
                f" {self.name}"
            )
        if self.stacked:
            return (len(shapes), *first)
        return first if len(shapes) == 1 else (sum(shape[0] for shape in shapes), *first[1:])


@dataclass(frozen=True)
class TensorMapping:
    """All tensors of a file, in order."""

    targets: tuple[Target, ...]
    left_out: tuple[str, ...]  # checkpoint tensors that a text model does not use
    n_drafts: int  # draft (MTP) blocks
    values: Mapping[str, Any]  # tensors stored as metadata


def map_tensors(
    sources: Iterable[Source], family: CheckpointFamily, config: Hyperparameters, keys: Mapping[str, Any]
) -> TensorMapping:
    """Map every tensor. Raise an UnsupportedError that names an unknown tensor."""
    found: dict[str, list[Fragment]] = {}
    kinds: dict[str, str] = {}
    left_out, drafts = [], 0
    scalars: dict[str, list[tuple[int, float]]] = {}
    values: dict[str, Any] = {}
    n_layers = config.n_layers
    sources = list(sources)
    is_tied = config.flag("tie_word_embeddings") and family.ties and not _has_own_head(sources, family)
    has_experts = bool(keys.get("expert_count"))
    for source in sources:
        name = source.name
        is_copy = name in _TABLES and "token_embd.weight" in found
        if LEFT_OUT.search(name) or is_copy or (is_tied and name.endswith("lm_head.weight")):
            left_out.append(name)
            continue
        block, inside = _place(name, n_layers)
        if block is not None and not inside.startswith("decoder."):
            drafts = max(drafts, block + 1 - n_layers)
        if block is not None and (scalar := re.fullmatch(r"mlp\.act_fn\.(alpha_p|alpha_n|beta|eps)", inside)):
            scalars.setdefault(f"xielu.{scalar[1]}", []).append((block, float(source.floats().reshape(-1)[0])))
            continue
        if block is None and inside in family.values:
            values[f"{family.architecture}.{family.values[inside]}"] = float(source.floats().reshape(-1)[0])
            continue
        wanted = _wanted(inside, family, block)
        if wanted is None:
            raise UnsupportedError(f"{config.where}: tensor {name!r:.120} is unknown for {family.architecture} models")
        for target, kind, order, ops in wanted:
            short = target if has_experts else target.replace("_shexp", "")
            full = short if block is None else f"blk.{block}.{short}"
            if short.startswith("^"):
                full = short[1:].replace("{i}", str(block))
            found.setdefault(full, []).append(
                Fragment(source, (*ops, *_changes(family, config, keys, source, short, block or 0)), order)
            )
            kinds[full] = kind
    targets = tuple(_target(name, pieces, kinds[name]) for name, pieces in found.items())
    values |= {key: [value for _, value in sorted(items)] for key, items in scalars.items()}
    return TensorMapping(tuple(sorted(targets, key=_rank)), tuple(left_out), drafts, values)


def _has_own_head(sources: Sequence[Source], family: CheckpointFamily) -> bool:
    """Return True if the output matrix differs from the token embeddings, which transformers then does not tie."""
    heads = [one for one in sources if one.name.endswith("lm_head.weight")]
    tables = [one for one in sources if _is_table(one.name, family)]
    if len(heads) != 1 or len(tables) != 1 or heads[0].shape != tables[0].shape:
        return False
    head, table = heads[0], tables[0]
    if not (isinstance(head, Plain) and isinstance(table, Plain)) or head.type is not table.type:
        return False
    return not np.array_equal(head.array(), table.array())


def _is_table(name: str, family: CheckpointFamily) -> bool:
    block, inside = _place(name, 1 << 12)
    wanted = _wanted(inside, family, block) if block is None else None
    return wanted is not None and wanted[0][0] == "token_embd.weight"


def output_of_table(table: Target, family: CheckpointFamily, config: Hyperparameters) -> Target | None:
    """Return the output matrix of a checkpoint with tied embeddings, or None if the table can be used.

    Readers use the token table for logits if there is no output matrix. This is wrong if the family scales or norms the
    input or the output. Raises ModelError if the checkpoint must have a separate matrix but has none.
    """
    table_ops, ops = (family.changes(config, name, 0) for name in ("token_embd.weight", "output.weight"))
    # T5 scales the decoder's output only for a tied table.
    is_sure = family.architecture != "t5" or config.get("tie_word_embeddings") is not False
    if family.ties and not table_ops and not ops and is_sure:
        return None
    if config.get("tie_word_embeddings") is False:
        raise ModelError(f"{config.where}: tie_word_embeddings is false, but the checkpoint has no output matrix")
    return Target("output.weight", (Fragment(table.pieces[0].source, ops),))


def _place(name: str, n_layers: int) -> tuple[int | None, str]:
    """Return the block of a tensor (None outside blocks) and its name within the block."""
    if found := re.fullmatch(r"(?:model\.)?mtp\.(.+)", name):
        if layer := LAYER.fullmatch(found[1]):
            return n_layers + int(layer[1]), layer[2]
        path, _, kind = found[1].rpartition(".")
        return n_layers, f"{MTP[path]}.{kind}" if path in MTP else name
    name = name.removeprefix(next((prefix for prefix in PREFIXES if name.startswith(prefix)), ""))
    if half := re.fullmatch(r"decoder\.block\.(\d{1,4})\.(.+)", name):
        return int(half[1]), f"decoder.{half[2]}"
    layer = LAYER.fullmatch(name)
    return (int(layer[1]), layer[2]) if layer and int(layer[1]) < 1 << 12 else (None, name)


Wanted = list[tuple[str, str, int, tuple[TensorOp, ...]]]  # name, kind ("", "join", "stack"), order, ops


def _wanted(inside: str, family: CheckpointFamily, block: int | None) -> Wanted | None:
    """Return the GGUF tensors to which a tensor belongs, or None if it is unknown."""
    if block is not None and (expert := _EXPERT.fullmatch(inside)) and expert[3] in _EXPERT_PARTS:
        kind = "chexps" if expert[1] else "exps"
        return [(f"ffn_{_EXPERT_PARTS[expert[3]]}_{kind}.{expert[4]}", "stack", int(expert[2]), ())]
    if block is not None and (norm := _NORM_OF_HEAD.fullmatch(inside)):
        name = find_name(norm[1], family.names)
        return None if name is None else [(f"{name}.weight", "stack", int(norm[2]), ())]
    if block is not None and inside.startswith("nextn."):
        return [(inside, "", 0, ())]
    path, _, kind = inside.rpartition(".")
    if kind not in ("weight", "bias", "scale") or inside in family.names:
        path, kind = inside, ""
    value = ({**TOP, **family.top}).get(path) if block is None else find_name(path, family.names)
    if value is None:
        return None
    out: Wanted = []
    parts = value.split("|")
    for i, part in enumerate(parts):
        ops = (one_of(i, len(parts)),) if len(parts) > 1 else ()
        for one in part.split("*"):
            stem, mark, order = re.fullmatch(r"([^@#]+)([@#]?)(\d*)", one).groups()  # type: ignore[union-attr]
            name = stem.removesuffix(".") if stem.endswith((*_ENDS, ".")) else f"{stem}.{kind}"
            if name.endswith(".") or (kind == "bias" and name.endswith(".weight")):
                return None
            out.append((name, {"@": "join", "#": "stack", "": ""}[mark], int(order or 0), ops))
    return out


def _changes(
    family: CheckpointFamily, config: Hyperparameters, keys: Mapping[str, Any], source: Source, name: str, block: int
) -> tuple[TensorOp, ...]:
    if source.type.block_size > 1 and len(source.shape) == 3:
        return ()  # quantized experts already have GGUF's order of rows and columns
    own = family.changes(config, name, block)
    if family.pairs and re.fullmatch(r"attn_[qk]\.(weight|bias)", name):
        return (*own, in_pairs(max(1, source.shape[0] // int(keys["attention.key_length"]))))
    if family.plus_one and "norm" in name and name.endswith(".weight") and "ssm_norm" not in name:
        return (*own, PLUS_ONE)
    return own


def _target(name: str, pieces: list[Fragment], kind: str) -> Target:
    """Join the pieces in order. Every piece must exist exactly once."""
    pieces = sorted(pieces, key=lambda piece: piece.order)
    orders = [piece.order for piece in pieces]
    if not kind and len(pieces) > 1:
        both = " and ".join(repr(piece.source.name)[:90] for piece in pieces[:2])
        raise ModelError(f"the tensors {both} are both mapped to {name}")
    if kind and orders != list(range(len(pieces))):
        missing = next((i for i, order in enumerate(orders) if i != order), len(orders))
        raise ModelError(f"{name}: part {missing} is missing or exists twice")
    return Target(name, tuple(pieces), kind == "stack")


def _rank(target: Target) -> tuple[int, int, str]:
    """Sort key: tables, then blocks, then the rest, independent of the split into files."""
    block = re.match(r"blk\.(\d+)\.", target.name)
    if block:
        return 1, int(block[1]), target.name
    return (0 if target.name.startswith(("token_embd.", "per_layer_token")) else 2), 0, target.name
