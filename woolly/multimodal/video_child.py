"""Subprocess that reads a video. Run by path; imports nothing from woolly.

Standard input: a line of JSON with the options, then the file. If the options select no frames, the output is a line of
JSON with the number, rate and size of frames. Otherwise it is, for each frame or group of frames, a line of JSON with
their numbers, and their compressed pixels. For a damaged file, the output is a line with the error.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
import zlib
from typing import Any

_OUT = 1  # pipe to the parent


def main() -> None:
    """Read the file on standard input with the given options."""
    order = json.loads(sys.stdin.buffer.readline())
    runpy.run_path(order["limiter"])["limit_process"](order["memory"], order["seconds"])
    sys.path += order["path"]
    import av

    data = sys.stdin.buffer.read()
    try:
        if "wanted" in order:
            _decode(av, data, order)
        else:
            _write(_measured(av, data, order))
    except Exception as error:  # damaged files raise various exceptions
        _write({"fault": str(error)[:120]})


def _opened(av: Any, data: bytes, order: Any) -> Any:
    # The format is explicit and no protocol is allowed, because playlists are formats too.
    return av.open(io.BytesIO(data), format=order["format"], options={"protocol_whitelist": "none"})


def _measured(av: Any, data: bytes, order: Any) -> dict[str, float]:
    """Return number, rate and size of frames. Packets are counted if the file does not have the number."""
    with _opened(av, data, order) as file:
        stream = file.streams.video[0]
        width, height = stream.codec_context.width, stream.codec_context.height
        rate = float(stream.average_rate or stream.guessed_rate)
        n_frames = stream.frames or sum(packet.size > 0 for packet in file.demux(stream))
    if n_frames < 1 or not 0.01 <= rate <= 1000:
        raise ValueError(f"{n_frames} frames, {rate} per second")
    return {"n_frames": n_frames, "rate": rate, "width": width, "height": height}


def _decode(av: Any, data: bytes, order: Any) -> None:
    left, depth = list(order["wanted"]), order["depth"]
    numbers: list[int] = []
    pixels = b""
    packer = zlib.compressobj(1)
    parts: list[bytes] = []

    def put(number: int) -> None:
        nonlocal packer
        numbers.append(number)
        parts.append(packer.compress(pixels))
        if len(numbers) == depth:
            packed = b"".join([*parts, packer.flush()])
            _write({"numbers": numbers, "bytes": len(packed)}, packed)
            numbers.clear()
            parts.clear()
            packer = zlib.compressobj(1)

    with _opened(av, data, order) as file:
        stream = file.streams.video[0]
        stream.codec_context.thread_count = 1
        for number, frame in enumerate(file.decode(stream)):
            if number < left[0]:
                continue
            pixels = _pixels(frame, order)
            while left and left[0] <= number:
                left.pop(0)
                put(number)
            if not left:
                break
    while numbers:
        put(numbers[-1])
    _write({"end": True})


def _pixels(frame: Any, order: Any) -> bytes:
    """Return RGB pixels in raster order, in the requested size."""
    width, height = order["width"], order["height"]
    if order["uses_pillow"]:
        from PIL import Image

        plane = frame.reformat(format="rgb24").planes[0]
        whole = Image.frombuffer("RGB", (frame.width, frame.height), bytes(plane), "raw", "RGB", plane.line_size, 1)
        resized: bytes = whole.resize((width, height), Image.Resampling.BICUBIC).tobytes()
        return resized
    plane = frame.reformat(width, height, "rgb24").planes[0]
    rows = memoryview(plane).cast("B")
    return b"".join(rows[y * plane.line_size :][: width * 3] for y in range(height))


def _write(head: Any, data: bytes = b"") -> None:
    with os.fdopen(_OUT, "wb", closefd=False) as parent:
        parent.write(json.dumps(head).encode() + b"\n" + data)


if __name__ == "__main__":
    main()
