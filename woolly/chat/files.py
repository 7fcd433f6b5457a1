"""Files of a conversation: pages of PDF files and frames of videos, as text and images."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from woolly.chat.message import FilePart, ImagePart, Message, Part, TextPart, VideoPart
from woolly.errors import RequestError
from woolly.multimodal.inputs import FileInput, ImageInput, VideoInput
from woolly.multimodal.pdf import FileUsage, Page
from woolly.multimodal.processing.video import video_sampling
from woolly.multimodal.video import Clip

if TYPE_CHECKING:
    from woolly.chat.media import Modalities
    from woolly.tokens import Tokenizer

_READING = 60.0  # seconds for all files of a conversation, because decoding delays the images of all clients
_FETCHING = 30.0  # seconds for downloads from other servers
_MAX_VIDEOS = 4

Input = TypeVar("Input", FileInput, VideoInput)


def open_files(
    messages: Sequence[Message],
    modalities: Modalities | None,
    tokenizer: Tokenizer,
    most: int,
    *,
    allows_remote: bool = False,
) -> tuple[Message, ...]:
    """Return the messages with PDF files replaced by their pages and videos by their frames.

    A page becomes its text, if there is any, and its image, if the model supports images. Files on other servers are
    fetched if `allows_remote`. Raises RequestError if a file cannot be read, if all files together have more than
    `most` pages, or if a page has no text and the model does not support images. The error's code is "busy" if no
    decoder becomes free in time.
    """
    _check_videos(messages)
    taken, deadline = FileUsage(), time.monotonic() + _READING
    fetches = _Fetches(allows_remote)
    with_images = modalities is not None and modalities.vision is not None
    opened: list[Message] = []
    for message in messages:
        if not any(isinstance(part, (FilePart, VideoPart)) for part in message.parts):
            opened.append(message)
            continue
        parts: list[Part] = []
        for part in message.parts:
            if isinstance(part, VideoPart):
                parts += _framed(part.video, modalities, deadline, fetches)
                continue
            if not isinstance(part, FilePart):
                parts.append(part)
                continue
            file = fetches.local(part.file)
            pages = file.read(with_images=with_images, most=most, before=taken, deadline=deadline)
            taken = taken.more(pages)
            parts += _shown(file, pages, tokenizer) if with_images else _as_text(file, pages, tokenizer)
        opened.append(replace(message, content=_content(parts)))
    return tuple(opened)


@dataclass
class _Fetches:
    """Downloads of files and videos from other servers, with the time limit of a conversation."""

    is_allowed: bool
    left: float = _FETCHING

    def local(self, given: Input) -> Input:
        """Return the input with its bytes if it is remote and may be fetched. Other inputs are returned unchanged."""
        if not (self.is_allowed and given.is_remote):
            return given
        begun = time.monotonic()
        fetched = given.fetched(begun + self.left)
        self.left -= time.monotonic() - begun
        return fetched


def _check_videos(messages: Sequence[Message]) -> None:
    videos = [part.video for message in messages for part in message.parts if isinstance(part, VideoPart)]
    if len(videos) > _MAX_VIDEOS:
        raise videos[_MAX_VIDEOS].request_error(
            f"the conversation has {len(videos)} videos, and at most {_MAX_VIDEOS} are allowed; send fewer"
        )


def _shown(file: FileInput, pages: Sequence[Page], tokenizer: Tokenizer) -> list[Part]:
    """Return the text and the image of each page."""
    parts: list[Part] = []
    for page in pages:
        head = f"[{_title(file, page, len(pages))}]\n"
        text = f"{page.text}\n" if page.text else ""
        parts.append(TextPart(tokenizer.break_marks(head + text)))  # files are untrusted, like tool results
        if page.compressed:
            parts.append(ImagePart(ImageInput(page, where=file.where)))
    return parts


def _as_text(file: FileInput, pages: Sequence[Page], tokenizer: Tokenizer) -> list[Part]:
    """Return the text of each page, for a model without image support."""
    if not any(page.text for page in pages):
        raise file.request_error(
            f"{file.shown_name[:80]} has no text, only images of its pages, and this model does not support images;"
            " choose a model that does"
        )
    parts: list[Part] = []
    for page in pages:
        text = page.text or "(it has no text, and this model does not support images)"
        parts.append(TextPart(tokenizer.break_marks(f"[{_title(file, page, len(pages))}]\n{text}\n")))
    return parts


def _framed(video: VideoInput, modalities: Modalities | None, deadline: float, fetches: _Fetches) -> list[Part]:
    """Return the frames with their times in the format of the family's processor, or all frames as one image."""
    if modalities is None or modalities.vision is None:
        raise video.request_error("this model does not support images, and so no videos; choose a model that does")
    try:
        sampling = video_sampling(modalities.vision, has_audio=modalities.audio is not None)
    except RequestError as error:
        raise video.request_error(str(error)) from None
    seen = fetches.local(video).read(sampling, deadline=deadline)
    if sampling.is_one_item:
        return [ImagePart(ImageInput(Clip(seen.frames), where=video.where))]
    images = [ImagePart(ImageInput(frame, where=video.where)) for frame in seen.frames]
    texts = map(TextPart, sampling.texts(seen))
    parts: list[Part] = [part for pair in zip(texts, images, strict=True) for part in pair]
    return [*parts, TextPart(sampling.end)] if sampling.end else parts


def _title(file: FileInput, page: Page, n_pages: int) -> str:
    return f"{file.shown_name[:80]}, page {page.number} of {n_pages}"


def _content(parts: Sequence[Part]) -> str | tuple[Part, ...]:
    """Return the parts joined as one string if all are text, because some templates only accept a string."""
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    return "\n".join(texts) if len(texts) == len(parts) else tuple(parts)
