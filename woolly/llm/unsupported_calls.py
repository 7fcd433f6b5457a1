"""Methods of other libraries, which raise an error with the corresponding Woolly method."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NoReturn

from woolly.errors import RequestError

# Methods of llama-cpp-python and vLLM, and the corresponding method here.
PEER_CALLS = {
    "create_chat_completion": "llm.chat(messages)",
    "create_chat_completion_openai_v1": "llm.chat(messages)",
    "create_completion": "llm.generate(prompt)",
    "create_embedding": "llm.embed(texts)",
    "encode": "llm.embed(texts), or llm.tokenize(text) for tokens",
    "invoke": "llm.chat(messages)",
    "n_ctx": "llm.ctx",
    "token_bos": "llm.tokenizer.bos_id",
    "token_eos": "llm.tokenizer.eos_id",
}

# Methods and attributes for the server and the command line, which completion in an editor does not list.
_INTERNAL = re.compile(
    "prepare|prepare_.*|driver|keeps_shared|known_disk_stats|decode_request|new_transcriber|count_tokens"
    "|tokenize_layout|tokenize_chat|image_tokens|audio_tokens|embeddings|ranks|classes|modalities|_[^_].*"
)


class UnsupportedCallsMixin:
    """Raises errors for unsupported calls: pickling, and methods of other libraries, with the corresponding method."""

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not _INTERNAL.fullmatch(name)]

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raise TypeError, because a loaded model has threads, mapped files and a GPU."""
        name = type(self).__name__
        raise TypeError(f"{name} objects cannot be pickled or copied; open the model in each process: {name}(path)")

    if not TYPE_CHECKING:  # a type checker would accept every attribute

        def __call__(self, *_: Any, **__: Any) -> NoReturn:
            """Raise RequestError, because an LLM is not callable, unlike in llama-cpp-python."""
            raise RequestError("an LLM is not callable; use llm.generate(prompt) or llm.chat(messages)")

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError; for a method of another library, the message names the corresponding method."""
            ours = PEER_CALLS.get(name)
            hint = f"; use {ours}" if ours else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)
