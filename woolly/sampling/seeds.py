"""The seed of a request that names none."""

from secrets import randbits

__all__ = ["draw_seed"]


def draw_seed() -> int:
    """Returns a random seed: two requests that name none may have different answers."""
    return randbits(32)
