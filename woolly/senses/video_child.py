"""The child process that reads a video: pixels of some of its frames. Run by path, it imports nothing of woolly.

Its standard input is a line of JSON, the order, and the file. It writes a line of JSON with the length, or with the
fault, and for each frame a line of JSON with its time and size, and its pixels, compressed.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
import zlib
from typing import Any

__all__ = ["choose", "main"]

_OUT = 1  # the pipe to the parent


def main() -> None:
    """Reads the file of the standard input as its order says."""
    order = json.loads(sys.stdin.buffer.readline())
    runpy.run_path(order["limiter"])["limit_process"](order["memory"], order["seconds"])
    sys.path += order["path"]
    import av

    data = sys.stdin.buffer.read()
    try:
        n_frames, rate, width, height = _measured(av, data, order)
    except Exception as error:  # a damaged file raises errors of several classes
        _write({"fault": str(error)[:120]})
        return
    seconds = n_frames / rate
    _write({"seconds": seconds, "width": width, "height": height})
    if seconds > order["most_seconds"] or width * height > order["most_pixels"]:
        return
    wanted = choose(n_frames, rate, order["fps"], order["most_frames"])
    try:
        _decode(av, data, order, wanted, rate)
    except Exception as error:
        _write({"fault": str(error)[:120]})


def choose(n_frames: int, rate: float, fps: float, most: int) -> list[int]:
    """Returns which frames are shown: `fps` of a second, `most` at most, evenly from the first to the last.

    As SmolVLM's processor has it: of a long video, the first and the last second are left out.
    """
    seconds = n_frames / rate
    n = max(1, min(round(fps * seconds), most))
    first, last = 0, n_frames - 1
    if seconds - 2 > most * fps:
        first, last = int(rate), min(int(n_frames - rate), last)
    if first >= last:
        first, last = 0, n_frames - 1
    step = (last - first) / max(n - 1, 1)
    return sorted({int(first + i * step) for i in range(n - 1)} | {last if n > 1 else first})


def _opened(av: Any, data: bytes, order: Any) -> Any:
    # The format is named, and no protocol allowed: lists of other files are formats, too.
    return av.open(io.BytesIO(data), format=order["format"], options={"protocol_whitelist": "none"})


def _measured(av: Any, data: bytes, order: Any) -> tuple[int, float, int, int]:
    """Returns the number of frames, their rate, and their size; packets are counted if the file does not say."""
    with _opened(av, data, order) as file:
        stream = file.streams.video[0]
        size = stream.codec_context.width, stream.codec_context.height
        rate = float(stream.average_rate or stream.guessed_rate)
        n_frames = stream.frames or sum(packet.size > 0 for packet in file.demux(stream))
    if n_frames < 1 or not 0.01 <= rate <= 1000:
        raise ValueError(f"{n_frames} frames, {rate} per second")
    return (n_frames, rate, *size)


def _decode(av: Any, data: bytes, order: Any, wanted: list[int], rate: float) -> None:
    left = list(wanted)
    with _opened(av, data, order) as file:
        stream = file.streams.video[0]
        stream.codec_context.thread_count = 1
        for number, frame in enumerate(file.decode(stream)):
            if number < left[0]:
                continue
            left.pop(0)
            scale = min(1.0, order["most_side"] / max(frame.width, frame.height))
            width, height = max(1, round(frame.width * scale)), max(1, round(frame.height * scale))
            plane = frame.reformat(width, height, "rgb24").planes[0]
            rows = memoryview(plane).cast("B")
            packer = zlib.compressobj(1)
            parts = [packer.compress(rows[y * plane.line_size :][: width * 3]) for y in range(height)]
            pixels = b"".join([*parts, packer.flush()])
            _write({"time": number / rate, "width": width, "height": height, "bytes": len(pixels)}, pixels)
            if not left:
                break
    _write({"end": True})


def _write(head: Any, data: bytes = b"") -> None:
    with os.fdopen(_OUT, "wb", closefd=False) as parent:
        parent.write(json.dumps(head).encode() + b"\n" + data)


if __name__ == "__main__":
    main()
