"""Default seed of a request."""

from random import SystemRandom

randbits = SystemRandom().getrandbits  # that of `secrets`, which imports more than it


def draw_seed() -> int:
    """Return a random seed: two requests without a seed may have different answers."""
    return randbits(32)
