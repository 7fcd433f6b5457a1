"""The seed of a request that names none."""

from random import SystemRandom

randbits = SystemRandom().getrandbits  # that of `secrets`, which imports more than it


def draw_seed() -> int:
    """Returns a random seed: two requests that name none may have different answers."""
    return randbits(32)
