"""Spans of requests, by OpenTelemetry's conventions."""

import sys

import pytest

from woolly.errors import RequestError
from woolly.serving import Settings
from woolly.serving.observability.traces import Traces, check_telemetry

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Recorder:
    """A tracer, a meter, and all that they make."""

    def __init__(self):
        self.spans, self.events, self.states, self.ends, self.figures = [], [], [], [], []

    def start_span(self, name, **given):
        self.spans.append((name, given))
        return self

    def add_event(self, name, timestamp):
        self.events.append((name, timestamp))

    def set_status(self, status):
        self.states.append(status)

    def end(self, at):
        self.ends.append(at)

    def create_histogram(self, name, unit, description):
        recorder = self

        class Histogram:
            def record(self, value, labels):
                recorder.figures.append((name, value, labels))

        return Histogram()


@pytest.fixture
def made():
    recorder = Recorder()
    return recorder, Traces(recorder, recorder, lambda headers: headers.get("traceparent"), "ERROR")


def test_chat_is_one_span_below_its_parent(app_with, made):
    recorder, traces = made
    with app_with() as client:
        client.app.state.traces = traces
        messages = [{"role": "user", "content": "secret words"}]
        body = {"model": "tiny", "messages": messages, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
        reply = client.post("/v1/chat/completions", json=body, headers={"traceparent": PARENT})
        assert reply.status_code == 200
        assert client.get("/v1/models").status_code == 200  # asks no model
    ((name, given),) = recorder.spans
    usage = reply.json()["usage"]
    assert (name, given["context"]) == ("chat tiny", PARENT)
    fields = given["attributes"]
    assert fields["gen_ai.operation.name"] == "chat" and fields["gen_ai.response.model"] == "tiny"
    assert fields["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert fields["gen_ai.usage.output_tokens"] == 3 and fields["gen_ai.response.finish_reasons"] == ["length"]
    ((event, at),) = recorder.events
    assert event == "gen_ai.first_token" and given["start_time"] <= at <= recorder.ends[0]
    assert "secret" not in repr(recorder.spans)
    assert sorted({name for name, *_ in recorder.figures}) == [
        "gen_ai.server.request.duration",
        "gen_ai.server.time_per_output_token",
        "gen_ai.server.time_to_first_token",
    ]


def test_rejected_request_is_a_span_with_its_status(app_with, made):
    recorder, traces = made
    with app_with() as client:
        client.app.state.traces = traces
        assert client.post("/v1/completions", json={"model": "nobody", "prompt": "x"}).status_code == 404
    ((name, given),) = recorder.spans
    assert name == "text_completion nobody" and given["attributes"]["error.type"] == "404"
    assert not recorder.states  # a mistake of the client is not a failure of the server
    assert [figure[0] for figure in recorder.figures] == ["gen_ai.server.request.duration"]
    assert "nobody" not in repr(recorder.figures)


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(RequestError, match=r"pip install 'woolly-llm\[otel\]'"):
        Settings(otlp_endpoint="http://127.0.0.1:4318")


def test_invalid_address_is_rejected():
    with pytest.raises(RequestError, match="an address such as"):
        check_telemetry("collector")
