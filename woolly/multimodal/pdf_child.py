"""Subprocess that reads a PDF file. Run by path; imports nothing from woolly.

Standard input: a line of JSON with the options, then the file. Output: a line of JSON with the number of pages or an
error; then for each page a line of JSON with text and size, and the compressed pixels.
"""

from __future__ import annotations

import json
import math
import os
import runpy
import sys
import zlib
from typing import Any

_OUT = 1  # pipe to the parent
_BGR = 2  # FPDFBitmap_BGR: three bytes per pixel; RGB with FPDF_REVERSE_BYTE_ORDER


def main() -> None:
    """Read the file on standard input with the given options."""
    order = json.loads(sys.stdin.buffer.readline())
    runpy.run_path(order["limiter"])["limit_process"](order["memory"], order["seconds"])
    sys.path += order["path"]
    import pypdfium2

    try:
        file = pypdfium2.PdfDocument(sys.stdin.buffer.read())
        if order["with_images"]:
            file.init_forms()  # renders form fields
        n_pages = len(file)
    except pypdfium2.PdfiumError as error:
        _write({"fault": str(error), "code": error.err_code})
        return
    _write({"pages": n_pages})
    if n_pages > order["max_pages"]:
        return
    left, n_pixels, n_packed = order["max_chars"], order["max_pixels"], order["max_packed_bytes"]
    for number in range(n_pages):
        try:
            page = file[number]
            text, n = _text(page, left)
            left -= n
            size, pixels = _pixels(page, order, n_pixels) if order["with_images"] and left >= 0 else ((0, 0), b"")
        except pypdfium2.PdfiumError as error:
            _write({"fault": str(error)})
            return
        if left < 0:
            _write({"fault": "characters"})
            return
        n_pixels -= size[0] * size[1]
        n_packed -= len(pixels)
        if min(n_pixels, n_packed) < 0:
            _write({"fault": "pixels"})
            return
        _write({"text": text, "width": size[0], "height": size[1], "bytes": len(pixels)}, pixels)
        page.close()


def _text(page: Any, most: int) -> tuple[str, int]:
    """Return the text layer of a page and its length. The text is empty if it is too long."""
    layer = page.get_textpage()
    n = layer.count_chars()
    text = layer.get_text_range() if 0 < n <= most else ""
    layer.close()
    return text, max(n, 0)


def _pixels(page: Any, order: Any, most: int) -> tuple[tuple[int, int], bytes]:
    """Return width, height and compressed RGB pixels of a page.

    A page of more than `most` pixels is not rendered.
    """
    width, height = page.get_size()
    longest = max(width, height)
    if not (0 < longest < math.inf and min(width, height) > 0):
        return (0, 0), b""
    scale = min(order["scale"], order["max_side"] / longest)
    size = math.ceil(width * scale), math.ceil(height * scale)
    if size[0] * size[1] > most:
        return size, b""
    # Sizes are rounded up, so a side may be one pixel longer.
    bitmap = page.render(scale=scale, rev_byteorder=True, force_bitmap_format=_BGR)
    rows = memoryview(bitmap.buffer).cast("B")
    line = bitmap.width * 3
    packer = zlib.compressobj(1)  # the fastest level suffices for mostly white pages
    parts = [packer.compress(rows[y * bitmap.stride :][:line]) for y in range(bitmap.height)]
    return (bitmap.width, bitmap.height), b"".join([*parts, packer.flush()])


def _write(head: Any, data: bytes = b"") -> None:
    with os.fdopen(_OUT, "wb", closefd=False) as parent:
        parent.write(json.dumps(head).encode() + b"\n" + data)


if __name__ == "__main__":
    main()
