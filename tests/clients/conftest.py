"""A server in this process whose tiny model writes what a test tells it to, for the clients that people use."""

import contextlib
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import uvicorn

from tests.cases.tiny import TINY, byte_vocabulary, write_tiny
from woolly.chat import ChatFormat
from woolly.serving import Settings, create_app

TEMPLATE = (
    "{% if enable_thinking is defined %}[{{ enable_thinking }}]{% endif %}{{ tools }}"
    "{# <think> <tool_call></tool_call> #}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.reasoning_content %}{{ '<think>' + message.reasoning_content + '</think>' }}{% endif %}"
    "{{ message.content }}{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class Scripted:
    """The server: `url`, and `says` or `script` for the next answers."""

    def __init__(self, url: str, app: Any) -> None:
        self.url = url
        self.app = app
        self.script: Callable[[ChatFormat], str] | None = None  # the text of an answer, by the prompt
        self._lay_out = app.state.generator.format_chat
        app.state.generator.format_chat = self._scripted

    def says(self, text: str | None) -> None:
        """Makes the model write this text; None: what it likes."""
        generator = self.app.state.generator
        generator._defaults = replace(generator._defaults, regex=None if text is None else re.escape(text))

    async def _scripted(self, *given: Any) -> ChatFormat:
        layout = await self._lay_out(*given)
        if self.script is None or layout.params.structure is not None:
            return layout
        return replace(layout, params=replace(layout.params, regex=re.escape(self.script(layout))))


def _vocabulary() -> dict[str, Any]:
    """The vocabulary of bytes with one word more, of which fillers are made: agents' prompts are long."""
    vocabulary = byte_vocabulary()
    merges = ["s h", "e e", "sh ee", "shee p", "Ġ sheep"]
    at = next(i for i, token in enumerate(vocabulary["tokenizer.ggml.tokens"]) if token.startswith("<|pad"))
    tokens, types = list(vocabulary["tokenizer.ggml.tokens"]), vocabulary["tokenizer.ggml.token_type"].copy()
    tokens[at : at + len(merges)] = [merge.replace(" ", "") for merge in merges]
    types[at : at + len(merges)] = 1
    return vocabulary | {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [*vocabulary["tokenizer.ggml.merges"], *merges],
    }


@contextlib.contextmanager
def serve(folder, template, ctx=65536):
    # One head of one layer: agents send 40,000 tokens of a vocabulary of bytes.
    shape = {"n_layers": 1, "n_heads": 1, "n_kv_heads": 1, "width": 32}
    small = replace(TINY["llama"], context=ctx, shared_metadata=_vocabulary(), **shape)
    write_tiny(small, folder / "tiny.gguf")
    settings = Settings(
        models_dir=folder,
        chat_template=template,
        ctx_size=ctx,
        kv_tokens=ctx,
        temp=0,
        sessions_file=folder / "sessions.db",
        batches_dir=folder / "batches",
    )
    app = create_app(settings)
    with listening(app) as url:
        yield Scripted(url, app)


@contextlib.contextmanager
def listening(app):
    """Serves an app on a free port of this process, and gives its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(30)


@pytest.fixture(scope="session")
def running(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("thinking"), TEMPLATE) as running:
        yield running


@pytest.fixture(scope="session")
def thoughtless(tmp_path_factory):
    """A server whose template has no thoughts, in which a random model would stay for ever."""
    with serve(tmp_path_factory.mktemp("thoughtless"), re.sub("</?think>", "", TEMPLATE)) as running:
        yield running


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A server whose context is soon full."""
    with serve(tmp_path_factory.mktemp("small"), TEMPLATE, ctx=512) as running:
        yield running


@pytest.fixture
def scripted(running):
    yield running
    running.says(None)
