"""WHERE FILES ARE: which models exist, where they are stored, and how they are fetched."""

from typing import TYPE_CHECKING

from woolly.later import later
from woolly.store.resolve import find_own_made, is_model_name, near_models, resolve

if TYPE_CHECKING:
    from woolly.store.addresses import is_address
    from woolly.store.beside import find_block, find_projectors, is_second
    from woolly.store.catalogue import CATALOGUE, DEFAULT_MODEL, Model
    from woolly.store.download import Remote, open_url
    from woolly.store.entry import Stored
    from woolly.store.fetch import pull
    from woolly.store.folder import models_folder
    from woolly.store.hub import HubName, hub_remotes, quant_of
    from woolly.store.inventory import find_stored, list_models, own_names, remove_model
    from woolly.store.known.families import Catalogue, Family, Purpose, Tag, all_families, models_for, read_catalogue
    from woolly.store.made import find_made, list_made, remove_made, write_made
    from woolly.store.names import Named, at_home, find_named, is_catalogued, is_path, known_names, remote_name
    from woolly.store.presets import NO_PRESET, PRESETS_FILE, Preset, find_preset, preset_files, read_presets

__all__ = [
    "CATALOGUE",
    "DEFAULT_MODEL",
    "NO_PRESET",
    "PRESETS_FILE",
    "Catalogue",
    "Family",
    "HubName",
    "Model",
    "Named",
    "Preset",
    "Purpose",
    "Remote",
    "Stored",
    "Tag",
    "all_families",
    "at_home",
    "find_block",
    "find_made",
    "find_named",
    "find_own_made",
    "find_preset",
    "find_projectors",
    "find_stored",
    "hub_remotes",
    "is_address",
    "is_catalogued",
    "is_model_name",
    "is_path",
    "is_second",
    "known_names",
    "list_made",
    "list_models",
    "models_folder",
    "models_for",
    "near_models",
    "open_url",
    "own_names",
    "preset_files",
    "pull",
    "quant_of",
    "read_catalogue",
    "read_presets",
    "remote_name",
    "remove_made",
    "remove_model",
    "resolve",
    "write_made",
]

__getattr__ = later(
    __name__,
    {
        "addresses": "is_address",
        "beside": "find_block find_projectors is_second",
        "catalogue": "CATALOGUE DEFAULT_MODEL Model",
        "download": "Remote open_url",
        "entry": "Stored",
        "fetch": "pull",
        "folder": "models_folder",
        "hub": "HubName hub_remotes quant_of",
        "inventory": "find_stored list_models own_names remove_model",
        "known.families": "Catalogue Family Purpose Tag all_families models_for read_catalogue",
        "made": "find_made list_made remove_made write_made",
        "names": "Named at_home find_named is_catalogued is_path known_names remote_name",
        "presets": "NO_PRESET PRESETS_FILE Preset find_preset preset_files read_presets",
    },
)
