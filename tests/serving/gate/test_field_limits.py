"""Every field of every API at its limit and at ten times its limit, while another client's answer runs."""

import asyncio
import json
import os
import time

import numpy as np
import pytest

from tests.cases.field_limits import field_cases
from tests.cases.tiny import TINY, write_tiny
from tests.serving.conftest import WAIT, _app
from woolly.gguf import GGUFWriter, open_gguf
from woolly.sampling import Sampler

# Processor time, so that a busy machine changes nothing. The limits are many times what a sound field needs.
MAX_STALL = 3.0  # seconds of the process between two turns of the event loop
MAX_COST = 20.0  # seconds of the process per request
MAX_SENTENCE = 700  # characters

ENDLESS = {"prompt": "Once", "n_predict": 10**6, "ignore_eos": True, "context_shift": True, "stream": True}

N_VOCAB = 50_000


def write_large_vocabulary(path):
    """Write a tiny model with as many tokens as real ones have: some costs grow with the vocabulary."""
    with open_gguf(write_tiny(TINY["llama"], path.with_suffix(".small"))) as small:
        tokens = list(small.metadata["tokenizer.ggml.tokens"])
        tokens += [f"word{i}" for i in range(N_VOCAB - len(tokens))]
        types = list(small.metadata["tokenizer.ggml.token_type"])
        changed = {
            "llama.vocab_size": N_VOCAB,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": np.asarray(types + [1] * (N_VOCAB - len(types)), np.int32),
        }
        writer = GGUFWriter(path)
        for key in small.metadata:
            writer.add(key, changed.get(key, small.metadata[key]))
        for name, tensor in small.tensors.items():
            array = tensor.dequantize()
            if name in ("token_embd.weight", "output.weight"):
                array = np.resize(array, (N_VOCAB, array.shape[1]))
            writer.add_tensor(name, array)
        writer.write()
    return path


async def post(app, method, path, raw, on_part=None):
    """Send one request to the app itself: a client's own encoding would count as cost of the server."""
    parts = [{"type": "http.request", "body": raw, "more_body": False}]
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(raw))]
    found = [0, b""]

    async def receive():
        return parts.pop() if parts else await asyncio.Event().wait()

    async def send(message):
        if message["type"] == "http.response.start":
            found[0] = message["status"]
        else:
            found[1] = (found[1] + message.get("body", b""))[:20_000]
            if on_part is not None:
                on_part()

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "root_path": "", "scheme": "http", "query_string": b"", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8080), "state": {},
    }  # fmt: skip
    await app(scope, receive, send)
    return found


class Watch:
    """The largest stall of an event loop, and the progress of an endless stream on it."""

    def __init__(self, app):
        self._app = app
        self.stall, self.n_parts, self._tasks = 0.0, 0, []

    async def start(self):
        self._tasks = [asyncio.create_task(self._tick()), asyncio.create_task(self._stream())]

    async def stop(self):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _tick(self):
        while True:
            before = time.process_time()
            await asyncio.sleep(0.01)
            self.stall = max(self.stall, time.process_time() - before)

    async def _stream(self):
        while True:
            await post(self._app, "POST", "/completion", json.dumps(ENDLESS).encode(), self._count)
            await asyncio.sleep(0.01)

    def _count(self):
        self.n_parts += 1

    async def progress(self):
        """Wait until the stream has moved."""
        before, deadline = self.n_parts, time.monotonic() + WAIT
        while self.n_parts == before:
            assert time.monotonic() < deadline, "the other client's answer stands still"
            await asyncio.sleep(0.005)

    async def cost(self, case, raw):
        """Send one case; return its status, body and seconds of the process."""
        self.stall, before = 0.0, time.process_time()
        status, body = await asyncio.wait_for(post(self._app, case.method, case.path, raw), WAIT)
        cost = time.process_time() - before
        await self.progress()
        return status, body, cost


def sentence_of(body):
    """Return the message of an error in any API's shape."""
    value = json.loads(body)
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and key in value:
            value = value[key]
    return value


def faults_of(case, status, body, cost, stall):
    """Yield what is wrong with the reply to a case."""
    if status >= 500 and status not in (501, 503, 507):
        yield f"status {status}: {body[:300]!r}"
    if status >= 400:
        sentence = sentence_of(body)
        if not isinstance(sentence, str) or not sentence or "\n" in sentence or len(sentence) > MAX_SENTENCE:
            yield f"status {status} with {str(sentence)[:300]!r}, which is not one sentence"
    if stall > MAX_STALL:
        yield f"the event loop stood still for {stall:.1f} s"
    if cost > MAX_COST:
        yield f"it cost {cost:.1f} s"


def check_fields(client, cases):
    """Send each case beside an endless stream; assert that all are answered and nobody waits."""
    faults, n = [], 0
    watch = Watch(client.app)
    client.portal.call(watch.start)
    try:
        client.portal.call(watch.progress)
        for case in cases:
            raw = json.dumps(case.body).encode()
            begin = time.monotonic()
            try:
                status, body, cost = client.portal.call(watch.cost, case, raw)
            except (TimeoutError, asyncio.TimeoutError):
                faults.append(f"{case}: no reply within {WAIT} s")
                continue
            n += 1
            if os.environ.get("WOOLLY_SHOW_COSTS"):
                print(
                    f"{time.monotonic() - begin:7.2f} {cost:7.2f} {watch.stall:6.2f} {status} {case} {body[:150]!r}",
                    flush=True,
                )
            faults += (f"{case}: {fault}" for fault in faults_of(case, status, body, cost, watch.stall))
    finally:
        client.portal.call(watch.stop)
    assert not faults, f"{len(faults)} faults of {n} requests\n" + "\n".join(faults)
    return n


@pytest.fixture
def slower(monkeypatch):
    """A few milliseconds for each token, so that the endless stream leaves the processor to the others."""
    plain = Sampler.next
    monkeypatch.setattr(Sampler, "next", lambda *given: (time.sleep(0.003), plain(*given))[1])


def test_large_lists_and_objects_of_completions_stop_nobody(app_with, slower):
    with app_with() as client:
        cases = field_cases(client.app.openapi(), "tiny", only="/completions")
        large = (case for case in cases if case.size.startswith(("array x10", "object x10")))
        assert check_fields(client, large) > 15


@pytest.mark.rare
def test_fields_of_every_api_at_their_limits_stop_nobody(tmp_path, slower):
    models = tmp_path / "models"
    models.mkdir()
    write_large_vocabulary(models / "large.gguf")
    with _app(models, tmp_path) as client:
        assert check_fields(client, field_cases(client.app.openapi(), "large")) > 1000
