"""A replica whose replies cannot be right is given up, and its answers are computed elsewhere."""

import random
import socket
import threading
from dataclasses import replace

import numpy as np
import pytest

from tests.cluster.launchers import ThreadHandle, ThreadLauncher, link_of
from tests.cluster.stages import TOKEN, Process, on_threads, token_file, wait_for
from woolly import LLM, SamplingParams
from woolly.cluster.fleet_llm import FleetLLM
from woolly.cluster.replica import Replica
from woolly.errors import ModelError
from woolly.serving.settings.options import ModelOptions
from woolly.wire import Connection, Link, LostConnection, WireMessage

OPTIONS = ModelOptions(ctx=512, threads=1)
PARAMS = SamplingParams(seed=3, temperature=1.0, max_tokens=12, ignore_eos=True, logprobs=2, prompt_logprobs=1)


class CorruptingLauncher(ThreadLauncher):
    """A replica in a thread whose first process sends `corrupt(message)` in place of each message of a kind."""

    def __init__(self, kind, corrupt):
        super().__init__("corrupting")
        self.kind, self.corrupt = kind, corrupt

    def start(self):
        if self.n_starts > 0:
            return super().start()
        self.n_starts = 1
        ours, theirs = socket.socketpair()
        launcher = self

        class CorruptingLink(Link):
            def send(self, message):
                super().send(launcher.corrupt(message) if message.kind == launcher.kind else message)

        replica = Replica(CorruptingLink(Connection(theirs, None, is_client=False)))
        threading.Thread(target=replica.serve, daemon=True).start()
        return ThreadHandle(link_of(ours))


def with_fields(**fields):
    """Replaces fields of a message."""
    return lambda message: replace(message, fields={**message.fields, **fields})


def with_end(**end):
    """Replaces fields of the end of an answer."""
    return lambda message: with_fields(end={**message.fields.get("end", {"reason": "stop"}), **end})(message)


STEPS = {
    "token beyond the vocabulary": with_fields(tokens=[10**9]),
    "negative token": with_fields(tokens=[-1]),
    "token that is a text": with_fields(tokens=["a"]),
    "token that is true": with_fields(tokens=[True]),
    "tokens that are none": with_fields(tokens=5),
    "more tokens than were asked for": with_fields(tokens=[1] * 100),
    "text that is none": with_fields(text=5),
    "negative count": with_fields(computed=-1),
    "count that is not finite": with_fields(computed=float("inf")),
    "prefix of another shape": with_fields(prefix={"hit": 1}),
    "negative prefix": with_fields(prefix={"hit_tokens": -5, "miss_tokens": 1, "reason": None}),
    "log-probabilities of another shape": with_fields(logprobs=[[1, 2]]),
    "log-probability that is a text": with_fields(logprobs=[[1, "x", []]]),
    "log-probability above zero": with_fields(logprobs=[[1, 5.0, []]]),
    "log-probability that is not a number": with_fields(logprobs=[[1, float("nan"), []]]),
    "top token beyond the vocabulary": with_fields(logprobs=[[1, -1.0, [[10**9, -1.0]]]]),
    "unknown end": with_end(reason="bored"),
    "end that is none": with_fields(end=5),
    "stop that is none": with_end(stop=[1]),
    "negative draft": with_end(drafted=-3),
    "error of another shape": with_end(reason="error", error={"kind": "RequestError", "message": "x", "odd": 1}),
    "error that is none": with_end(reason="error", error=5),
    "no id": lambda message: WireMessage("step", {}),
    "id that is none": with_fields(id=[]),
    "rows in place of a step": lambda message: replace(message, kind="rows"),
}


@pytest.fixture(scope="module")
def whole(tiny_model):
    with LLM(tiny_model, ctx=512, threads=1) as llm:
        return llm.generate("hello", PARAMS)


@pytest.mark.parametrize("corrupt", STEPS.values(), ids=STEPS)
def test_answer_after_an_invalid_step_is_recomputed_by_another_replica(tiny_model, whole, corrupt, caplog):
    launcher = CorruptingLauncher("step", corrupt)
    with FleetLLM(tiny_model, OPTIONS, [launcher], stall=60.0) as llm:
        assert llm.generate("hello", PARAMS) == whole
        assert launcher.n_starts == 2 and llm.fleet.counts["lost"] == 1
    assert not [record for record in caplog.records if record.exc_info]
    (lost,) = [record for record in caplog.records if record.msg == "replica lost"]
    assert lost.reason.startswith(("invalid ", "unexpected ", "more than "))


@pytest.mark.parametrize(
    "corrupt",
    [
        with_fields(n_pages=-1),
        with_fields(n_pages="many"),
        with_fields(identity={"model": "x"}),
        with_fields(identity=None),
        with_fields(time="noon"),
        with_fields(pid=None),
        lambda message: WireMessage("ready"),
    ],
)
def test_replica_with_an_invalid_ready_message_does_not_serve(tiny_model, corrupt):
    launcher = CorruptingLauncher("ready", corrupt)
    with pytest.raises(ModelError, match="no replica is ready: invalid"):
        FleetLLM(tiny_model, OPTIONS, [launcher], stall=60.0)


def rows(change):
    return lambda message: replace(message, arrays=change(dict(message.arrays)))


