"""Check of a cluster before it accepts clients: model, version and bit identity of every replica."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from woolly.cluster.fleet_llm import FleetLLM
from woolly.cluster.front import make_launchers
from woolly.errors import ModelError, RequestError
from woolly.serving.errors import ApiError
from woolly.serving.model_manager.loader import estimate_model, options_for
from woolly.serving.model_manager.memory_check import check_memory
from woolly.serving.settings.table import Settings
from woolly.store import resolve

_MAX_CLOCK_SKEW = 2.0  # maximum clock skew in seconds, so that logs of two machines stay in order


@dataclass(frozen=True)
class Checked:
    """Result of a cluster check."""

    identity: str | None  # identity of all usable replicas
    replicas: Sequence[dict[str, Any]]
    faults: Sequence[str]  # one message each


def check_cluster(settings: Settings) -> Checked:
    """Open the model on every replica, compare the replicas, and close them again."""
    if settings.model is None:
        raise RequestError("missing model; pass the model to check a cluster with", field="model", names=())
    faults = [*_port(settings), *_memory(settings)]
    path = resolve(settings.model)
    try:
        limits = {"stall": settings.stall, "grace": 0.0, "load_limit": settings.load_limit}
        llm = FleetLLM(path, options_for(path, settings), make_launchers(settings), **limits)
    except ModelError as error:
        return Checked(None, (), [*faults, str(error)])
    with llm:
        llm.fleet.settle()
        replicas = llm.fleet.report()
        identity = llm.identity().id
    for one in replicas:
        if one["state"] != "ready":
            faults.append(f"replica {one['replica']} is not ready: {one.get('last_loss', 'not started')}")
        elif abs(one["clock_ahead"]) > _MAX_CLOCK_SKEW:
            faults.append(
                f"the clock of replica {one['replica']} is off by {one['clock_ahead']:+.1f} seconds, so log times will"
                " differ; synchronize the clocks"
            )
    versions = sorted({one["version"] for one in replicas if "version" in one})
    if len(versions) > 1:
        faults.append(f"replicas have different versions ({', '.join(versions)}); update them to the same version")
    return Checked(identity, replicas, faults)


def _port(settings: Settings) -> list[str]:
    if settings.port == 0:
        return []
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            return [f"the front cannot listen at {settings.host} port {settings.port} ({error.strerror or error})"]
    return []


def _memory(settings: Settings) -> list[str]:
    assert settings.model is not None
    path = resolve(settings.model)
    needs = estimate_model(path, options_for(path, settings))
    n = settings.replicas if settings.ray is None else 0
    try:
        if n:
            check_memory(f"{n} replicas of {path.stem}", needs.times(n))
    except ApiError as error:
        return [error.message]
    return []
