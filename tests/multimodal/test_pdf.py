"""PDF files: pages as text and images, bounds that hold before pixels are drawn, faults in one sentence."""

import json
import random
import threading
import time
import zlib
from types import SimpleNamespace

import numpy as np
import pytest

from tests.cases.pdfs import write_pdf
from tests.multimodal.fuzz import mutated
from woolly.chat import FilePart, Message
from woolly.chat.files import open_files
from woolly.errors import RequestError
from woolly.multimodal import pdf
from woolly.multimodal.inputs import FileInput
from woolly.multimodal.pdf import is_pdf, read_file, read_pages
from woolly.serving.errors import to_api_error

pytest.importorskip("pypdfium2")

ENCRYPTED = b"/Encrypt << /Filter /Standard /V 2 /R 3 /Length 128 /P -4 /O <%s> /U <%s> >> /ID [<61><61>]"


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(pdf, "_kept", pdf.FileCache(1 << 20))


def test_page_is_its_text_and_its_image():
    first, second = read_pages(write_pdf(["Hello (world)", ""]), with_images=True)
    assert (first.number, first.text, second.text) == (1, "Hello (world)", "")
    image = second.image
    assert image.size == (1584, 1224)  # 144 pixels per inch
    assert image.pixels[1400, 200].tolist() == [255, 0, 0] and image.pixels[0, 0].tolist() == [255, 255, 255]
    dark = np.argwhere(first.image.pixels.min(axis=2) < 100)
    assert 130 < dark[:, 0].min() < dark[:, 0].max() < 200 and 140 < dark[:, 1].min() < 160  # where the text stands


def test_text_model_renders_no_pages():
    (page,) = read_pages(write_pdf(["a"]), with_images=False)
    assert page.text == "a" and not page.compressed


@pytest.mark.parametrize(
    ("box", "size"),
    [
        ("0 0 14400 14400", (2048, 2048)),  # 200 inches
        ("0 0 1e30 1e30", (1584, 1224)),  # pdfium takes a letter instead
        ("0 0 -5 0", (1584, 1224)),
        ("0 0 14400 0.01", (1, 2048)),
        ("0 0 100 50", (100, 200)),
    ],
)
def test_false_page_size_only_limits_the_scale(box, size):
    (page,) = read_pages(write_pdf(["a"], box), with_images=True)
    assert page.image.size == size


