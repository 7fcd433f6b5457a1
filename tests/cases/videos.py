"""Small videos, by the encoders that PyAV brings."""

import io

import numpy as np


def write_video(n=50, rate=10, size=(64, 48), format="mp4", codec="mpeg4"):
    """Returns a file of grey frames, each five steps lighter than the one before."""
    import av

    out = io.BytesIO()
    with av.open(out, "w", format=format) as file:
        stream = file.add_stream(codec, rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for i in range(n):
            pixels = np.full((size[1], size[0], 3), i * 5 % 256, np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                file.mux(packet)
        for packet in stream.encode():
            file.mux(packet)
    return out.getvalue()
