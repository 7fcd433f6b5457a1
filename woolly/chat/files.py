"""Files of a conversation: the pages of PDF files, as text and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from woolly.chat.message import FilePart, ImagePart, Message, Part, TextPart
from woolly.chat.sight import Vision
from woolly.senses.given import GivenFile, GivenPicture
from woolly.senses.pdf import Page
from woolly.tokens import Tokenizer

__all__ = ["open_files"]


def open_files(
    messages: Sequence[Message], sight: Vision | None, tokenizer: Tokenizer, most: int
) -> tuple[Message, ...]:
    """Returns the messages with the pages of PDF files in place of the files.

    A page is its text, if it has some, and its picture, if the model sees. RequestError if a file cannot be read, if
    all have more than `most` pages, or if a model that sees nothing gets one without text.
    """
    n_pages = 0
    sees = sight is not None and sight.tower is not None
    opened: list[Message] = []
    for message in messages:
        if not any(isinstance(part, FilePart) for part in message.parts):
            opened.append(message)
            continue
        parts: list[Part] = []
        for part in message.parts:
            if not isinstance(part, FilePart):
                parts.append(part)
                continue
            pages = part.file.read(sees=sees, most=most)
            n_pages += len(pages)
            if n_pages > most:
                raise part.file.refusal(
                    f"the PDF files of the conversation have more than {most} pages together; send fewer"
                )
            parts += _shown(part.file, pages, tokenizer) if sees else _told(part.file, pages, tokenizer)
        opened.append(replace(message, content=_content(parts)))
    return tuple(opened)


def _shown(file: GivenFile, pages: Sequence[Page], tokenizer: Tokenizer) -> list[Part]:
    """Returns each page as its text and its picture."""
    parts: list[Part] = []
    for page in pages:
        head = f"[{_title(file, page, len(pages))}]\n"
        text = f"{page.text}\n" if page.text else ""
        parts.append(TextPart(tokenizer.break_marks(head + text)))  # strangers write files, as results of tools
        if page.packed:
            parts.append(ImagePart(GivenPicture(page, where=file.where)))
    return parts


def _told(file: GivenFile, pages: Sequence[Page], tokenizer: Tokenizer) -> list[Part]:
    """Returns the text of each page, for a model that sees nothing."""
    if not any(page.text for page in pages):
        raise file.refusal(
            f"{file.shown_name[:80]} has no text, only pictures of its pages, and this model sees no pictures; choose a"
            " model that does"
        )
    parts: list[Part] = []
    for page in pages:
        text = page.text or "(it has no text, and this model sees no pictures)"
        parts.append(TextPart(tokenizer.break_marks(f"[{_title(file, page, len(pages))}]\n{text}\n")))
    return parts


def _title(file: GivenFile, page: Page, n_pages: int) -> str:
    return f"{file.shown_name[:80]}, page {page.number} of {n_pages}"


def _content(parts: Sequence[Part]) -> str | tuple[Part, ...]:
    """Returns parts as one text if there is nothing else: some templates take nothing else."""
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    return "\n".join(texts) if len(texts) == len(parts) else tuple(parts)
