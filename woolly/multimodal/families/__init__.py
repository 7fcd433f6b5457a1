"""Families of vision and audio encoders, one file each."""

__all__: list[str] = []
