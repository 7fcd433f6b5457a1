"""The GivenPicture and the GivenSound: as a request brings them; they are decoded when its prompt is laid out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from woolly.errors import RequestError
from woolly.senses.address import check_sound_type, check_type, picture_bytes, read_base64, sound_bytes
from woolly.senses.picture import Picture, PictureSource, read_picture
from woolly.senses.sounds import Sound, SoundSource, read_sound

__all__ = ["GivenPicture", "GivenSound"]


@dataclass(frozen=True)
class GivenPicture:
    """One of a source, an address and base64 text. Nothing of it was read: that takes a while, and may fail."""

    source: PictureSource = field(default=None, repr=False)  # what `read_picture` takes
    address: str = field(default="", repr=False)  # a data: URL, or that of another server
    base64: str = field(default="", repr=False)
    media_type: str = ""  # of base64 text, if the client names it
    where: str = ""  # the field of the request that holds it, for messages

    @property
    def is_remote(self) -> bool:
        """Whether it comes from another server."""
        return self.address[:4].lower() == "http"

    def read(self, *, allows_remote: bool = False, deadline: float = math.inf) -> Picture:
        """Returns the decoded picture; RequestError, with the field at fault, if it cannot be used.

        One of another server must be here at `deadline`, by time.monotonic().
        """
        try:
            if self.source is not None:
                return read_picture(self.source)
            if self.media_type:
                check_type(self.media_type)
            if self.address:
                return read_picture(picture_bytes(self.address, allows_remote=allows_remote, deadline=deadline))
            return read_picture(read_base64(self.base64))
        except RequestError as error:
            raise self.refusal(str(error)) from None

    def refusal(self, message: str) -> RequestError:
        """Returns the error of this picture."""
        return RequestError(f"{self.where}: {message}" if self.where else message, field=self.where or None)


@dataclass(frozen=True)
class GivenSound:
    """One of a source, an address and base64 text. Nothing of it was read: that takes a while, and may fail."""

    source: SoundSource = field(default=None, repr=False)  # what `read_sound` takes
    address: str = field(default="", repr=False)  # a data: URL
    base64: str = field(default="", repr=False)
    media_type: str = ""  # of base64 text, if the client names it
    where: str = ""  # the field of the request that holds it, for messages

    def read(self) -> Sound:
        """Returns the decoded sound; RequestError, with the field at fault, if it cannot be used."""
        try:
            if self.source is not None:
                return read_sound(self.source)
            if self.media_type:
                check_sound_type(self.media_type)
            return read_sound(sound_bytes(self.address) if self.address else read_base64(self.base64, "sound"))
        except RequestError as error:
            raise self.refusal(str(error)) from None

    def refusal(self, message: str) -> RequestError:
        """Returns the error of this sound."""
        return RequestError(f"{self.where}: {message}" if self.where else message, field=self.where or None)
