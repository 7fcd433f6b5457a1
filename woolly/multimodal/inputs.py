"""Multimodal inputs of a request, which are decoded later: ImageInput, AudioInput, FileInput, VideoInput."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from woolly.errors import RequestError
from woolly.multimodal.audio import Audio, AudioSource, read_audio
from woolly.multimodal.image import Image, ImageSource, read_image
from woolly.multimodal.pdf import FileUsage, Page, read_file, read_pages
from woolly.multimodal.urls import (
    audio_bytes,
    check_audio_type,
    check_file_type,
    check_image_type,
    file_bytes,
    image_bytes,
    read_base64,
    video_bytes,
)
from woolly.multimodal.video import Frame, Video, VideoSampling, read_video


@dataclass(frozen=True)
class ImageInput:
    """Image: a source, a URL or base64 data. The image is decoded later, because decoding is slow and may fail."""

    source: ImageSource = field(default=None, repr=False)  # input of `read_image`, a Page or a Frame
    url: str = field(default="", repr=False)  # data: URL, or http(s) URL
    base64: str = field(default="", repr=False)
    media_type: str = ""  # media type of base64 data, if specified
    where: str = ""  # request field of the image, for messages

    @property
    def is_remote(self) -> bool:
        """True if the image must be fetched from another server."""
        return _is_http(self.url)

    def read(self, *, allows_remote: bool = False, deadline: float = math.inf) -> Image:
        """Return the decoded image. Raise RequestError, with the field, if it cannot be decoded.

        Fetching must finish before `deadline`, on the clock of time.monotonic.
        """
        try:
            if isinstance(self.source, (Page, Frame)):
                return self.source.image
            if self.source is not None:
                return read_image(self.source)
            if self.media_type:
                check_image_type(self.media_type)
            if self.url:
                return read_image(image_bytes(self.url, allows_remote=allows_remote, deadline=deadline))
            return read_image(read_base64(self.base64))
        except RequestError as error:
            raise self.request_error(str(error)) from None

    def request_error(self, message: str) -> RequestError:
        """Return an error about this image."""
        return RequestError(f"{self.where}: {message}" if self.where else message, field=self.where or None)


@dataclass(frozen=True)
class AudioInput:
    """Audio clip: a source, a URL or base64 data. The clip is decoded later, because decoding is slow and may fail."""

    source: AudioSource = field(default=None, repr=False)  # input of `read_audio`
    url: str = field(default="", repr=False)  # data: URL
    base64: str = field(default="", repr=False)
    media_type: str = ""  # media type of base64 data, if specified
    where: str = ""  # request field of the clip, for messages

    def read(self) -> Audio:
        """Return the decoded audio. Raise RequestError, with the field, if it cannot be decoded."""
        try:
            if self.source is not None:
                return read_audio(self.source)
            if self.media_type:
                check_audio_type(self.media_type)
            return read_audio(audio_bytes(self.url) if self.url else read_base64(self.base64, "audio"))
        except RequestError as error:
            raise self.request_error(str(error)) from None

    def request_error(self, message: str) -> RequestError:
        """Return an error about this audio clip."""
        return RequestError(f"{self.where}: {message}" if self.where else message, field=self.where or None)


@dataclass(frozen=True)
class FileInput:
    """PDF file: a source or data. The file is decoded later, because decoding is slow and may fail."""

    source: Any = field(default=None, repr=False)  # path or bytes
    data: str = field(default="", repr=False)  # data: URL, base64, or http(s) URL
    media_type: str = ""  # media type of base64 data, if specified
    name: str = ""  # file name, included in the prompt
    where: str = ""  # request field of the file, for messages

    @property
    def shown_name(self) -> str:
        """File name in the prompt."""
        return self.name or (Path(self.source).name if isinstance(self.source, (str, Path)) else "document.pdf")

    @property
    def is_remote(self) -> bool:
        """True if the file must be fetched from another server."""
        return self.source is None and _is_http(self.data)

    def fetched(self, deadline: float) -> FileInput:
        """Return the input with its bytes, fetched before `deadline`; raise RequestError if fetching fails."""
        try:
            name = self.name or PurePosixPath(unquote(urlsplit(self.data).path)).name[:80]
            return replace(self, source=_fetch(self.data, "file", deadline), data="", name=name)
        except RequestError as error:
            raise self.request_error(str(error)) from None

    def read(
        self, *, with_images: bool, most: int, before: FileUsage | None = None, deadline: float = math.inf
    ) -> tuple[Page, ...]:
        """Return the pages, rendered if `with_images`. Raise RequestError, with the field, if they cannot be decoded.

        `most` is the maximum number of pages, including the pages of the files in `before`. Decoding must finish before
        `deadline`, on the clock of time.monotonic.
        """
        try:
            if self.source is not None:
                data = read_file(self.source)
            else:
                if self.media_type:
                    check_file_type(self.media_type)
                data = file_bytes(self.data)
            name, before = self.shown_name[:80], before or FileUsage()
            return read_pages(data, name, with_images=with_images, most=most, before=before, deadline=deadline)
        except RequestError as error:
            raise self.request_error(str(error), error.code) from None

    def request_error(self, message: str, code: str | None = None) -> RequestError:
        """Return an error about this file."""
        said = f"{self.where}: {message}" if self.where else message
        return RequestError(said, field=self.where or None, code=code)


@dataclass(frozen=True)
class VideoInput:
    """Video: a source or data. The video is decoded later, because decoding is slow and may fail."""

    source: Any = field(default=None, repr=False)  # path or bytes
    data: str = field(default="", repr=False)  # data: URL, base64, or http(s) URL
    where: str = ""  # request field of the video, for messages

    @property
    def is_remote(self) -> bool:
        """True if the video must be fetched from another server."""
        return self.source is None and _is_http(self.data)

    def fetched(self, deadline: float) -> VideoInput:
        """Return the input with its bytes, fetched before `deadline`; raise RequestError if fetching fails."""
        try:
            return replace(self, source=_fetch(self.data, "video", deadline), data="")
        except RequestError as error:
            raise self.request_error(str(error)) from None

    def read(self, sampling: VideoSampling, *, deadline: float = math.inf) -> Video:
        """Return the frames, decoded before `deadline`. Raise RequestError, with the field, if decoding fails."""
        try:
            data = video_bytes(self.data) if self.source is None else read_file(self.source)
            return read_video(data, sampling, deadline=deadline)
        except RequestError as error:
            raise self.request_error(str(error), error.code) from None

    def request_error(self, message: str, code: str | None = None) -> RequestError:
        """Return an error about this video."""
        said = f"{self.where}: {message}" if self.where else message
        return RequestError(said, field=self.where or None, code=code)


def _is_http(url: str) -> bool:
    return url[:8].lower().startswith(("http:", "https:"))


def _fetch(url: str, what: str, deadline: float) -> bytes:
    from woolly.multimodal.fetch import fetch  # imports the standard library's HTTP clients, which are rarely needed

    return fetch(url, what, deadline=deadline)
