"""Images and audio of a conversation: their placeholders in the chat template, and their positions in the prompt."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from woolly import multimodal  # used as multimodal.NAME, so that conversations without images import none of its files
from woolly.chat.message import AudioPart, FilePart, ImagePart, Message, OtherPart, Part, TextPart, VideoPart
from woolly.errors import RequestError, TemplateError

if TYPE_CHECKING:
    from woolly.multimodal import AudioSettings, Modality, ProcessedItem, VisionSettings
    from woolly.templates import ChatTemplate

_APART = "\u200b"  # breaks placeholders in user text, as for control tokens in tool results

VISION_EXAMPLE = "qwen3-vl:2b"  # the smallest vision model of the catalogue
_TRANSCRIPTION = " (whisper:base and parakeet transcribe)"
CANNOT_CHAT = (
    "this is a speech-to-text model and cannot chat; use `woolly run MODEL --audio FILE`,"
    " LLM.transcribe or POST /v1/audio/transcriptions"
)
_OTHER = "its projector (mmproj file) has no tower for them; send text"

# Limits per conversation: a request body of 16 MiB may contain a thousand images of 300 MB each when decoded.
_MAX_ITEMS = 64
_MAX_PIXELS = 200_000_000
_MAX_SECONDS = 60 * 60
_FETCHING = 30.0  # seconds for all downloads, because a slow server would delay the images of all clients


@dataclass(frozen=True)
class Modalities:
    """Input modalities of a model: vision and audio settings, and media limits."""

    vision: VisionSettings | None
    allows_remote: bool = False  # True if images may be fetched from other servers
    audio: AudioSettings | None = None
    ctx: int | None = None  # maximum tokens of a prompt; None: no limit
    transcribes: bool = False  # speech-to-text only, no chat

    def settings_of(self, kind: Modality) -> VisionSettings | AudioSettings:
        """Return the processor settings of images, or audio; RequestError if the model supports none."""
        settings = self.vision if kind == "image" else self.audio
        if settings is None:
            raise RequestError(cannot_take(kind, self))
        return settings

    def mark(self, kind: Modality) -> re.Pattern[str]:
        """Placeholder that chat templates write for an image or an audio clip."""
        settings = self.vision if kind == "image" else self.audio
        placeholder_texts = () if settings is None else settings.family.placeholder_texts
        return re.compile("|".join(map(re.escape, sorted(placeholder_texts, key=len, reverse=True))) or r"(?!)")


@dataclass(frozen=True, eq=False)
class MediaPlaceholder:
    """Image or audio clip, and the characters of the prompt that it replaces."""

    prepared: ProcessedItem
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class _CachedMedia:
    """Image or audio clip that has been processed for an encoder."""

    given: multimodal.ImageInput | multimodal.AudioInput
    settings: VisionSettings | AudioSettings
    prepared: ProcessedItem
    n_rows: int
    seconds: float  # of an audio clip


@dataclass(eq=False)
class MediaCache:
    """Decoded images and audio of a conversation, which is formatted several times."""

    left: float = _FETCHING  # seconds
    _read: dict[int, _CachedMedia] = field(default_factory=dict)  # by the identity of the input

    def find(self, given: multimodal.ImageInput | multimodal.AudioInput, modalities: Modalities) -> _CachedMedia | None:
        """Return the cached item for an input, or None if there is none for this encoder."""
        found = self._read.get(_identity(given))
        is_same = found is not None and found.settings in (modalities.vision, modalities.audio)
        return found if is_same else None

    def keep(self, reading: _CachedMedia) -> _CachedMedia:
        """Cache an item for `find`, and return it."""
        self._read[_identity(reading.given)] = reading
        return reading


def _identity(given: multimodal.ImageInput | multimodal.AudioInput) -> int:
    """Return the identity of an input. Pages of a file that is opened again have the same identity."""
    source = given.source.frames[0] if isinstance(given.source, multimodal.Clip) else given.source
    return id(source if isinstance(source, (multimodal.Page, multimodal.Frame)) else given)


def has_media(messages: Sequence[Message]) -> bool:
    """Return True if a conversation has images, audio, files or videos."""
    return any(
        isinstance(part, (ImagePart, AudioPart, FilePart, VideoPart)) for message in messages for part in message.parts
    )


def check_media(
    messages: Sequence[Message], modalities: Modalities | None
) -> list[multimodal.ImageInput | multimodal.AudioInput]:
    """Return the images and audio of a conversation without reading them.

    Raises RequestError if there are too many, or if the model does not support them or does not support chat.
    """
    if modalities is not None and modalities.transcribes:
        raise RequestError(CANNOT_CHAT, field="model", code="wrong_model", names=())
    parts = [part for message in messages for part in message.parts if isinstance(part, (ImagePart, AudioPart))]
    for part in parts:
        kind: Modality = "image" if isinstance(part, ImagePart) else "audio"
        if modalities is None or (modalities.vision if kind == "image" else modalities.audio) is None:
            raise _given(part).request_error(cannot_take(kind, modalities))
    for one, name in ((ImagePart, "images"), (AudioPart, "audio")):
        n = sum(
            isinstance(part, one)
            and not isinstance(_given(part).source, (multimodal.Page, multimodal.Frame, multimodal.Clip))
            for part in parts
        )
        if n > _MAX_ITEMS:
            raise RequestError(
                f"the conversation has {n} {name}, and at most {_MAX_ITEMS} are allowed; send fewer",
                limit=_MAX_ITEMS,
                given=n,
            )
    return [_given(part) for part in parts]


def _given(part: ImagePart | AudioPart) -> multimodal.ImageInput | multimodal.AudioInput:
    return part.image if isinstance(part, ImagePart) else part.audio


def without_projector(kind: Modality, model: str = "this model") -> str:
    """Return the error message for an image or audio clip if the model has no projector."""
    others = _TRANSCRIPTION if kind == "audio" else f", such as {VISION_EXAMPLE}"
    return (
        f"{model} {_lack(kind)}: no projector (mmproj file) is open with it; choose a model that does{others}, or open"
        " it with its projector (--mmproj)"
    )


def cannot_take(kind: Modality, modalities: Modalities | None, model: str = "this model") -> str:
    """Return the error message for an image or audio clip if the model has no encoder for it."""
    return without_projector(kind, model) if modalities is None else f"{model} {_lack(kind)}: {_OTHER}"


def _lack(kind: Modality) -> str:
    return "does not support images" if kind == "image" else "does not support audio"


def process_media(
    messages: Sequence[Message], modalities: Modalities | None, media_cache: MediaCache | None = None
) -> list[ProcessedItem]:
    """Return the encoder inputs of a conversation's images and audio, in order. Raises the errors of `check_media`.

    Processes one item at a time, so the pixels of an image are freed before the next image is decoded. Items in
    `media_cache` are not decoded again, and new items are added to the cache.
    """
    given = check_media(messages, modalities)
    if modalities is None:
        return []
    media_cache = MediaCache() if media_cache is None else media_cache
    prepared: list[ProcessedItem] = []
    n_pixels, n_rows, seconds = 0, 0, 0.0
    for one in given:
        its = media_cache.find(one, modalities) or media_cache.keep(
            _read(one, modalities, n_rows, seconds, media_cache)
        )
        n_rows, seconds = n_rows + its.n_rows, seconds + its.seconds
        _check_seconds(seconds, one)  # including cached items
        _check_rows(n_rows, one, modalities)
        n_pixels += its.prepared.size[0] * its.prepared.size[1] if isinstance(one, multimodal.ImageInput) else 0
        prepared.append(its.prepared)
        if n_pixels > _MAX_PIXELS:
            raise one.request_error(
                f"the images of the conversation have more than {_MAX_PIXELS // 1_000_000} million pixels together;"
                " send fewer, or smaller ones"
            )
    return prepared


def _read(
    given: multimodal.ImageInput | multimodal.AudioInput,
    modalities: Modalities,
    n_before: int,
    before: float,
    media_cache: MediaCache,
) -> _CachedMedia:
    """Return the encoder input of an image or audio clip, after `n_before` rows and `before` seconds."""
    if isinstance(given, multimodal.AudioInput):
        its, n_rows, seconds = _read_audio(given, modalities, n_before, before)
        return _CachedMedia(given, modalities.settings_of("audio"), its, n_rows - n_before, seconds - before)
    begun = time.monotonic()
    its, n_rows = _prepared(given, modalities, n_before, begun + media_cache.left)
    media_cache.left -= time.monotonic() - begun if given.is_remote else 0.0
    return _CachedMedia(given, modalities.settings_of("image"), its, n_rows - n_before, 0.0)


def _prepared(
    given: multimodal.ImageInput, modalities: Modalities, n_before: int, deadline: float
) -> tuple[ProcessedItem, int]:
    """Return the encoder input of an image, and the total rows including earlier images and audio.

    Rows are counted before memory is allocated. Raises RequestError if they do not fit in the context.
    """
    vision, source = modalities.vision, given.source
    assert vision is not None
    is_video = isinstance(source, (multimodal.Frame, multimodal.Clip))
    image = None if is_video else given.read(allows_remote=modalities.allows_remote, deadline=deadline)
    try:
        if isinstance(source, (multimodal.Frame, multimodal.Clip)):
            n_rows = n_before + multimodal.count_frame_rows(
                source.frames if isinstance(source, multimodal.Clip) else [source], vision
            )
            _check_rows(n_rows, given, modalities)
            return multimodal.process_frame(source, vision) if isinstance(
                source, multimodal.Frame
            ) else multimodal.process_clip(source, vision), n_rows
        assert image is not None
        n_rows = n_before + multimodal.image_placeholders(image.size, vision).n_rows
        _check_rows(n_rows, given, modalities)
        return multimodal.process_image(image, vision), n_rows
    except RequestError as error:
        raise error if error.code == "context_length" else given.request_error(str(error)) from None
    except (ArithmeticError, LookupError, ValueError) as error:
        raise given.request_error(
            f"it does not fit the tower, whose file may be damaged ({str(error)[:120]})"
        ) from error


def _read_audio(
    given: multimodal.AudioInput, modalities: Modalities, n_before: int, before: float
) -> tuple[ProcessedItem, int, float]:
    """Return an audio clip, and the total rows and seconds so far, which are checked before the clip is processed."""
    audio = given.read()
    assert modalities.audio is not None
    seconds = before + audio.seconds
    _check_seconds(seconds, given)
    try:
        n_rows = n_before + multimodal.audio_placeholders(audio, modalities.audio).n_rows
        _check_rows(n_rows, given, modalities)
        return multimodal.process_audio(audio, modalities.audio), n_rows, seconds
    except RequestError as error:
        raise error if error.code == "context_length" else given.request_error(str(error)) from None
    except (ArithmeticError, LookupError, ValueError) as error:
        raise given.request_error(
            f"it does not fit the tower, whose file may be damaged ({str(error)[:120]})"
        ) from error


def _check_seconds(seconds: float, last: multimodal.ImageInput | multimodal.AudioInput) -> None:
    """Raise RequestError if the audio clips of a conversation up to `last` are too long."""
    if seconds > _MAX_SECONDS:
        raise last.request_error(
            f"the audio clips of the conversation have more than {_MAX_SECONDS // 60} minutes together; send fewer"
        )


def _check_rows(n_rows: int, last: multimodal.ImageInput | multimodal.AudioInput, modalities: Modalities) -> None:
    """Raise RequestError if the rows of images and audio up to `last` do not fit in the context."""
    if modalities.ctx is None or n_rows < modalities.ctx:
        return
    what, smaller = ("audio", "shorter") if isinstance(last, multimodal.AudioInput) else ("images", "smaller")
    where = f" up to {last.where}" if last.where else ""
    raise RequestError(
        f"the {what}{where} take {n_rows} tokens, but the context holds {modalities.ctx}, of which text and answer"
        f" need some; send fewer or {smaller} ones, or raise ctx",
        code="context_length",
        limit=modalities.ctx,
        given=n_rows,
        names=("ctx",),
    )


def insert_placeholders(messages: Sequence[Message], template: ChatTemplate, modalities: Modalities) -> list[Message]:
    """Return the messages with images and audio in the template's form: typed parts, or placeholders in the text.

    Placeholders in user text are broken, so every placeholder in the prompt is an image or an audio clip.
    """
    known = [kind for kind in ("image", "audio") if re.search(rf"""['"]{kind}['"]""", template.source)]
    return [_shown(message, modalities, known if template.takes_parts else []) for message in messages]


