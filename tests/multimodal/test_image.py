"""Images: what is decoded, and what is refused before it is."""

import resource
import struct
import subprocess
import sys
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from woolly.errors import RequestError
from woolly.multimodal.image import read_image
from woolly.multimodal.image_formats import MAX_BYTES

Image = pytest.importorskip("PIL.Image")

ROOT = Path(__file__).resolve().parents[2]


def made(width=5, height=3):
    return np.random.default_rng(3).integers(0, 256, (height, width, 3), np.uint8)


def saved(image, kind="PNG", **options):
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def refusal(source, name="the image"):
    with pytest.raises(RequestError) as error:
        read_image(source, name)
    return str(error.value)


def png(width, height, body=b""):
    """A PNG file that claims a size."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP"])
def test_lossless_file_is_decoded_exactly(kind):
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    image = read_image(saved(Image.fromarray(made()), kind, **options))
    assert np.array_equal(image.pixels, made())
    assert (image.width, image.height, image.note) == (5, 3, "")


def test_path_bytes_image_and_array_give_one_image(tmp_path):
    image = Image.fromarray(made())
    path = tmp_path / "a.png"
    path.write_bytes(saved(image))
    read = [read_image(source) for source in (path, str(path), path.read_bytes(), image, made())]
    assert len({image.digest for image in read}) == 1
    other = made()
    other[0, 0, 0] ^= 1
    assert read_image(other).digest != read[0].digest
    assert read_image(made().reshape(5, 3, 3)).digest != read[0].digest  # same bytes, other sides


def test_array_is_copied():
    given = made()
    image = read_image(given)
    given[:] = 0
    assert np.array_equal(image.pixels, made())


def test_exif_orientation_is_applied():
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the image must be turned by 90 degrees to the right
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:, :16] = 255
    image = read_image(saved(Image.fromarray(pixels), "JPEG", exif=exif, quality=95))
    assert (image.width, image.height) == (16, 32)
    assert image.pixels[:15].mean() > 250
    assert image.pixels[17:].mean() < 5


def test_transparency_is_over_white():
    pixels = np.zeros((1, 3, 4), np.uint8)
    pixels[0, :, 3] = (0, 128, 255)
    for source in (saved(Image.fromarray(pixels)), Image.fromarray(pixels), pixels):
        assert read_image(source).pixels[0, :, 0].tolist() == [255, 127, 0]


def test_palette_with_transparency_is_over_white():
    image = Image.new("P", (2, 1), 0)
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    read = read_image(saved(image, transparency=b"\x00\xff"))
    assert read.pixels.tolist() == [[[255, 255, 255], [40, 50, 60]]]
    assert read_image(saved(image)).pixels.tolist() == [[[10, 20, 30], [40, 50, 60]]]


def test_16_bit_grey_keeps_its_upper_half():
    grey = np.array([[0, 255, 256, 0x8001, 0xFFFF]], np.uint16)
    assert read_image(saved(Image.fromarray(grey))).pixels[0, :, 1].tolist() == [0, 0, 1, 0x80, 255]


def test_cmyk_grey_and_one_bit_become_rgb():
    assert read_image(saved(Image.new("CMYK", (8, 8), (0, 0, 0, 0)), "JPEG")).pixels.min() >= 254
    assert read_image(saved(Image.new("L", (2, 2), 77))).pixels.tolist() == [[[77] * 3] * 2] * 2
    assert read_image(saved(Image.new("1", (1, 1), 1))).pixels.tolist() == [[[255] * 3]]
    assert read_image(np.full((2, 2), 7, np.uint8)).pixels.shape == (2, 2, 3)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_animation_is_its_first_frame_and_says_so(kind):
    frames = [Image.new("RGB", (4, 4), color) for color in ((255, 0, 0), (0, 0, 255))]
    options = {"lossless": True} if kind == "WEBP" else {}
    image = read_image(saved(frames[0], kind, save_all=True, append_images=frames[1:], **options), "cat")
    assert image.pixels[0, 0].tolist() == [255, 0, 0]
    assert image.note == "cat is an animation; only its first frame is used"


def test_sizes_are_checked_before_decoding():
    assert refusal(png(20_000, 20_000)) == (
        "the image has 20000 x 20000 pixels, but the limit is 100 million; send a smaller image"
    )
    assert "the limit per side is 65535" in refusal(png(100_000, 1))
    frames = [Image.new("RGB", (8, 8)), Image.new("RGB", (8, 8), "white")]
    webp = bytearray(saved(frames[0], "WEBP", save_all=True, append_images=frames[1:]))
    webp[24:30] = b"\xff\xff\xff\xff\xff\xff"
    assert "16777216 x 16777216 pixels" in refusal(bytes(webp))
    assert "larger than 64 MiB" in refusal(b"\x89PNG\r\n\x1a\n" + bytes(MAX_BYTES))


def test_jpeg_with_a_thousand_scans_is_rejected():
    data = saved(Image.new("RGB", (4000, 3000)), "JPEG")
    assert "1001 scans" in refusal(data[:-2] + b"\xff\xda" * 1000 + data[-2:])
    read_image(saved(Image.new("RGB", (40, 30)), "JPEG", progressive=True))


@pytest.mark.parametrize("compression", [1, 2])
def test_run_length_bmp_is_rejected_by_name(compression):
    data = bytearray(saved(Image.new("P", (4, 4)), "BMP"))
    struct.pack_into("<I", data, 30, compression)
    assert refusal(bytes(data)) == (
        "the image is a BMP file with RLE compression, which is not supported; convert it to PNG or JPEG"
    )
    old = b"BM" + struct.pack("<IHHI", 34, 0, 0, 26) + struct.pack("<IHHHH", 12, 1, 2, 1, 24)  # OS/2, without the field
    pixels = struct.pack("<II", 0, compression)
    assert read_image(old + pixels).pixels[0, 0].tolist() == [0, 0, compression]


def test_damaged_files_give_a_one_line_error():
    whole = saved(Image.fromarray(made(64, 64)), "JPEG")
    assert refusal(whole[:300], "cat.jpg").startswith("cat.jpg is a damaged JPEG file (")
    assert "is a damaged PNG file" in refusal(png(8, 8))  # it claims pixels that it does not have
    assert "is a damaged WebP file" in refusal(b"RIFF\0\0\0\0WEBPVP8L")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "the image is an SVG file"),
        (b"\xef\xbb\xbf<?xml version='1.0'?>\n<svg/>", "is an SVG file"),
        (b"II*\0" + bytes(20), "is a TIFF file"),
        (b"\0\0\0\x18ftypheic" + bytes(20), "is a HEIC file"),
        (b"%PDF-1.7", "is a PDF file"),
        (b"hello", "is not in a supported image format; expected PNG, JPEG, WebP, GIF or BMP"),
        (b"", "is empty"),
    ],
)
def test_other_formats_are_rejected_by_name(data, said):
    assert said in refusal(data)


def test_non_image_is_rejected(tmp_path):
    assert "none.png: No such file or directory" in refusal(tmp_path / "none.png")
    assert "is an array of float64; expected uint8" in refusal(np.zeros((2, 2, 3)))
    assert "is an array of shape 3 x 2 x 2; expected height x width x 3" in refusal(np.zeros((3, 2, 2), np.uint8))
    assert "is a int; expected a path, bytes" in refusal(3)


def test_mutated_images_are_decoded_or_rejected():
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    command = [sys.executable, "-W", "error", "-m", "tests.multimodal.fuzz", "400"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("400 read")


def test_pillow_is_imported_lazily():
    command = "import sys, woolly, woolly.multimodal.image; sys.exit('PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], cwd=ROOT).returncode == 0


def test_missing_pillow_gives_a_one_line_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "images need the package pillow: " in refusal(png(1, 1))
