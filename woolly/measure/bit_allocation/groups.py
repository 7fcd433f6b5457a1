"""Groups of weights that share a type: one kind of weight in a range of layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from woolly.errors import RequestError
from woolly.gguf import GGUFFile, Tensor
from woolly.quant import GGMLType
from woolly.quantize.low_bit_mixes import NEEDS_IMATRIX
from woolly.quantize.recipe import is_weight

# Types by weight name.
Types = Mapping[str, GGMLType]

_LAYER = re.compile(r"blk\.(\d+)\.(.*)\.weight")
# For rows that are multiples of 256, and for other rows, fewest bits first. Q4_1 and Q5_1, which also store an f16
# minimum, lose more than other types of their size.
_WIDE = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS", "Q4_K", "Q5_K", "Q6_K", "Q8_0")
_NARROW = ("IQ4_NL", "Q5_0", "Q8_0")


@dataclass(frozen=True)
class WeightGroup:
    """Weights that share a type."""

    name: str  # such as "attn_v 0-14"
    tensors: tuple[Tensor, ...]
    first_layer: int  # first affected layer; -1: token embedding, before all layers

    def types(self, type: GGMLType) -> dict[str, GGMLType]:
        """Return the type of each weight of the group."""
        return {tensor.name: type for tensor in self.tensors}

    def n_bytes(self, type: GGMLType) -> int:
        """Return the size of the group in this type."""
        return sum(_size(tensor, type) for tensor in self.tensors)


def groups_of(file: GGUFFile, n_depths: int) -> list[WeightGroup]:
    """Group the weights of a model whose layers are split into `n_depths` ranges, in file order."""
    weights = [tensor for tensor in file.tensors.values() if is_weight(tensor)]
    layers = [int(found[1]) for tensor in weights if (found := _LAYER.fullmatch(tensor.name))]
    if not layers:
        raise RequestError(f"{file.path}: the layers have no weights that can be quantized")
    n_layers = 1 + max(layers)
    edges = [n_layers * part // n_depths for part in range(n_depths + 1)]
    members: dict[str, list[Tensor]] = {}
    first: dict[str, int] = {}
    for tensor in weights:
        found = _LAYER.fullmatch(tensor.name)
        if found is None:
            name, layer = tensor.name.removesuffix(".weight"), n_layers if tensor.name == "output.weight" else -1
        else:
            layer = int(found[1])
            part = max(i for i in range(n_depths) if edges[i] <= layer)
            name = f"{found[2]} {edges[part]}-{edges[part + 1] - 1}"
        members.setdefault(name, []).append(tensor)
        first[name] = min(first.get(name, layer), layer)
    return [WeightGroup(name, tuple(own), first[name]) for name, own in members.items()]


def types_for(group: WeightGroup, has_importance: bool) -> list[GGMLType]:
    """Return candidate types, fewest bits first. If the original type is larger than all others, it comes last."""
    columns = {tensor.shape[-1] for tensor in group.tensors}
    names: Sequence[str] = _WIDE if all(n % 256 == 0 for n in columns) else _NARROW
    known = [GGMLType[name] for name in names]
    own = max((tensor.type for tensor in group.tensors), key=_bits)
    known = [type for type in known if has_importance or type not in NEEDS_IMATRIX]
    fitting = [type for type in known if all(n % type.block_size == 0 for n in columns) and _bits(type) < _bits(own)]
    return [*fitting, own] if all(tensor.type is own for tensor in group.tensors) else fitting


def n_bytes_of(tensors: Iterable[Tensor], types: Types) -> int:
    """Return the bytes of all tensors. Tensors that are not in `types` keep their type."""
    return sum(_size(tensor, types.get(tensor.name, tensor.type)) for tensor in tensors)


def _size(tensor: Tensor, type: GGMLType) -> int:
    return tensor.n_elements // type.block_size * type.type_size


def _bits(type: GGMLType) -> float:
    return type.type_size / type.block_size