GOOD = write_pdf(["a"])
FAULTS = {
    "none": (b"hello", "x.pdf is not a PDF file"),
    "cut": (GOOD[:200], "x.pdf is a damaged PDF file"),
    "empty": (write_pdf([]), "x.pdf is a damaged PDF file"),
    "many": (write_pdf(["a"] * 10_000), "x.pdf has 10000 pages, but the limit is 50"),
    "password": (write_pdf(["a"], trailer=ENCRYPTED % (b"61" * 32, b"62" * 32)), "x.pdf needs"),
    "large": (b"%PDF" + bytes(64 << 20), "x.pdf is larger than 64 MiB"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_unreadable_file_gives_a_one_line_error(case):
    data, reason = FAULTS[case]
    with pytest.raises(RequestError, match=reason):
        read_pages(data, "x.pdf", with_images=True)


def test_too_costly_file_is_rejected(monkeypatch):
    monkeypatch.setattr(pdf, "_SECONDS", 1)
    lines = " ".join(f"{i % 600} 0 m {i % 599} 700 l S" for i in range(400_000))
    costly = GOOD.replace(b"BT /F1", b"%s BT /F1" % lines.encode())
    with pytest.raises(RequestError, match="damaged, or takes more than 1 s or 1 GB to decode"):
        read_pages(costly, "x.pdf", with_images=True)
    monkeypatch.setattr(pdf, "_SECONDS", 40)
    monkeypatch.setattr(pdf, "_PATIENCE", 0.001)
    with pytest.raises(RequestError, match="takes more than"):
        read_pages(GOOD, "x.pdf", with_images=True)


def test_same_file_is_read_once(monkeypatch):
    pages = read_pages(GOOD, with_images=True)
    monkeypatch.setattr(pdf, "run_decoder", lambda *_, **__: pytest.fail("read again"))
    assert read_pages(bytes(GOOD), "other.pdf", with_images=True) is pages
    with pytest.raises(RequestError, match="has 1 pages, but the limit is 0"):
        read_pages(GOOD, with_images=True, most=0)


def test_least_recently_used_pages_are_dropped_first():
    kept = pdf.FileCache(25)
    for name in (b"a", b"b", b"a", b"c"):
        if kept.find(name) is None:
            kept.keep(name, (pdf.Page(1, "", 1, 1, bytes(10)),))
    assert kept.find(b"a") and kept.find(b"c") and kept.find(b"b") is None


def test_missing_package_error_has_the_install_command(monkeypatch):
    monkeypatch.setattr(pdf, "find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"^PDF files need the package pypdfium2: .*pypdfium2"):
        read_pages(GOOD, with_images=True)


def test_text_layer_has_no_control_characters():
    assert pdf._plain("a\r\nb\x00\x07c \ud800\n\n") == "a\nbc"


def test_file_type_is_detected_by_its_first_bytes(tmp_path):
    (tmp_path / "a").write_bytes(GOOD)
    assert is_pdf(tmp_path / "a") and is_pdf(GOOD) and not is_pdf(tmp_path / "b") and not is_pdf(b"x") and not is_pdf(3)
    assert read_file(tmp_path / "a") == GOOD
    with pytest.raises(RequestError, match=r"cannot read file .*b: No such file"):
        read_file(tmp_path / "b")


def test_invalid_file_error_names_its_field():
    for given, reason in (
        (
            FileInput(data="data:text/html;base64,AAAA", where="a.b"),
            "a.b: the media type is 'text/html'; expected application/pdf",
        ),
        (FileInput(data="AAAA", media_type="image/png", where="a.b"), "a.b: the media type is 'image/png'"),
        (FileInput(data="https://x/a.pdf", where="a.b"), "a.b: this server does not fetch remote files"),
        (FileInput(data="file:///etc/passwd", where="a.b"), "a.b: 'file:///etc/passwd' is not a PDF file"),
        (FileInput(data="AAAA", name="x.pdf", where="a.b"), "a.b: x.pdf is not a PDF file"),
        (FileInput(data="!", where="a.b"), "a.b: the file is not valid base64"),
        (FileInput(3, where="a.b"), "a.b: the file is a int; expected a path or bytes"),
    ):
        with pytest.raises(RequestError) as error:
            given.read(with_images=False, most=50)
        assert str(error.value).startswith(reason) and error.value.field == "a.b"


def test_remote_files_are_fetched_if_the_operator_allows_it(monkeypatch):
    asked = []

    def fetch(url, what, *, deadline):
        now = time.monotonic()
        asked.append((url, what, deadline - now))
        monkeypatch.setattr(time, "monotonic", lambda: now + 20)
        return GOOD

    monkeypatch.setattr("woolly.multimodal.fetch.fetch", fetch)
    tokenizer = SimpleNamespace(break_marks=lambda text: text)
    urls = ("https://x/of%20a.pdf?b=1", "HTTP://x/b.pdf")
    message = Message("user", tuple(FilePart(FileInput(data=url, where="a.b")) for url in urls))
    with pytest.raises(RequestError, match=r"^a\.b: this server does not fetch remote files .*--allow-remote-images"):
        open_files([message], None, tokenizer, 50)
    assert not asked
    (opened,) = open_files([message], None, tokenizer, 50, allows_remote=True)
    assert opened.content == "[of a.pdf, page 1 of 1]\na\n\n[b.pdf, page 1 of 1]\na\n"
    assert [one[:2] for one in asked] == [(url, "file") for url in urls]
    assert [round(left) for *_, left in asked] == [30, 10]  # seconds for all of a conversation
    with pytest.raises(RequestError, match=r"^a\.b: .* is not on the public internet; use a public server"):
        monkeypatch.undo()
        FileInput(data="http://127.0.0.1/a.pdf", where="a.b").fetched(time.monotonic() + 9)


def test_mutated_files_are_pages_or_one_line_errors():
    chance = random.Random(1)
    seeds = [write_pdf(["Hello", ""]), write_pdf(["x" * 50], "0 0 300 300")]
    for _ in range(25):  # `python -m tests.multimodal.fuzz_pdf 5000` reads more
        try:
            for page in read_pages(mutated(chance.choice(seeds), chance), with_images=True):
                assert page.image.size == (page.height, page.width)
        except RequestError as error:
            assert str(error).count("\n") == 0


def test_files_of_a_conversation_share_pages_characters_and_time(monkeypatch):
    with pytest.raises(RequestError, match="the PDF files of the conversation have more than 50 pages in total"):
        read_pages(GOOD, with_images=False, before=pdf.FileUsage(n_pages=50))
    for data in (GOOD, GOOD + b" "):  # kept, and not
        with pytest.raises(
            RequestError, match="of the conversation have more than 4000000 characters of text in total"
        ):
            read_pages(data, with_images=False, before=pdf.FileUsage(n_characters=4_000_000))
    with pytest.raises(RequestError, match="the files of the conversation take too long to decode"):
        read_pages(GOOD + b"  ", with_images=False, deadline=0.0)
    monkeypatch.setattr(pdf, "_SLOTS", threading.BoundedSemaphore(1))
    with (
        pdf._SLOTS,
        pytest.raises(RequestError, match="because the server is decoding other files; try again") as error,
    ):
        read_pages(GOOD + b"  ", with_images=False, deadline=time.monotonic() + 0.05)
    assert error.value.code == "busy" and to_api_error(error.value).status == 503


def test_pages_are_rendered_up_to_a_total_of_pixels(monkeypatch):
    pages = write_pdf(["a", "b"], "0 0 60 40")
    for name, most in (("_MAX_PIXELS", 120 * 80 * 2 - 1), ("_MAX_PACKED_BYTES", 100)):
        with monkeypatch.context() as patched:
            patched.setattr(pdf, name, most)
            with pytest.raises(RequestError, match=r"the pages of x\.pdf have more than"):
                read_pages(pages, "x.pdf", with_images=True)
    assert len(read_pages(pages, with_images=True)) == 2


def _page(width: int | str = 1, height: int = 1, n_bytes: int = 3, compressed: bytes = b"abc") -> bytes:
    line = {"text": "", "width": width, "height": height, "bytes": n_bytes}
    return b'{"pages": 1}\n' + json.dumps(line).encode() + b"\n" + compressed


@pytest.mark.parametrize(
    "written",
    [
        *(b"", b"[]\n", b'{"pages": 1}\n{}\n', b'{"pages": "a"}\n', b"{\n", b"[" * 100_000 + b"\n"),
        *(_page(-1), _page(10**6), _page("many"), _page(n_bytes=-5), _page().replace(b"3", b"1e999")),
    ],
)
def test_unexpected_child_output_is_a_damaged_file(written, monkeypatch):
    monkeypatch.setattr(pdf, "run_decoder", lambda *_, **__: written)
    with pytest.raises(RequestError, match=r"x\.pdf is a damaged PDF file"):
        read_pages(GOOD + written[:100] + b"#", "x.pdf", with_images=True)


@pytest.mark.parametrize("compressed", [b"abc", zlib.compress(b"a"), zlib.compress(b"")])
def test_impossible_pixels_are_a_damaged_file(compressed, monkeypatch):
    monkeypatch.setattr(pdf, "run_decoder", lambda *_, **__: _page(n_bytes=len(compressed), compressed=compressed))
    (page,) = read_pages(GOOD + compressed + b"#", with_images=True)
    with pytest.raises(RequestError, match="the file is a damaged PDF file"):
        _ = page.image
