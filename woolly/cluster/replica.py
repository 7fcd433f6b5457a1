"""Replica: a process that serves a model to a front.

    front                                replica
    open model, options, cpus, stall     ready, with the identity of its bits; or failed, with the reason
    add id, prompt, params, ...          step id, with new tokens, text and log-probabilities, up to the end
    cancel ids
    pool id, texts                       rows id; cancel_pooling id
    ping                                 pong, with metrics
    close                                (exits)
                                         leaving: asks the front to move its requests, and waits for close

A replica exits when its connection ends.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

from woolly import __version__
from woolly.cluster.serialization import PROTOCOL, read_marks, read_params, write_error, write_logprobs
from woolly.engine import Chunk, Request, RequestOptions
from woolly.engine.pooling import PoolingJob
from woolly.engine.pooling.make_pooler import make_pooler
from woolly.errors import DeviceError, RequestError, WoollyError
from woolly.llm import LLM
from woolly.wire import Connection, Link, WireMessage

log = logging.getLogger("woolly.cluster")


class _Sent:
    """Part of an answer that was sent to the front."""

    def __init__(self) -> None:
        self.n_tokens = 0
        self.has_prefix = False


class Replica:
    """Serves one front until the link ends. The reader thread never computes, so it answers pings immediately."""

    def __init__(self, link: Link, started: float | None = None) -> None:
        self._link = link
        self.fault: DeviceError | None = None  # fault that prevents further computation
        self._llm: LLM | None = None
        self._requests: dict[int, Request] = {}
        self._jobs: dict[int, PoolingJob] = {}
        self._unwanted: set[int] = set()  # cancelled before they were prepared
        self._preparing: set[int] = set()
        self._opening: threading.Thread | None = None
        self._is_over = False
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="woolly-prepare")  # compiling a grammar takes a while
        self._started = time.monotonic() if started is None else started
        self._answers = self._prompt = self._cached = self._predicted = 0
        self._does: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "open": self._do_open,
            "ping": self._do_ping,
            "add": self._do_add,
            "cancel": self._do_cancel,
            "end_reasoning": self._do_end_reasoning,
            "pool": self._do_pool,
            "cancel_pooling": self._do_cancel_pooling,
        }

    def serve(self) -> None:
        """Handle messages of the front; close the model and return when the front closes or disconnects.

        An invalid message ends the connection. A listening process then waits for the next front.
        """
        for message in self._link:
            if message.kind == "close":
                break
            try:
                self._does[message.kind](message.fields)
            except Exception as error:
                said = {"kind": message.kind[:40], "reason": f"{type(error).__name__}: {error}"}
                log.warning("received an invalid message from the front", extra=said)
                log.debug("where", exc_info=error)
                break
        with self._lock:
            self._is_over = True  # the loading thread closes a model that is still loading
        if self._llm is not None:
            self._llm.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._link.finish()

    def wait(self) -> None:
        """Wait until a model that was loading when `serve` returned is closed."""
        if self._opening is not None:
            self._opening.join()

    def leave(self) -> None:
        """Ask the front to move the running requests and close. Ends the link if no model is open."""
        with self._lock:
            if self._llm is None:
                self._link.close()  # no request runs here, because fronts only use ready replicas
            else:
                self._link.send(WireMessage("leaving"))

    def _do_open(self, message: Mapping[str, Any]) -> None:
        # Longer than the timeout of the front, so that a reconnecting front does not wait for its old connection.
        if "stall" in message:  # older fronts do not send it during an update
            self._link.end_without(2 * message["stall"])
        self._opening = threading.Thread(target=self._open, args=(message,), name="woolly-open", daemon=True)
        self._opening.start()

    def _open(self, message: Mapping[str, Any]) -> None:
        llm = None
        try:
            if message.get("cpus") and hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, message["cpus"])  # for this thread and all threads that it starts
            options = {name: _tuples(value) for name, value in message["options"].items()}
            llm = LLM(
                message["model"], **options | {"check_memory": False}
            )  # the front has checked the memory of all replicas
            ready = _ready(llm)
        except BaseException as error:
            if llm is not None:
                llm.close()
            if isinstance(error, DeviceError) and error.code == "lost":
                self.fault = error
            self._link.send(WireMessage("failed", {"error": write_error(error)}))
            return
        with self._lock:
            self._llm = None if self._is_over else llm
            if self._llm is not None:
                self._link.send(ready)
        if self._llm is None:
            llm.close()

    def _do_ping(self, message: Mapping[str, Any]) -> None:
        figures = {
            "answers": self._answers,
            "open": len(self._requests),
            "prompt_tokens": self._prompt,
            "cached_tokens": self._cached,
            "predicted_tokens": self._predicted,
            "seconds": time.monotonic() - self._started,
        }
        self._link.send(WireMessage("pong", {"time": time.time(), "figures": figures}))

    def _do_add(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            self._preparing.add(message["id"])
        if any(
            message["params"].get(name) for name in ("json_schema", "json_object", "choice", "regex", "lark", "grammar")
        ):
            self._pool.submit(self._add, message)
        else:
            self._add(message)

    def _add(self, message: Mapping[str, Any]) -> None:
        id = message["id"]
        try:
            llm = self._model()
            params = read_params(message["params"])
            options = RequestOptions(
                priority=message["priority"],
                score_only=message["score_only"],
                shown=frozenset(message["shown"]),
                salt=bytes.fromhex(message["salt"]),
                reasoning_markers=read_marks(message.get("reasoning")),
                n_shared=message.get("shared", 0),
                reasoning_ends=message["reasoning_ends"],
                group=message["group"],
                replay_tokens=message["replay_tokens"],
            )
            request = llm.engine.new_request(message["prompt"], params, options)
            request.reports_progress = True
            with self._lock:
                self._preparing.discard(id)
                if id in self._unwanted:
                    self._unwanted.discard(id)
                    return
                self._requests[id] = request
            llm.driver.add([request], partial(self._step, id, _Sent()))
        except BaseException as error:
            self._requests.pop(id, None)
            self._link.send(WireMessage("step", {"id": id, "end": {"reason": "error", "error": write_error(error)}}))
            if not isinstance(error, WoollyError):
                raise

    def _do_cancel(self, message: Mapping[str, Any]) -> None:
        found = []
        with self._lock:
            for id in message["ids"]:
                if id in self._requests:
                    found.append(self._requests[id])
                elif id in self._preparing:
                    self._unwanted.add(id)
        if found and self._llm is not None:
            self._llm.driver.cancel(found)

    def _do_end_reasoning(self, message: Mapping[str, Any]) -> None:
        """End the reasoning of an answer. The engine thread replies with the token count before the next token."""
        id = message["id"]
        request = self._requests.get(id)

        def end(_: Any) -> None:
            at = None
            if request is not None and request.finish_reason is None and request.sampler.end_reasoning():
                at = request.sampler.reasoning_ends[-1]
            self._link.send(WireMessage("reasoning", {"id": id, "at": at}))

        def ask() -> None:
            try:
                self._model().driver.call(end)
            except WoollyError:  # the model is closed, so the front moves the answer
                self._link.send(WireMessage("reasoning", {"id": id, "at": None}))

        self._pool.submit(ask)  # the reader must not wait for a step

    def _step(self, id: int, sent: _Sent, request: Request, chunk: Chunk) -> None:
        """Send the output of a step of a request. Called by the engine thread."""
        if self._is_lost(chunk.error):
            return
        step: dict[str, Any] = {"id": id, "computed": request.n_computed}
        if tokens := request.output[sent.n_tokens :]:
            step["tokens"] = tokens
            sent.n_tokens += len(tokens)
        if chunk.text:
            step["text"] = chunk.text
        if chunk.logprobs:
            step["logprobs"] = write_logprobs(chunk.logprobs)
        if not sent.has_prefix and request.prefix is not None:
            sent.has_prefix = True
            step["prefix"] = asdict(request.prefix)
        if chunk.finish_reason is not None:
            step["end"] = self._ended(id, request, chunk)
        self._link.send(WireMessage("step", step))

    def _is_lost(self, error: BaseException | None) -> bool:
        """Return True if the GPU failed. This process then exits, and the front starts another replica."""
        if isinstance(error, DeviceError) and error.code == "lost":
            self.fault = error
            self._link.close()
        return self.fault is not None

    def _ended(self, id: int, request: Request, chunk: Chunk) -> dict[str, Any]:
        with self._lock:
            self._requests.pop(id, None)
        self._answers += 1
        self._prompt += len(request.prompt)
        self._cached += 0 if request.prefix is None else request.prefix.hit_tokens
        self._predicted += len(request.output)
        end: dict[str, Any] = {
            "reason": chunk.finish_reason,
            "stop": chunk.stop_reason,
            "drafted": request.n_drafted,
            "accepted": request.n_accepted,
            "shifts": request.n_shifts,
        }
        if request.prompt_logprobs:
            end["prompt_logprobs"] = write_logprobs(request.prompt_logprobs)
        if chunk.error is not None:
            end["error"] = write_error(chunk.error)
            if self._llm is not None and self._llm.is_closed:  # the engine has stopped, so later requests would fail
                self._link.close()
        return end

    def _do_pool(self, message: Mapping[str, Any]) -> None:
        id = message["id"]
        try:
            llm = self._model()
            loaded = llm._loaded[0]
            pooler = make_pooler(loaded.program, loaded.file.tensors, message["pooling"])
            if pooler is None:
                raise RequestError(
                    "this model computes neither embeddings nor scores; use an embedding or reranking model",
                    code="wrong_model",
                    field="model",
                )
            job = PoolingJob(message["texts"], pooler)
            job.on_progress = lambda n_done: self._link.send(WireMessage("progress", {"id": id, "done": n_done}))
            self._jobs[id] = job
            llm.driver.start_pooling(job, partial(self._pooled, id, job))
        except BaseException as error:
            self._jobs.pop(id, None)
            self._link.send(WireMessage("rows", {"id": id, "error": write_error(error)}))

    def _pooled(self, id: int, job: PoolingJob) -> None:
        self._jobs.pop(id, None)
        if self._is_lost(job.error):
            return
        try:
            rows = job.result()
            tables = {str(index): table for index, table in job.tables.items()}
            self._link.send(WireMessage("rows", {"id": id}, {"rows": rows, **tables}))
        except BaseException as error:
            self._link.send(WireMessage("rows", {"id": id, "error": write_error(error)}))

    def _do_cancel_pooling(self, message: Mapping[str, Any]) -> None:
        job = self._jobs.get(message["id"])
        if job is not None and self._llm is not None:
            self._llm.driver.cancel_pooling(job)

    def _model(self) -> LLM:
        if self._llm is None:
            raise RequestError("the replica has not loaded its model yet; try again")
        return self._llm


def _ready(llm: LLM) -> WireMessage:
    about = llm.engine.program.about
    fields = {
        "protocol": PROTOCOL,
        "version": __version__,
        "identity": asdict(llm.identity()),
        "ctx": llm.ctx,
        "n_pages": llm.engine.scheduler.pages.n_pages,
        "n_parallel": llm.engine.scheduler.max_running,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "device": about.device or "CPU",
        "level": about.level,
        "threads": about.threads,
        "time": time.time(),
    }
    return WireMessage("ready", fields)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value


def main() -> None:
    """Serve the front at the other end of a socket, whose file descriptor is the argument."""
    for name in ("SIGINT", "SIGHUP", "SIGUSR1"):
        if hasattr(signal, name):  # Windows has only SIGINT
            # A terminal sends these signals to all processes, but the front decides.
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    warnings.simplefilter("ignore")  # the front opens the same file and reports its warnings
    Replica(Link(Connection(socket.socket(fileno=int(sys.argv[1])), None, is_client=False))).serve()


if __name__ == "__main__":
    main()
