"""FILES: which models there are, where they lie, and how they come here."""

from woolly.store.catalogue import CATALOGUE, DEFAULT_MODEL, Model, is_catalogued
from woolly.store.fetch import pull
from woolly.store.folder import models_folder
from woolly.store.resolve import resolve

__all__ = ["CATALOGUE", "DEFAULT_MODEL", "Model", "is_catalogued", "models_folder", "pull", "resolve"]
