"""Read mutated images: `python -m tests.multimodal.fuzz 5000` fails if one raises an unexpected error."""

import random
import sys
from io import BytesIO

import numpy as np
from PIL import Image

from woolly.errors import RequestError
from woolly.multimodal.image import read_image

MODES = {
    "PNG": ("RGB", "RGBA", "L", "LA", "P", "1", "I;16"),
    "JPEG": ("RGB", "L", "CMYK"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("P", "L"),
    "BMP": ("RGB", "L", "P"),
}


def seeds():
    """Returns small sound files of all formats and modes."""
    made = []
    pixels = np.random.default_rng(1).integers(0, 256, (23, 31, 3), np.uint8)
    for kind, modes in MODES.items():
        for mode in modes:
            if mode == "I;16":
                image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 200)
            else:
                image = Image.fromarray(pixels).convert(mode)
            for options in ({}, {"progressive": True}) if kind == "JPEG" else ({},):
                file = BytesIO()
                image.save(file, kind, **options)
                made.append(file.getvalue())
    frames = [Image.fromarray(pixels), Image.fromarray(pixels[::-1].copy())]
    for kind in ("GIF", "WEBP", "PNG"):
        file = BytesIO()
        frames[0].save(file, kind, save_all=True, append_images=frames[1:])
        made.append(file.getvalue())
    exif = Image.Exif()
    exif[0x0112] = 6
    file = BytesIO()
    frames[0].save(file, "JPEG", exif=exif)
    made.append(file.getvalue())
    return made


def mutated(data, chance):
    """Returns a file with some bytes changed, cut, doubled or set to extremes, most often near its start."""
    data = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(len(data)) if chance.random() < 0.4 else chance.randrange(min(len(data), 64))
        match chance.randrange(6):
            case 0:
                data[place] ^= 1 << chance.randrange(8)
            case 1:
                data[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                data[place : place + 4] = chance.randbytes(4)
            case 3:
                del data[max(place, 8) :]
            case 4:
                data[place:place] = data[: chance.randrange(64)]
            case 5:
                del data[place : place + chance.randrange(1, 9)]
        if len(data) < 2:
            break
    return bytes(data)


def main(count, seed=1):
    """Reads `count` mutated images and prints how many were still images."""
    chance = random.Random(seed)
    files = seeds()
    for file in files:
        read_image(file)
    n_read = 0
    for number in range(count):
        data = mutated(chance.choice(files), chance)
        try:
            image = read_image(data)
        except RequestError as error:
            sentence = str(error)
            if "\n" in sentence or len(sentence) > 400:
                sys.exit(f"image {number}: {sentence!r} is not one sentence")
            continue
        if image.pixels.dtype != np.uint8 or image.pixels.ndim != 3 or image.pixels.shape[2] != 3:
            sys.exit(f"image {number}: {image.pixels.dtype} {image.pixels.shape}")
        _ = image.digest
        n_read += 1
    print(f"{count} read, {n_read} of them images")


if __name__ == "__main__":
    main(int(sys.argv[1]), *(int(one) for one in sys.argv[2:]))
