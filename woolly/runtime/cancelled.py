"""CancelledRun: how a program says that it was told to stop."""

from woolly.errors import RequestError

__all__ = ["CancelledRun"]


class CancelledRun(RequestError):  # noqa: N818 - the name says what became of the run
    """A run that `Program.cancel` stopped on its way. Nothing of it counts; the same batch may be run again."""
