"""FILES: which models there are, where they lie, and how they come here."""

from woolly.store.addresses import is_address
from woolly.store.catalogue import CATALOGUE, DEFAULT_MODEL, Model, is_catalogued
from woolly.store.download import Remote, open_url
from woolly.store.fetch import pull
from woolly.store.folder import models_folder
from woolly.store.hub import HubName, hub_remotes
from woolly.store.inventory import find_stored, list_models, remove_model
from woolly.store.resolve import is_model_name, near_models, resolve
from woolly.store.stored import Stored

__all__ = [
    "CATALOGUE",
    "DEFAULT_MODEL",
    "HubName",
    "Model",
    "Remote",
    "Stored",
    "find_stored",
    "hub_remotes",
    "is_address",
    "is_catalogued",
    "is_model_name",
    "list_models",
    "models_folder",
    "near_models",
    "open_url",
    "pull",
    "remove_model",
    "resolve",
]
