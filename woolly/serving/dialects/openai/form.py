"""Parser of multipart/form-data bodies."""

from __future__ import annotations

from collections.abc import Iterator
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import HTTP

from woolly.serving.errors import ApiError

_MAX_PARTS = 64
_MAX_HEADER_BYTES = 8192  # maximum bytes of a part's headers
_PLAIN = ("", "7bit", "8bit", "binary")  # transfer encodings without effect


def read_form(kind: str, body: bytes, wanted: str = "purpose and file") -> dict[str, tuple[str | None, bytes]]:
    """Return the file name and the content of each field. Raises ApiError 400 if the body is not a valid form.

    `kind` is the Content-Type, `wanted` names the fields that the route needs. List items (`name[]`) are joined with
    commas. Boundaries are found in one pass.
    """
    if not kind.lower().startswith("multipart/form-data"):
        raise _wrong(f"expected a form (multipart/form-data) with {wanted}")
    boundary = _headers(f"Content-Type: {kind}\r\n\r\n".encode("latin-1", "replace")).get_boundary()
    if not boundary:
        raise _wrong("the Content-Type of the form has no boundary")
    fields: dict[str, tuple[str | None, bytes]] = {}
    for n, part in enumerate(_parts(body, boundary.encode("latin-1", "replace"))):
        if n == _MAX_PARTS:
            raise _wrong(f"the form has more than {_MAX_PARTS} fields")
        end = part.find(b"\r\n\r\n", 0, _MAX_HEADER_BYTES)
        if end < 0:
            raise _wrong("a field of the form has no headers")
        headers = _headers(part[: end + 4])
        if str(headers.get("content-transfer-encoding", "")).lower() not in _PLAIN:
            raise _wrong("a field of the form has a Content-Transfer-Encoding; send it without one")
        name = headers.get_param("name", header="content-disposition")
        if isinstance(name, str):
            before = fields[name][1] + b"," if name.endswith("[]") and name in fields else b""
            fields[name] = (headers.get_filename(), before + part[end + 4 :])
    return fields


def _parts(body: bytes, boundary: bytes) -> Iterator[bytes]:
    """Yield the bytes between two boundaries, from the line after the first."""
    mark = b"\r\n--" + boundary
    at = len(mark) - 2 if body.startswith(mark[2:]) else _after(body, mark, 0)
    while not body.startswith(b"--", at):
        start = body.find(b"\r\n", at)
        end = body.find(mark, at)
        if start < 0 or end < 0:
            raise _wrong("the form ends before its last boundary")
        yield body[start + 2 : end]
        at = end + len(mark)


def _after(body: bytes, mark: bytes, at: int) -> int:
    found = body.find(mark, at)
    if found < 0:
        raise _wrong("the form does not contain the boundary of its Content-Type")
    return found + len(mark)


def _headers(data: bytes) -> EmailMessage:
    return BytesParser(policy=HTTP).parsebytes(data, headersonly=True)


def _wrong(message: str) -> ApiError:
    return ApiError(400, "invalid_request", message)
