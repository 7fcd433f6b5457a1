"""Default seed of a request."""

from random import SystemRandom

randbits = SystemRandom().getrandbits  # generator of `secrets`, without its imports


def draw_seed() -> int:
    """Return a random seed, so that requests without a seed may have different answers."""
    return randbits(32)
