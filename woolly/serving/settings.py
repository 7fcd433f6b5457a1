"""Settings: everything that can be said to the server, in one table that flags, environment and file are read by."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from woolly.errors import RequestError
from woolly.store import models_folder

if TYPE_CHECKING:
    from woolly.engine import SamplingParams

__all__ = ["Settings", "groups"]

# What settings are about, by the first one of each; the panels of --help and the tables of docs/serving.md.
_GROUPS = {
    "model": "Models",
    "ctx_size": "How a model runs",
    "host": "The network",
    "api_key": "Safety",
    "rate_limit": "Limits",
    "sessions_file": "Sessions",
    "n_predict": "What a request gets that does not say otherwise",
    "metrics": "What is shown",
}


def _setting(default: Any, flags: str, help: str, shown: str | None = None) -> Any:
    """A field: its flags, what it does, and how its default is told where None stands for one."""
    return field(default=default, metadata={"flags": tuple(flags.split()), "help": help, "shown": shown})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `woolly serve` runs with; a value that cannot be is refused by its name.

    The type of a field says how text is read: a tuple is a list separated by commas.
    """

    # Models.
    model: str | None = _setting(
        None, "-m --model", "Model that answers first: a GGUF file or a name that was pulled.", "the only one there is"
    )
    models_dir: Path | None = _setting(  # noqa: RUF009
        None, "--models-dir", "Folder of GGUF files that clients may ask for.", "where `woolly pull` puts them"
    )
    alias: str | None = _setting(None, "-a --alias", "Name under which --model is known.", "its file's name")
    preload: tuple[str, ...] = _setting((), "--preload", "Further models that are loaded at the start.")
    models_max: int = _setting(1, "--models-max", "Models that are loaded at once; the longest unused makes room.")
    keep_alive: float = _setting(0.0, "--keep-alive", "Seconds after which an unused model is unloaded; 0: never.")
    load_wait: float = _setting(120.0, "--load-wait", "Seconds that a request waits for its model to be loaded.")

    # How a model runs.
    ctx_size: int | None = _setting(
        None, "-c --ctx-size --ctx", "Tokens of prompt and answer together, per request.", "the model's, at most 8192"
    )
    threads: int | None = _setting(None, "-t --threads", "Threads that compute.", "all physical cores")
    parallel: int = _setting(16, "-np --parallel", "Requests that run at once; others wait.")
    batch_size: int | None = _setting(None, "-b --batch-size", "Most tokens of one step, up to 512.", "512")
    ubatch_size: int | None = _setting(
        None, "-ub --ubatch-size", "As --batch-size; the smaller one counts.", "--batch-size"
    )
    cache_type_k: str | None = _setting(None, "-ctk --cache-type-k", "How keys are kept: f16, f32 or q8_0.", "f16")
    cache_type_v: str | None = _setting(
        None, "-ctv --cache-type-v", "How values are kept: as keys, both are one.", "--cache-type-k"
    )
    kv_tokens: int | None = _setting(
        None, "--kv-tokens", "Tokens that the cache holds for all requests.", "up to four contexts"
    )
    weight_memory: str | None = _setting(
        None, "--weight-memory", "Most memory for prepared weights, such as 600MB.", "no limit"
    )
    model_draft: str | None = _setting(
        None, "-md --model-draft", "Smaller model that guesses ahead, or prompt_lookup.", "no guessing"
    )
    draft_max: int = _setting(8, "--draft-max --draft", "Tokens that are guessed ahead at most.")
    optimized_inference: bool = _setting(
        True, "--use-optimized-inference/--no-optimized-inference", "Native kernels, or the reference backend."
    )
    chat_template: str | None = _setting(
        None, "--chat-template", "Jinja text that lays conversations out, instead of the model's own."
    )
    chat_template_file: Path | None = _setting(None, "--chat-template-file", "File with such a text.")  # noqa: RUF009

    # The network.
    host: str = _setting("127.0.0.1", "--host", "Address to listen at; 0.0.0.0 is every one of this machine.")
    port: int = _setting(8080, "--port", "Port to listen at; 0 for any that is free.")

    # Safety.
    api_key: tuple[str, ...] = _setting((), "--api-key", "Keys that clients must bring, separated by commas.")
    api_key_file: Path | None = _setting(None, "--api-key-file", "File with one key per line.")  # noqa: RUF009
    token_secret: str | None = _setting(
        None, "--token-secret", "Text that signs tokens, so that they outlive a restart.", "random"
    )
    token_lifetime: int = _setting(3600, "--token-lifetime", "Seconds until a token expires.")
    cors_origins: tuple[str, ...] = _setting(
        (), "--cors-origins", "Origins of web pages that may call, separated by commas; *: any."
    )
    allowed_hosts: tuple[str, ...] = _setting(
        (), "--allowed-hosts", "Further names for which this machine may be asked where no key is needed."
    )
    trusted_proxies: tuple[str, ...] = _setting(
        (), "--trusted-proxies", "Addresses whose X-Forwarded-For is believed, separated by commas."
    )

    # Limits.
    rate_limit: int = _setting(0, "--rate-limit", "Requests per minute and client; 0: no limit.")
    max_body: str = _setting("16MiB", "--max-body", "Largest body of a request.")
    max_bodies: str = _setting("256MiB", "--max-bodies", "Bodies of all requests under way together.")
    max_prompt: int | None = _setting(None, "--max-prompt", "Most tokens of a prompt.", "the context")
    max_queue: int = _setting(128, "--max-queue", "Answers that may wait beside those that run.")
    max_connections: int = _setting(1024, "--max-connections", "Connections that may be open at once.")
    request_timeout: float = _setting(600.0, "--request-timeout", "Seconds that an answer may take; 0: no limit.")
    timeout: float = _setting(30.0, "-to --timeout", "Seconds that a client may take to send a request or take data.")
    socket_idle: float = _setting(
        600.0, "--socket-idle", "Seconds that a WebSocket may stay open without a message or a chat; 0: no limit."
    )
    grace: float = _setting(
        30.0, "--grace", "Seconds that running answers get to finish when the server is told to stop."
    )

    # Sessions.
    sessions_file: Path | None = _setting(  # noqa: RUF009
        None, "--sessions-file", "Where conversations are kept.", "sessions.db beside the models folder"
    )
    max_sessions: int = _setting(1000, "--max-sessions", "Sessions that one client may keep.")
    max_session_size: str = _setting("1MiB", "--max-session-size", "Most that the messages of one session may take.")

    # What a request gets that does not say otherwise.
    n_predict: int = _setting(-1, "-n --predict --n-predict", "Most tokens of an answer; -1: until the model ends it.")
    seed: int = _setting(-1, "-s --seed", "Seed of the answers; -1: another one each time.")
    temp: float = _setting(0.8, "--temp --temperature", "0 takes the likeliest token each time.")
    top_k: int = _setting(40, "--top-k", "Draw from so many likeliest tokens; 0: all.")
    top_p: float = _setting(0.95, "--top-p", "Draw from the likeliest tokens that add up to this share.")
    min_p: float = _setting(0.05, "--min-p", "Drop tokens less likely than this share of the likeliest.")
    repeat_penalty: float = _setting(1.0, "--repeat-penalty", "Lowers tokens that were used; 1: off.")
    repeat_last_n: int = _setting(64, "--repeat-last-n", "Tokens that the penalties look back on; -1: all.")
    presence_penalty: float = _setting(0.0, "--presence-penalty", "Lowers tokens that were used at all.")
    frequency_penalty: float = _setting(0.0, "--frequency-penalty", "Lowers tokens by how often they were used.")

    # What is shown.
    metrics: bool = _setting(True, "--metrics/--no-metrics", "Figures for Prometheus at /metrics.")
    slots: bool = _setting(True, "--slots/--no-slots", "What runs at present, at /slots.")
    webui: bool = _setting(True, "--webui/--no-webui", "The web page at /.")
    log_level: str = _setting("info", "--log-level", "debug, info, warning or error.")
    log_format: str = _setting("text", "--log-format", "text or json, one line each.")
    log_prompts: bool = _setting(False, "--log-prompts/--no-log-prompts", "Prompts and answers in the log, too.")

    def __post_init__(self) -> None:
        self._check()

    @property
    def folder(self) -> Path:
        """Where models lie."""
        return models_folder() if self.models_dir is None else self.models_dir

    @property
    def sessions_path(self) -> Path:
        """Where conversations are kept."""
        return models_folder().parent / "sessions.db" if self.sessions_file is None else self.sessions_file

    @property
    def max_body_bytes(self) -> int:
        """The largest body in bytes."""
        from woolly.runtime import parse_size

        return parse_size("max_body", self.max_body) or 0

    @property
    def max_bodies_bytes(self) -> int:
        """What the bodies of all requests may take together, in bytes."""
        from woolly.runtime import parse_size

        return parse_size("max_bodies", self.max_bodies) or 0

    @property
    def max_session_bytes(self) -> int:
        """What the messages of a session may take, in bytes."""
        from woolly.runtime import parse_size

        return parse_size("max_session_size", self.max_session_size) or 0

    @property
    def chunk(self) -> int | None:
        """Most rows of a step; None for the engine's own."""
        given = [size for size in (self.batch_size, self.ubatch_size) if size is not None]
        return min(given) if given else None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of --api-key and of the file; read anew at each call."""
        if self.api_key_file is None:
            return self.api_key
        lines = _text_of("api_key_file", self.api_key_file).splitlines()
        return (*self.api_key, *(line.strip() for line in lines if line.strip() and not line.startswith("#")))

    @property
    def template(self) -> str | None:
        """The chat template that stands in for a model's own."""
        if self.chat_template_file is not None:
            return _text_of("chat_template_file", self.chat_template_file)
        return self.chat_template

    def defaults(self) -> SamplingParams:
        """What a request gets that does not say otherwise."""
        from woolly.engine import SamplingParams

        return SamplingParams(
            max_tokens=None if self.n_predict < 0 else self.n_predict,
            seed=None if self.seed < 0 else self.seed,
            temperature=self.temp,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repeat_penalty=self.repeat_penalty,
            repeat_last_n=self.repeat_last_n,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
        )

    def _check(self) -> None:
        """Refuses what no server could run with; what only a model can tell is refused when it is loaded."""
        from woolly.runtime import KV_TYPES, parse_size

        for name, low in _LEAST.items():
            if (value := getattr(self, name)) is not None and not low <= value < float("inf"):
                raise RequestError(f"{name} is {value}; at least {low} was expected")
        if self.port > 65535:
            raise RequestError(f"port is {self.port}; at most 65535 was expected")
        for name, choices in (("log_level", _LEVELS), ("log_format", ("text", "json"))):
            if getattr(self, name) not in choices:
                raise RequestError(f"{name} is {getattr(self, name)!r}; choose one of: {', '.join(choices)}")
        for name in ("cache_type_k", "cache_type_v"):
            if (kind := getattr(self, name)) is not None and kind not in KV_TYPES:
                raise RequestError(f"{name} is {kind!r}; choose one of: {', '.join(KV_TYPES)}")
        if self.cache_type_v not in (None, self.cache_type_k or "f16"):
            raise RequestError(
                f"cache_type_v is {self.cache_type_v}, but keys are kept as {self.cache_type_k or 'f16'};"
                " keys and values are kept alike"
            )
        if self.chat_template is not None and self.chat_template_file is not None:
            raise RequestError("chat_template and chat_template_file are given together; one of them was expected")
        if not self.optimized_inference and (self.cache_type_k or self.cache_type_v) not in (None, "f32"):
            raise RequestError("the reference backend keeps f32; leave cache_type_k and cache_type_v out")
        if self.token_secret is not None and len(self.token_secret) < 32:
            raise RequestError("token_secret is short enough to guess; at least 32 characters were expected")
        if any(not key or not key.isascii() or not key.isprintable() or " " in key for key in self.keys):
            raise RequestError("an API key is empty or holds a character that a header cannot carry")
        if (self.api_key or self.api_key_file) and not self.keys:
            raise RequestError("api_key_file holds no key, so nobody could be let in; write one key per line")
        for name in ("weight_memory", "max_body", "max_bodies", "max_session_size"):
            parse_size(name, getattr(self, name))
        if self.max_bodies_bytes < self.max_body_bytes:
            raise RequestError(
                f"max_bodies is {self.max_bodies}, but one body may take {self.max_body}; at least as much was expected"
            )
        self.defaults()


def groups() -> dict[str, str]:
    """What each setting is about, in the order of the settings."""
    found, group = {}, ""
    for setting in fields(Settings):
        found[setting.name] = group = _GROUPS.get(setting.name, group)
    return found


_LEVELS = ("debug", "info", "warning", "error")

_LEAST: dict[str, float] = {
    "models_max": 1,
    "keep_alive": 0,
    "load_wait": 0,
    "ctx_size": 1,
    "threads": 1,
    "parallel": 1,
    "batch_size": 1,
    "ubatch_size": 1,
    "kv_tokens": 1,
    "draft_max": 1,
    "n_predict": -1,
    "seed": -1,
    "port": 0,
    "token_lifetime": 1,
    "rate_limit": 0,
    "max_prompt": 1,
    "max_queue": 0,
    "max_connections": 1,
    "max_sessions": 1,
    "socket_idle": 0,
    "request_timeout": 0,
    "timeout": 0.1,
    "grace": 0,
}


def _text_of(name: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise RequestError(f"{name} is {path}, which cannot be read: {reason}") from None
