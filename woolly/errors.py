"""Every exception that Woolly raises on purpose.

    WoollyError
    ├── GGUFError         a file that is not a sound GGUF file: names the file, the offset, what was expected
    ├── UnsupportedError  sound, but not something that Woolly can do yet: names what and where
    ├── TokenizerError    a vocabulary that cannot be built, or text that cannot be encoded
    ├── TemplateError     a chat template that is broken, hostile, or rejects the conversation
    ├── PlanError         a model file that puts steps together wrongly: names the model's own line
    ├── ModelError        metadata or weights that do not make the model they claim to be
    ├── RequestError      a parameter, prompt or length that cannot be served: names it and its limits
    ├── CallbackError     a caller's own processor, sampler or hook that failed: names it; the cause is its __cause__
    └── StoreError        a model that cannot be found, fetched or verified

Each message is one sentence for the person who caused it, and says what would be right.
"""

__all__ = [
    "CallbackError",
    "GGUFError",
    "ModelError",
    "PlanError",
    "RequestError",
    "StoreError",
    "TemplateError",
    "TokenizerError",
    "UnsupportedError",
    "WoollyError",
]


class WoollyError(Exception):
    """The root: catch this to catch everything that Woolly raises on purpose."""


class GGUFError(WoollyError):
    """A file that is not a sound GGUF file."""


class UnsupportedError(WoollyError):
    """Something sound that Woolly does not support yet."""


class TokenizerError(WoollyError):
    """A vocabulary that cannot be built, or text that cannot be encoded."""


class TemplateError(WoollyError):
    """A chat template that is broken, hostile, or rejects the conversation."""


class PlanError(WoollyError):
    """Steps of a model that do not fit together."""


class ModelError(WoollyError):
    """Metadata or weights that do not make the model they claim to be."""


class RequestError(WoollyError):
    """A request whose parameters, prompt or length cannot be served."""


class CallbackError(WoollyError):
    """A caller's own function that raised, or gave what cannot be used."""


class StoreError(WoollyError):
    """A model that cannot be found, fetched or verified."""
