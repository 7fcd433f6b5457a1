"""Multipart forms: exact contents, and errors for invalid bodies."""

import pytest

from woolly.serving.dialects.openai import form as module
from woolly.serving.dialects.openai.form import read_form
from woolly.serving.errors import ApiError

KIND = 'multipart/form-data; boundary="b"'


def form(*parts, end=b"--b--\r\n"):
    return b"".join(b"--b\r\n" + part + b"\r\n" for part in parts) + end


def part(name, content, more=b""):
    return b'Content-Disposition: form-data; name="%s"%s\r\n\r\n%s' % (name, more, content)


def test_contents_are_unchanged():
    for content in (b"", b"\r\n\r\n", b"x--b", b"x\r\n--", b"\n--b\n", bytes(range(256))):
        body = form(part(b"purpose", b"batch"), part(b"file", content, b'; filename="a;b.jsonl"'))
        for begun in (body, b"a preamble\r\n" + body):
            assert read_form(KIND, begun) == {"purpose": (None, b"batch"), "file": ("a;b.jsonl", content)}


@pytest.mark.parametrize(
    "kind, body, said",
    [
        ("application/json", b"{}", r"expected a form .* with purpose and file"),
        ("multipart/form-data", form(), "no boundary"),
        (KIND, b"", "does not contain the boundary"),
        (KIND, form(part(b"file", b"x"), end=b""), "ends before"),
        (KIND, b"--b", "ends before"),
        (KIND, form(b"no headers"), "no headers"),
        (KIND, form(*[part(b"a", b"")] * 65), "more than 64"),
        (KIND, form(b"Content-Transfer-Encoding: base64\r\n" + part(b"file", b"eA==")), "send it without one"),
    ],
)
def test_non_form_body_is_rejected(kind, body, said):
    with pytest.raises(ApiError, match=said) as refused:
        read_form(kind, body)
    assert refused.value.status == 400


def test_content_lines_are_not_parsed(monkeypatch):
    plain, parsed = module._headers, []

    def counts(data):
        parsed.append(len(data))
        return plain(data)

    monkeypatch.setattr(module, "_headers", counts)
    content = b"\n" * (1 << 20)  # the email parser takes a second for these
    assert read_form(KIND, form(part(b"file", content)))["file"] == (None, content)
    assert len(parsed) == 2 and max(parsed) < 100