@pytest.mark.parametrize(
    "corrupt",
    [
        rows(lambda arrays: {}),
        rows(lambda arrays: {"rows": arrays["rows"][:1]}),
        rows(lambda arrays: {"rows": arrays["rows"][:, :3]}),
        rows(lambda arrays: {"rows": arrays["rows"].reshape(-1)}),
        rows(lambda arrays: {"rows": arrays["rows"].astype(np.int32)}),
        rows(lambda arrays: {**arrays, "9": arrays["rows"]}),
        rows(lambda arrays: {**arrays, "-1": arrays["rows"]}),
        rows(lambda arrays: {**arrays, "0": arrays["rows"]}),
        with_fields(error=5),
    ],
)
def test_embeddings_of_the_wrong_shape_are_recomputed_by_another_replica(tiny_model, corrupt):
    texts = ["one", "two sheep", "three"]
    with LLM(tiny_model, ctx=512, threads=1) as llm:
        right = llm.embed(texts, pooling="mean")
    launcher = CorruptingLauncher("rows", corrupt)
    with FleetLLM(tiny_model, OPTIONS, [launcher], stall=60.0) as llm:
        np.testing.assert_array_equal(llm.embed(texts, pooling="mean"), right)
        assert launcher.n_starts == 2


@pytest.mark.parametrize(
    "corrupt",
    [with_fields(figures=5), with_fields(figures={"open": -1}), with_fields(time="x"), with_fields(time=None)],
)
def test_invalid_statistics_are_not_reported(tiny_model, corrupt):
    launcher = CorruptingLauncher("pong", corrupt)
    with FleetLLM(tiny_model, OPTIONS, [launcher], stall=0.4) as llm:
        wait_for(lambda: launcher.n_starts >= 2 and llm.fleet.n_ready)
        assert all(isinstance(one["state"], str) for one in llm.fleet.report())


def test_stage_exits_cleanly_on_sigterm_and_survives_invalid_messages(tiny_model, tmp_path):
    one = Process(tiny_model, token_file(tmp_path))
    host, _, port = one.name.rpartition(":")
    front = Connection(socket.create_connection((host, int(port))), TOKEN, is_client=True)
    front.receive(lambda silence: None)  # its welcome
    front.send_all([[b"\0\0\0\0", b"[" * 100_000]])
    with pytest.raises(LostConnection):
        front.receive(lambda silence: None)
    front.close()
    one.process.terminate()
    assert one.process.wait(60) == 0
    one.process.stdout.close()


def test_stage_logs_one_line_per_invalid_message(tiny_model):
    said = []
    deep = b'{"kind": "a", "arrays": {}, "fields": ' + b'{"a":' * 100_000
    with on_threads(tiny_model, 1, report=said.append) as (stage,):
        front = Connection(socket.create_connection(stage.address), TOKEN, is_client=True)
        front.receive(lambda silence: None)
        front.send_all([[len(deep).to_bytes(4, "big"), deep]])
        with pytest.raises(LostConnection):
            front.receive(lambda silence: None)
        front.close()
    assert [line for line in said if "nested too deeply" in line]


def changed(message, chance):
    """A message with one or two things in it that nobody would say."""
    fields, arrays = dict(message.fields), {name: np.array(array) for name, array in message.arrays.items()}
    numbers = (-1, 0, 1, 7, 1000, 2**31 - 1, -(2**31))
    for _ in range(chance.randrange(1, 3)):
        name = chance.choice([*fields, *arrays])
        if name in fields:
            fields[name] = fields[name] if name == "state" else chance.choice((*numbers, "x", None, [], True, 2**63))
            continue
        array = arrays[name].reshape(-1).copy()
        if array.size and chance.random() < 0.5:
            array[chance.randrange(array.size)] = chance.choice(numbers) if array.dtype == np.int32 else 255
            arrays[name] = array.reshape(arrays[name].shape)
        else:
            arrays[name] = chance.choice((array[: array.size // 2], np.concatenate([array, array]), array[:0]))
    return WireMessage(message.kind, fields, arrays)


def test_stage_survives_absurd_batches(tiny_model, tmp_path, monkeypatch):
    said, plain, token = {}, Connection.send, token_file(tmp_path)

    def send(self, message, *more):
        said.setdefault(message.kind, message)
        plain(self, message, *more)

    monkeypatch.setattr(Connection, "send", send)
    one = Process(tiny_model, token)
    with LLM(tiny_model, ctx=128, threads=1, stages=[one.name], stage_token_file=token) as llm:
        llm.generate("hello", SamplingParams(max_tokens=3, temperature=0))
    monkeypatch.undo()
    host, _, port = one.name.rpartition(":")
    front = Connection(socket.create_connection((host, int(port))), TOKEN, is_client=True)

    def replied():
        while (reply := front.receive(lambda silence: None)).kind == "alive":
            pass
        return reply.kind

    assert replied() == "welcome"
    for kind in ("open", "state"):
        front.send(said[kind])
        assert replied() == "done"
    run = replace(said["run"], fields={**said["run"].fields, "state": said["state"].fields["state"]})
    page = WireMessage(
        "write", {"state": run.fields["state"], "number": 0, "table": 0}, {"bytes": np.zeros(9, np.uint8)}
    )
    chance, kinds = random.Random(1), []
    for _ in range(300):
        message = changed(chance.choice((run, run, run, replace(page, kind="read"), page)), chance)
        front.send(message)
        kinds.append(replied())
    assert set(kinds) == {"done", "error"} and one.process.poll() is None
    front.send(run)
    assert replied() == "done"
    front.close()
    one.kill()
