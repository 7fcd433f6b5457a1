"""Front: a server whose models run on replicas."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from woolly.cluster.fleet_llm import FleetLLM
from woolly.cluster.launchers import AddressLauncher, ReplicaLauncher, local_launchers
from woolly.llm.model_options import ModelOptions
from woolly.machine.numa import numa_nodes
from woolly.runtime import is_gpu_backend, name_gpus, parse_layers
from woolly.serving.generation.admission import Admission
from woolly.serving.lifecycle import http_server
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.settings.table import Settings

_DEFAULT_CONCURRENT = 16  # concurrent answers of a replica that has not reported its limit
_GIVEN_BY_RAY = frozenset({"auto", "cuda"})  # backends and devices whose GPUs Ray hides from actors that request none

_COUNTS = {
    "moved": "Answers that continued on another replica.",
    "lost": "Lost replicas.",
    "stalled": "Replicas dropped because they did not respond.",
    "refused": "Replicas rejected because their bits differ.",
    "by_prefix": "Requests assigned to a replica with a cached prefix.",
    "by_load": "Requests assigned to the least loaded replica.",
}
_FIGURES = {
    "answers": "Finished answers.",
    "prompt_tokens": "Prompt tokens.",
    "cached_tokens": "Cached prompt tokens.",
    "predicted_tokens": "Answer tokens.",
}


def run(settings: Settings, end: Callable[[int], Any] | None = None) -> int:
    """Serve with replicas, like `serving.lifecycle.run` with a single process. SIGUSR1 replaces replicas one by one."""
    return http_server.run(settings, end, prepare=lambda app: prepare(app, settings))


def prepare(app: FastAPI, settings: Settings) -> None:
    """Configure an app to open its models on replicas and to report their state."""
    models: ModelManager = app.state.models

    def open_model(path: Path, options: ModelOptions) -> FleetLLM:
        limits = {"stall": settings.stall, "grace": settings.grace, "load_limit": settings.load_limit}
        return FleetLLM(path, options, make_launchers(settings), **limits)

    models.open_model = open_model
    # Replicas of one machine or GPU share its memory. GPUs are assigned round-robin.
    models.n_replicas = -(-settings.replicas // max(1, len(_devices(settings)))) if settings.ray is None else 0

    def n_running() -> int:
        """Return the number of concurrent answers of all replicas. For loading replicas, use the default."""
        given = [one.get("n_parallel", _DEFAULT_CONCURRENT) for _, one in _replicas(models)]
        each = max(given, default=_DEFAULT_CONCURRENT) if settings.parallel is None else int(settings.parallel)
        return each * (settings.replicas + len(settings.join))

    app.state.generator.admission = Admission(n_running, settings.max_queue)
    app.state.health.details = lambda: {"replicas": [_replica_fields(name, one) for name, one in _replicas(models)]}
    app.state.health.find_fault = lambda: _find_fault(models)
    app.state.stats.registry.register(_Collector(models))
    if sys.platform != "win32" and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, lambda *_: update(models))


def make_launchers(settings: Settings) -> list[ReplicaLauncher]:
    """Return the launchers for the replicas of the settings."""
    if settings.ray is not None:
        from woolly.cluster.ray_launcher import ray_launchers  # imported late: Ray is large and optional

        here = ray_launchers(settings.ray, settings.replicas, settings.threads, _may_use_cuda(settings))
    else:
        nodes = numa_nodes() if settings.pin else []
        here = local_launchers(settings.replicas, settings.threads, nodes, _devices(settings))
    return [*here, *(AddressLauncher(address, settings.secret or "") for address in settings.join)]


def _devices(settings: Settings) -> list[str]:
    """Return the GPUs to assign round-robin to local replicas; empty for a single GPU or a specified device."""
    is_open = settings.device is None or settings.device.strip().lower() == "auto"
    if not is_open or not _may_use_gpus(settings):
        return []
    found = name_gpus(settings.backend)
    return found if len(found) > 1 else []


def _may_use_gpus(settings: Settings) -> bool:
    is_cpu = settings.device is not None and settings.device.strip().lower() == "cpu"
    may_be_gpu = settings.backend == "auto" or is_gpu_backend(settings.backend)
    has_layers = parse_layers(settings.gpu_layers) != 0
    return may_be_gpu and has_layers and not is_cpu and settings.optimized_inference


def _may_use_cuda(settings: Settings) -> bool:
    """Return True if replicas need GPUs from Ray, which only hides NVIDIA GPUs."""
    named = {settings.backend, (settings.device or "auto").strip().lower()}
    return _may_use_gpus(settings) and named <= _GIVEN_BY_RAY


def update(models: ModelManager) -> None:
    """Start to replace the replicas of all loaded models, one by one."""

    def replace_all() -> None:
        for _, llm in _fleets(models):
            llm.fleet.update()

    threading.Thread(target=replace_all, name="woolly-update", daemon=True).start()


def _fleets(models: ModelManager) -> list[tuple[str, FleetLLM]]:
    slots = [(slot.info.name, slot.llm) for slot in models.loaded_models]
    return [(name, llm) for name, llm in slots if isinstance(llm, FleetLLM)]


def _replicas(models: ModelManager) -> Iterable[tuple[str, dict[str, Any]]]:
    return ((name, told) for name, llm in _fleets(models) for told in llm.fleet.report())


def _replica_fields(name: str, replica: dict[str, Any]) -> dict[str, Any]:
    return {"model": name, **{field: value for field, value in replica.items() if field != "figures"}}


def _find_fault(models: ModelManager) -> str | None:
    """Return the fault of the first model without a ready replica."""
    for name, llm in _fleets(models):
        if not llm.fleet.n_ready and not llm.is_closed:
            return f"no replica of {name} is ready; waiting for one to start"
    return None


class _Collector:
    """Metrics of the replicas, collected when Prometheus scrapes."""

    def __init__(self, models: ModelManager) -> None:
        self._models = models

    def describe(self) -> list[Metric]:
        """Return no metrics, because they are unknown at registration."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Yield the counters of the fleets, and the metrics of each replica."""
        fleets = _fleets(self._models)
        for name, help in _COUNTS.items():
            metric = CounterMetricFamily(f"woolly_replicas_{name}", help, labels=["model"])
            for model, llm in fleets:
                metric.add_metric([model], llm.fleet.counts[name])
            yield metric
        replicas = [(model, one) for model, llm in fleets for one in llm.fleet.report()]
        labels = ["model", "replica"]
        is_ready = GaugeMetricFamily("woolly_replica_ready", "1 if a replica accepts requests.", labels=labels)
        n_open = GaugeMetricFamily("woolly_replica_open", "Open requests of a replica.", labels=labels)
        for model, one in replicas:
            is_ready.add_metric([model, one["replica"]], one["state"] == "ready")
            n_open.add_metric([model, one["replica"]], one["open"])
        yield is_ready
        yield n_open
        for figure, help in _FIGURES.items():
            metric = CounterMetricFamily(f"woolly_replica_{figure}", help, labels=labels)
            for model, one in replicas:
                metric.add_metric([model, one["replica"]], one.get("figures", {}).get(figure, 0))
            yield metric
