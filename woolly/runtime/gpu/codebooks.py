"""Codebooks on the device, for types with quants that are indices into a table."""

from __future__ import annotations

import numpy as np

from woolly import _native
from woolly.quant import GGMLType, codebook_of
from woolly.runtime.gpu.device import Address
from woolly.runtime.gpu.emitter import Emitter


def points_of(e: Emitter, type: GGMLType) -> Address:
    """Return the address of a type's codebook, or 0. Codebooks are uploaded first: packing kernels read them."""
    name = codebook_of(type)
    if not name:
        return Address(0)
    book = np.frombuffer(_native.codebooks()[name], np.uint8)
    return e.array(f"codebook {name}", book.nbytes, lambda: book, is_first=True)
