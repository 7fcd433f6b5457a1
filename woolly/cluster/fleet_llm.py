"""FleetLLM: an LLM whose requests run on replicas.

The front opens the model file without weights, for its tokenizer, template and limits. The front renders, tokenizes,
validates and replies with the code of a single-process server; only the tokens come from replicas.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from woolly.cluster.fleet import Fleet
from woolly.cluster.launchers import ReplicaLauncher
from woolly.cluster.pending_requests import ForwardedOptions, PendingAnswer, PendingPooling, PendingRequest
from woolly.engine import Engine, EngineDriver, Request, RequestOptions
from woolly.engine.pooling import PoolingJob
from woolly.engine.threads.driver import Listener
from woolly.errors import RequestError
from woolly.llm import LLM
from woolly.llm.bit_identity import Identity
from woolly.llm.model_options import ModelOptions
from woolly.llm.requests import Prompt
from woolly.runtime import is_gpu_backend, parse_max_running
from woolly.sampling import SamplingParams
from woolly.store.file_digest import digest_of

_PATIENCE = 10.0  # total seconds to wait for replies, which replicas send between two steps


class FleetLLM(LLM):
    """LLM that is served by the replicas of `fleet`."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        options: ModelOptions,
        launchers: Sequence[ReplicaLauncher],
        *,
        stall: float = 10.0,
        grace: float = 30.0,
        load_limit: float = 1800.0,
    ) -> None:
        """Start a replica with every launcher and wait for them. Raise ModelError if no replica is ready."""
        # Opened only for its tokenizer and validation, so it uses no GPU.
        backend = "cpu" if options.backend == "auto" or is_gpu_backend(options.backend) else options.backend
        bare = replace(options, backend=backend, device=None, gpu_layers=None, weight_memory="0")
        bare = replace(bare, speculation="none", cache_disk=None, cache_disk_folder=None)
        super().__init__(model, **vars(bare) | {"check_memory": False})  # replicas need the memory, not the front
        opening = {"model": str(self.path), "options": _plain(replace(options, ctx=self.ctx))}
        self._loaded[0] = replace(self._loaded[0], compile=None)  # replicas cannot change their adapters
        try:
            digest_of(self._loaded[0].file.paths)  # cached, so that replicas need not read the complete file
            n_parallel = parse_max_running("max_running", options.max_running)
            self.fleet = Fleet(
                launchers, opening, n_parallel=n_parallel, stall=stall, grace=grace, load_limit=load_limit
            )
            self.fleet.start()
        except BaseException:
            super().close()
            raise
        self._forwarded: weakref.WeakKeyDictionary[Request, ForwardedOptions] = weakref.WeakKeyDictionary()
        self._identity = self.fleet.identity
        self.keeps_shared = options.cache_disk is not None
        self.driver = _FleetDriver(self.driver.engine, self.fleet, self._forwarded)

    @property
    def place(self) -> str:
        """Device of the replicas."""
        known = [one for one in self.fleet.report() if "device" in one]
        return " and ".join(dict.fromkeys(f"{one['device']}, {one['level']}" for one in known)) or "no replica"

    def identity(self) -> Identity:
        """Return the identity of all replicas."""
        assert self.fleet.identity is not None
        return self.fleet.identity

    def prepare_score(self, prompt: Prompt) -> Request:
        """Return a scoring request, like `LLM.prepare_score`."""
        request = super().prepare_score(prompt)
        self._forwarded[request] = ForwardedOptions(score_only=True)
        return request

    def _requests(self, ids: Sequence[int], params: SamplingParams, options: RequestOptions) -> list[Request]:
        requests = super()._requests(ids, params, options)
        for request in requests:
            self._forwarded[request] = ForwardedOptions(
                options.score_only,
                options.shown,
                options.salt,
                options.reasoning_markers,
                options.n_shared,
                options.reasoning_ends,
            )
        return requests


class _FleetDriver(EngineDriver):
    """Submits requests and jobs to a fleet. `call` runs on the engine of the front, which computes nothing."""

    def __init__(
        self, engine: Engine, fleet: Fleet, forwarded: weakref.WeakKeyDictionary[Request, ForwardedOptions]
    ) -> None:
        super().__init__(engine)
        self._fleet = fleet
        self._forwarded = forwarded
        self._pending: weakref.WeakKeyDictionary[Request | PoolingJob, PendingRequest] = weakref.WeakKeyDictionary()

    def add(self, requests: Iterable[Request], listener: Listener) -> None:
        """Submit requests to replicas. A thread of the fleet calls the listener."""
        n_vocab = self.engine.program.plan.n_tokens  # raises if the engine is closed
        for request in requests:
            if request.hooks or request.params.logits_processors or request.params.custom_sampler:
                raise RequestError(
                    "replicas do not support callbacks (hooks, logits_processors, custom_sampler); remove them"
                )
            pending = PendingAnswer(request, listener, self._forwarded.get(request, ForwardedOptions()), n_vocab)
            self._pending[request] = pending
            self._fleet.add(pending)

    def cancel(self, requests: Sequence[Request], *, wait: bool = False) -> None:
        """End unfinished requests."""
        for request in requests:
            request.is_unwanted = True
            if (pending := self._pending.get(request)) is not None:
                self._fleet.cancel(pending)

    def end_reasoning(self, requests: Sequence[Request]) -> bool:
        """End the reasoning of answers. A replica that takes an answer over ends its reasoning at the same token.

        Raise RequestError if no replica is computing an answer, or if the replica does not respond.
        """
        answers = [one for request in requests if isinstance(one := self._pending.get(request), PendingAnswer)]
        asked = [one for one in answers if self._end_reasoning(one)]
        until = time.monotonic() + _PATIENCE
        replies = [one.wait_for_reasoning_end(max(0.0, until - time.monotonic())) for one in asked]
        n_over = sum(one.is_over for one in answers if one not in asked)
        if None in replies or len(asked) + n_over < len(requests):
            raise RequestError(
                "no replica confirmed the end of reasoning: it is busy, or the request is being moved; try again"
            )
        return any(replies)

    def _end_reasoning(self, pending: PendingAnswer) -> bool:
        """Ask the replica to end the reasoning.

        Return False if there is no replica, or if the replica is replaying tokens.
        """
        message = pending.end_reasoning_message()  # created first, because a later replica does not know the id
        return not pending.is_repeating and self._fleet.send(pending, message)

    def start_pooling(self, job: PoolingJob, on_end: Callable[[], None]) -> None:
        """Submit a job to a replica. A thread of the fleet calls `on_end`."""
        plan = self.engine.program.plan
        job.on_end = on_end
        is_given = plan.result == "logits" or plan.pooling == "none"  # otherwise the plan has a pooling type
        pending = self._pending[job] = PendingPooling(job, job.pooler.pooling if is_given else None)
        self._fleet.add(pending)

    def cancel_pooling(self, job: PoolingJob) -> None:
        """End an unfinished job."""
        job.is_unwanted = True
        if (pending := self._pending.get(job)) is not None:
            self._fleet.cancel(pending)

    def close(self) -> None:
        """Stop the replicas, then the engine of the front."""
        self._fleet.close()
        super().close()


def _plain(options: ModelOptions) -> dict[str, Any]:
    """Return the options as JSON values."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
