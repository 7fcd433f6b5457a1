import re
from dataclasses import FrozenInstanceError

import pytest

from woolly.store import DEFAULT_MODEL, WHEEL_MODELS, pull


def test_default_model_is_in_the_catalogue():
    assert DEFAULT_MODEL in WHEEL_MODELS


def test_every_entry_is_pinned_by_version_and_checksum():
    for name, model in WHEEL_MODELS.items():
        assert model.name == name
        assert re.fullmatch(r"[0-9a-f]{64}", model.sha256)
        assert re.fullmatch(r"[a-z0-9-]+==[0-9.]+", model.requirement)
        assert model.file_name.endswith(".gguf")
        assert model.member.endswith(model.file_name)


def test_no_name_means_two_models():
    names = [name for model in WHEEL_MODELS.values() for name in (model.name, *model.aliases)]
    assert len(names) == len(set(names))
    assert all(name == name.lower() for name in names)


def test_catalogue_is_immutable():
    with pytest.raises(TypeError):
        WHEEL_MODELS["other"] = WHEEL_MODELS[DEFAULT_MODEL]
    with pytest.raises(FrozenInstanceError):
        WHEEL_MODELS[DEFAULT_MODEL].sha256 = ""


def test_default_model_is_available_with_the_promised_size(smollm2):
    model = WHEEL_MODELS[DEFAULT_MODEL]
    assert smollm2 == pull(DEFAULT_MODEL)
    assert smollm2.stat().st_size == model.n_bytes
    assert smollm2.read_bytes()[:4] == b"GGUF"
