"""Codebooks on the device, for types whose quants are ranks of points."""

from __future__ import annotations

import numpy as np

from woolly import _native
from woolly.quant import GGMLType, codebook_of
from woolly.runtime.gpu.device import Address
from woolly.runtime.gpu.emit import Emitter


def points_of(e: Emitter, type: GGMLType) -> Address:
    """Where the points of a type's codebook are; 0 if it has none. Packing of later weights may read them."""
    name = codebook_of(type)
    if not name:
        return Address(0)
    book = np.frombuffer(_native.codebooks()[name], np.uint8)
    return e.array(f"codebook {name}", book.nbytes, lambda: book, is_first=True)
