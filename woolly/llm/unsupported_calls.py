"""Method names of other libraries: each raises an error with Woolly's name."""

from __future__ import annotations

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


class UnsupportedCallsMixin:
    """Errors with the right name for methods of other libraries."""

    if not TYPE_CHECKING:  # a type checker would accept every attribute

        def __call__(self, *_: Any, **__: Any) -> NoReturn:
            """Raises RequestError: an LLM is not a function, unlike llama-cpp-python's."""
            raise RequestError(
                "an LLM cannot be called: llm.generate(prompt) continues a text, llm.chat(messages) answers"
            )

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError, with the corresponding method if other libraries have this one."""
            ours = PEER_CALLS.get(name)
            hint = f"; use {ours}" if ours else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)
