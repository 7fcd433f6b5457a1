"""Log lines of requests: the reason of an error, ignored fields, and no polling."""

import asyncio
import logging
import re
import socket

import pytest
import uvicorn

from woolly.serving import Settings
from woolly.serving.lifecycle.app import create_app
from woolly.serving.lifecycle.http_server import _Server
from woolly.serving.model_manager.manager import NO_MODEL


@pytest.fixture
def lines(caplog):
    """Returns the fields of the lines for requests to a path."""
    caplog.set_level(logging.DEBUG, "woolly.serving")
    return lambda path: [vars(one) for one in caplog.records if getattr(one, "path", None) == path]


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/v1/completions", {"prompt": "sheep", "top_p": 2}, "invalid_request: top_p is 2"),
        ("/v1/completions", {"prompt": "sheep", "model": "wolf"}, "model_not_found: unknown model 'wolf'"),
        ("/completion", {"prompt": []}, "invalid_request: the prompt is empty"),
        ("/v1/moderations", {"input": "a"}, "not_supported: POST /v1/moderations: moderation is not supported"),
    ],
)
def test_log_line_of_a_rejected_request_has_the_reason(client, lines, path, body, reason):
    assert 400 <= client.post(path, json=body).status_code < 500
    (line,) = lines(path)
    assert line["reason"].startswith(reason) and "sheep" not in line["reason"]


def test_gate_rejection_has_its_reason_too(app_with, lines):
    with app_with(api_key=("k",)) as client:
        client.get("/v1/models")
    (line,) = lines("/v1/models")
    assert line["reason"].startswith("authentication_failed: ")


@pytest.mark.parametrize("path", ["/slots", "/health", "/metrics", "/api/v1/performance/stats"])
def test_polling_is_logged_only_at_debug(client, lines, path):
    client.get(path)
    (line,) = lines(path)
    assert line["levelno"] == (logging.DEBUG if line["status"] < 400 else logging.INFO)
    assert path in ("/health", "/slots") or line["status"] == 200


def test_page_files_are_logged_only_at_debug(client, lines):
    page = client.get("/", headers={"accept": "text/html"}).text
    path = "/" + re.search(r'"(web/[^"]+\.js)"', page)[1]
    assert client.get(path).status_code == 200
    assert client.get("/web/x/none.js").status_code == 404
    assert [line["levelno"] for one in (path, "/", "/web/x/none.js") for line in lines(one)] == [
        logging.DEBUG,
        logging.INFO,
        logging.INFO,
    ]


def test_server_without_models_says_how_to_get_one(tmp_path, caplog):
    settings = Settings(models_dir=tmp_path, sessions_file=tmp_path / "sessions.db", batches_dir=tmp_path / "batches")
    app = create_app(settings)
    with socket.socket() as listener:
        asyncio.run(_Server(uvicorn.Config(app, log_config=None), app, settings, listener, None)._load())
    assert caplog.messages[-1] == NO_MODEL


def test_other_requests_are_logged_at_info_without_a_reason(client, lines):
    client.get("/v1/models")
    (line,) = lines("/v1/models")
    assert line["levelno"] == logging.INFO and line["reason"] is None
