"""Model store: catalogue, model files on disk, and downloads."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr
from woolly.store.resolve import find_derived_model, is_model_name, resolve, similar_models

if TYPE_CHECKING:
    from woolly.store.catalogue.families import (
        Catalogue,
        Family,
        Purpose,
        Tag,
        all_families,
        models_for,
        read_catalogue,
    )
    from woolly.store.companions import find_draft, find_projectors
    from woolly.store.derived import find_derived, list_derived, remove_derived, write_derived
    from woolly.store.download import Remote, open_url
    from woolly.store.file_formats import is_companion
    from woolly.store.hub import HubName, quant_of
    from woolly.store.hub_download import hub_remotes
    from woolly.store.inventory import find_stored, list_models, pulled_names, remove_model
    from woolly.store.model_folder import models_folder
    from woolly.store.names import (
        CatalogueEntry,
        catalogue_names,
        expand_home,
        find_in_catalogue,
        is_in_catalogue,
        is_path,
        is_url,
        remote_name,
    )
    from woolly.store.presets import NO_PRESET, PRESETS_FILE, Preset, find_preset, preset_files, read_presets
    from woolly.store.pull_model import pull
    from woolly.store.stored_model import StoredModel
    from woolly.store.wheel_models import DEFAULT_MODEL, WHEEL_MODELS, WheelModel, publisher_sampling

__all__ = [
    "DEFAULT_MODEL",
    "NO_PRESET",
    "PRESETS_FILE",
    "WHEEL_MODELS",
    "Catalogue",
    "CatalogueEntry",
    "Family",
    "HubName",
    "Preset",
    "Purpose",
    "Remote",
    "StoredModel",
    "Tag",
    "WheelModel",
    "all_families",
    "catalogue_names",
    "expand_home",
    "find_derived",
    "find_derived_model",
    "find_draft",
    "find_in_catalogue",
    "find_preset",
    "find_projectors",
    "find_stored",
    "hub_remotes",
    "is_companion",
    "is_in_catalogue",
    "is_model_name",
    "is_path",
    "is_url",
    "list_derived",
    "list_models",
    "models_folder",
    "models_for",
    "open_url",
    "preset_files",
    "publisher_sampling",
    "pull",
    "pulled_names",
    "quant_of",
    "read_catalogue",
    "read_presets",
    "remote_name",
    "remove_derived",
    "remove_model",
    "resolve",
    "similar_models",
    "write_derived",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "companions": "find_draft find_projectors",
        "file_formats": "is_companion",
        "wheel_models": "WHEEL_MODELS DEFAULT_MODEL WheelModel publisher_sampling",
        "download": "Remote open_url",
        "stored_model": "StoredModel",
        "pull_model": "pull",
        "model_folder": "models_folder",
        "hub": "HubName quant_of",
        "hub_download": "hub_remotes",
        "inventory": "find_stored list_models pulled_names remove_model",
        "catalogue.families": "Catalogue Family Purpose Tag all_families models_for read_catalogue",
        "derived": "find_derived list_derived remove_derived write_derived",
        "names": "CatalogueEntry catalogue_names expand_home find_in_catalogue is_in_catalogue is_path is_url"
        " remote_name",
        "presets": "NO_PRESET PRESETS_FILE Preset find_preset preset_files read_presets",
    },
)
