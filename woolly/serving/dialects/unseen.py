"""UNSEEN_IMAGE: the note that a model reads in place of an image in the result of a call."""

__all__ = ["UNSEEN_IMAGE"]

UNSEEN_IMAGE = "[an image, which this model cannot see]"
