"""Attachments of the next chat message: text files, images, PDF files, videos and audio."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from woolly.chat.media import cannot_take
from woolly.cli.parse.options import read_text
from woolly.cli.terminal.human_readable import plural
from woolly.errors import RequestError
from woolly.multimodal import read_audio, read_image
from woolly.multimodal.inputs import VideoInput
from woolly.multimodal.pdf import is_pdf, read_file, read_pages
from woolly.multimodal.processing.video import count_frame_rows, video_sampling
from woolly.multimodal.video import is_video

if TYPE_CHECKING:
    from woolly.chat import Modalities
    from woolly.cli.chat.chat import Chat


def attach_text(chat: Chat, name: str) -> str:
    """Attach the text of a file, or a PDF file, to the next message. Return the text to show."""
    if not name:
        raise RequestError("missing file name, for instance: /read notes.txt")
    if is_pdf(name):
        return attach_image(chat, name)
    chat.read_texts.append(read_text("/read", Path(name).expanduser()).removesuffix("\n"))
    return f"{name} goes before your next message ({plural(len(chat.read_texts[-1].splitlines()), 'line')})"


def attach_image(chat: Chat, name: str) -> str:
    """Attach an image, PDF file or video to the next message. Return the text to show."""
    if not name:
        raise RequestError("missing image, for instance: /image photo.jpg")
    path = Path(name).expanduser().absolute()
    if is_pdf(path):
        return _pdf(chat, path)
    if chat.llm.modalities is None or chat.llm.modalities.vision is None:
        raise RequestError(cannot_take("image", chat.llm.modalities, chat.llm.path.name))
    if is_video(path):
        return _video(chat, path, chat.llm.modalities)
    image = read_image(path)
    chat.images.append(str(path))
    cost = plural(chat.llm.image_tokens(image), "token")
    note = f"; {image.note}" if image.note else ""
    return f"{path.name} ({image.width} x {image.height}, {cost}) goes before your next message{note}"


def _pdf(chat: Chat, path: Path) -> str:
    with_images = chat.llm.modalities is not None and chat.llm.modalities.vision is not None
    pages = read_pages(read_file(path), path.name, with_images=with_images)
    chat.images.append(str(path))
    n = sum(len(chat.llm.tokenize(page.text)) for page in pages)
    n += sum(chat.llm.image_tokens(page.image) for page in pages if page.compressed)
    size = f"{plural(len(pages), 'page')}, {plural(n, 'token')}"
    return (
        f"{path.name} ({size}) goes before your next message{'' if with_images else '; the model reads its text alone'}"
    )


def _video(chat: Chat, path: Path, modalities: Modalities) -> str:
    assert modalities.vision is not None
    sampling = video_sampling(modalities.vision, has_audio=modalities.audio is not None)
    video = VideoInput(path).read(sampling)
    chat.images.append(str(path))
    n_frames = sum(frame.temporal_patch_size for frame in video.frames)
    n = count_frame_rows(video.frames, modalities.vision)
    times = "" if sampling.is_one_item else " and their times"
    size = f"{video.seconds:.0f} s, {plural(n_frames, 'frame')}, {plural(n, 'token')}{times}"
    return f"{path.name} ({size}) goes before your next message"


def attach_audio(chat: Chat, name: str) -> str:
    """Attach an audio file to the next message. Return the text to show."""
    if not name:
        raise RequestError("missing audio file, for instance: /audio talk.mp3")
    if chat.llm.modalities is None or chat.llm.modalities.audio is None:
        raise RequestError(
            f"{chat.llm.path.name} does not support audio: no projector (mmproj file) for audio is next to it; choose"
            " a model that does (`woolly run whisper:base --audio FILE` transcribes), or pass a projector with --mmproj"
        )
    path = Path(name).expanduser().absolute()
    audio = read_audio(path)
    cost = plural(chat.llm.audio_tokens(audio), "token")
    chat.audio.append(str(path))
    return f"{path.name} ({audio.seconds:.1f} s, {cost}) goes before your next message"