def _shown(message: Message, modalities: Modalities, known: Sequence[str]) -> Message:
    """Return a message in the template's form. `known` has the part types that the template renders."""

    def plain(text: str) -> str:
        for mark in (modalities.mark("image"), modalities.mark("audio")):
            while mark.search(text):  # a placeholder may contain a shorter one
                text = mark.sub(lambda found: found[0][0] + _APART + found[0][1:], text)
        return text

    content = message.content
    if content is None:
        return message
    if isinstance(content, str):
        return replace(message, content=plain(content))
    parts = [TextPart(plain(part.text)) if isinstance(part, TextPart) else part for part in content]
    kinds = [_type(part) for part in parts if isinstance(part, (ImagePart, AudioPart))]
    if not kinds:
        return replace(message, content=tuple(parts))
    if all(kind in known for kind in kinds):
        shown = (OtherPart({"type": _type(p)}) if isinstance(p, (ImagePart, AudioPart)) else p for p in parts)
        return replace(message, content=tuple(shown))
    return replace(message, content="\n".join(_written(part, modalities) for part in parts))


def _type(part: ImagePart | AudioPart) -> Modality:
    return "image" if isinstance(part, ImagePart) else "audio"


def _written(part: Part, modalities: Modalities) -> str:
    if isinstance(part, TextPart):
        return part.text
    if isinstance(part, (ImagePart, AudioPart)):
        return modalities.settings_of(_type(part)).family.placeholder_texts[0]
    raise TemplateError("a message with an image has a part that is neither text nor an image; send these alone")


def find_placeholders(
    text: str, images: Sequence[ProcessedItem], modalities: Modalities
) -> tuple[MediaPlaceholder, ...]:
    """Return each image and audio clip with its prompt position, in order. Raise TemplateError if one is missing."""
    placed: list[MediaPlaceholder] = []
    for kind, name in (("image", "images"), ("audio", "audio clips")):
        own = [one for one in images if one.kind == kind]
        found = list(modalities.mark(own[0].kind).finditer(text)) if own else []
        if len(found) != len(own):
            raise TemplateError(
                f"the conversation has {len(own)} {name}, but the model's chat template shows {len(found)};"
                f" put {name} into messages of the user"
            )
        placed += (MediaPlaceholder(one, *mark.span()) for one, mark in zip(own, found, strict=True))
    return tuple(sorted(placed, key=lambda one: one.start))
