"""Table of all server settings, from which flags, environment variables, woolly.toml and docs are generated."""

from __future__ import annotations

import json
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from woolly.llm.model_options import EngineOptions, ModelOptions, rows_of
from woolly.serving.settings.row import setting as _setting
from woolly.serving.settings.sampling_settings import SamplingSettings, sampling_of, structure_of
from woolly.serving.settings.team_settings import TeamSettings
from woolly.serving.settings.value_parsers import Texts
from woolly.store import models_folder

if TYPE_CHECKING:
    from woolly.sampling import SamplingParams

# Group titles by the first setting of each group, used in --help and docs/reference/settings.md.
_GROUPS = {
    "model": "Models",
    "ctx_size": "How a model runs",
    "replicas": "Replicas",
    "host": "The network",
    "api_key": "Safety",
    "rate_limit": "Limits",
    "sessions_file": "Sessions and batches",
    "n_predict": "Defaults of a request",
    "metrics": "Observation",
}


def _named(option: str) -> Any:
    """Return the field of an `LLM` option that has llama.cpp's name here."""
    row = rows_of()[option]
    assert row.setting is not None
    return _setting(row.default, row.setting.flags, row.setting.help, row.setting.shown or None)


@dataclass(frozen=True, kw_only=True)
class Settings(Texts, TeamSettings, EngineOptions, SamplingSettings):
    """Settings of `woolly serve`. Raises RequestError if a value is out of range.

    The type of a field determines how text is parsed; a tuple is a comma-separated list. Most options of `LLM` are
    inherited from woolly/llm/model_options.py.
    """

    # Models.
    model: str | None = _setting(
        None, "-m --model", "Model to load first: a GGUF file, or the name of a pulled model.", "the only model"
    )
    models_dir: Path | None = _setting(  # noqa: RUF009
        None, "--models-dir", "Folder of GGUF files that clients may use.", "the folder of `woolly pull`"
    )
    models_follow_links: bool = _setting(
        False, "--models-follow-links", "Serve the targets of symbolic links in that folder."
    )
    alias: tuple[str, ...] = _setting(
        (), "-a --alias", "Names of --model for clients; the alphabetically first is shown.", "the file name"
    )
    tags: tuple[str, ...] = _setting((), "--tags", "Tags of --model, for clients that show them.")
    models_autoload: bool = _setting(
        True,
        "--models-autoload/--no-models-autoload",
        "Load the model that a request names; otherwise only /models/load loads models.",
    )
    preload: tuple[str, ...] = _setting((), "--preload", "Further models to load at startup.")
    models_max: int | None = _setting(
        None,
        "--models-max",
        "Maximum number of loaded models per kind (text generation, embedding, reranking); the least recently used"
        " model is unloaded; 0: no limit.",
        "1; with --models-memory no limit but memory",
    )
    strict_models: bool = _setting(
        False, "--strict-models", "Reject short forms of model names, and names for which another model would answer."
    )
    keep_alive: float = _setting(
        0.0, "--keep-alive --sleep-idle-seconds", "Seconds after which an unused model is unloaded; 0: never."
    )
    load_wait: float = _setting(120.0, "--load-wait", "Seconds that a request waits for its model to be loaded.")

    # How a model runs.
    ctx_size: int | None = _named("ctx")
    kv_unified: bool = _setting(
        True,
        "-kvu/-no-kvu --kv-unified/--no-kv-unified",
        "Allow each request the full --ctx-size; otherwise --ctx-size divided by --parallel.",
    )
    parallel: int | str | None = _named("max_running")
    batch_size: int | None = _named("chunk")
    ubatch_size: int | None = _setting(
        None, "-ub --ubatch-size", "Same as --batch-size; the smaller value is used.", "--batch-size"
    )
    cache_type_k: str | None = _named("kv_type")
    cache_type_v: str | None = _setting(
        None, "-ctv --cache-type-v", "Type of the cached values only.", "--cache-type-k"
    )
    model_draft: str = _named("speculation")
    override_kv: tuple[str, ...] = _named("metadata")
    lora: tuple[str, ...] = _setting((), "--lora", "LoRA adapters for --model in GGUF, separated by commas.")
    lora_scaled: tuple[str, ...] = _setting(
        (), "--lora-scaled", "LoRA adapters with scales, as FILE:SCALE; their ids follow those of --lora."
    )
    control_vector: tuple[str, ...] = _setting(
        (), "--control-vector", "Control vectors for --model in GGUF, separated by commas."
    )
    control_vector_scaled: tuple[str, ...] = _setting(
        (), "--control-vector-scaled", "Control vectors with scales, as FILE:SCALE."
    )
    control_vector_layer_range: str | None = _setting(
        None, "--control-vector-layer-range", "First and last layer with a control vector, as START:END.", "all"
    )
    draft_max: int = _named("draft_tokens")
    optimized_inference: bool = _setting(
        True, "--use-optimized-inference/--no-optimized-inference", "Use native kernels, or the reference backend."
    )
    chat_template: str | None = _setting(
        None,
        "--chat-template",
        "Jinja template for chats, or the name of a built-in template, instead of the model's own.",
    )
    chat_template_file: Path | None = _setting(None, "--chat-template-file", "File with a Jinja template.")  # noqa: RUF009
    tool_format: str | None = _named("tool_format")
    chat_template_kwargs: str | None = _setting(
        None, "--chat-template-kwargs", "JSON object with template variables, which requests may override."
    )
    pooling: str | None = _setting(
        None,
        "--pooling",
        "Pooling of embeddings for models without a pooling type, such as chat models: mean, cls or last.",
        "the model's",
    )
    reasoning: str = _setting("auto", "-rea --reasoning", "Reasoning: on, off, or auto for the template's default.")
    reasoning_effort: str | None = _setting(
        None,
        "--reasoning-effort",
        "Reasoning effort of requests that set none, such as low, for models whose template supports it.",
        "the template's",
    )
    reasoning_format: str = _setting(
        "auto", "--reasoning-format", "none leaves reasoning in the text; auto and deepseek return it separately."
    )
    reasoning_budget: int = _setting(
        -1,
        "--reasoning-budget",
        "Maximum reasoning tokens, unless a request sets them; 0 equals --reasoning off.",
        "no limit",
    )
    reasoning_budget_message: str | None = _setting(
        None, "--reasoning-budget-message", "Text that ends reasoning at the budget."
    )
    slot_save_path: Path | None = _setting(  # noqa: RUF009
        None, "--slot-save-path", "Folder for files of /slots/N?action=save.", "none"
    )

    # Replicas.
    replicas: int = _setting(1, "--replicas", "Processes with a copy of the model each; a failed process is replaced.")
    pin: bool = _setting(False, "--pin/--no-pin", "Bind each replica to the CPUs of one NUMA node.")
    join: tuple[str, ...] = _setting(
        (), "--join", "Further replicas on other machines, HOST:PORT, separated by commas (`woolly cluster replica`)."
    )
    ray: str | None = _setting(
        None, "--ray", "Address of a Ray cluster for the replicas; auto: the cluster of this machine.", "none"
    )
    cluster_secret_file: Path | None = _setting(  # noqa: RUF009
        None, "--cluster-secret-file", "File with the secret that replicas of --join share.", "none"
    )
    cluster_secret: str | None = _setting(
        None, "--cluster-secret", "The secret itself; other users can see it in the process list.", "none"
    )
    load_limit: float = _setting(1800.0, "--load-limit", "Seconds that a replica has to load its model.")
    stall: float = _setting(10.0, "--stall", "Seconds without a response after which a replica has failed.")

    # The network.
    host: str = _setting("127.0.0.1", "--host", "Address to listen on; 0.0.0.0: all addresses of this machine.")
    port: int = _setting(8080, "--port", "Port to listen on; 0: any free port.")

    api_prefix: str = _setting("", "--api-prefix", "Path prefix of all routes, such as /llm.", "none")
    path: Path | None = _setting(None, "--path", "Folder of files to serve at / instead of the web page.")  # noqa: RUF009

    # Safety.
    api_key: tuple[str, ...] = _setting((), "--api-key", "API keys, separated by commas; clients must send one.")
    api_key_file: Path | None = _setting(None, "--api-key-file", "File with one key per line.")  # noqa: RUF009
    admin_key: tuple[str, ...] = _setting(
        (), "--admin-key", "Keys that may also load, configure and unload models; without keys, all clients may."
    )
    admin_key_file: Path | None = _setting(None, "--admin-key-file", "File with one admin key per line.")  # noqa: RUF009
    allow_pull: bool = _setting(
        False, "--allow-pull", "Allow clients that may load models to download models (/api/pull)."
    )
    allow_remote_images: bool = _setting(
        False,
        "--allow-remote-images",
        "Fetch images, PDF files and videos by http(s) URL, only from public servers.",
    )
    pdf_pages: int = _setting(50, "--pdf-pages", "Maximum pages of all PDF files in a chat.")
    allow_changes: bool = _setting(
        False, "--allow-changes", "Allow clients that may load models to create and remove model names (/api/create)."
    )
    mcp: Path | None = _setting(  # noqa: RUF009
        None, "--mcp", "File of MCP servers whose tools the web page may call, after the user confirms each call."
    )
    share_prefixes: bool | None = _setting(
        None,
        "--share-prefixes/--no-share-prefixes",
        "Share cached prompts between clients with different keys; response times then reveal equal prompts.",
        "only without keys",
    )
    token_secret: str | None = _setting(
        None, "--token-secret", "Secret that signs tokens, so that they stay valid after a restart.", "random"
    )
    token_secret_file: Path | None = _setting(None, "--token-secret-file", "File with the token secret.")  # noqa: RUF009
    token_lifetime: int = _setting(3600, "--token-lifetime", "Seconds until a token expires.")
    cors_origins: tuple[str, ...] = _setting(
        (),
        "--cors-origins",
        "Origins of web pages that may call the server, separated by commas; *: any; localhost: pages of this machine.",
        "localhost, if --host is local",
    )
    allowed_hosts: tuple[str, ...] = _setting(
        (), "--allowed-hosts", "Further host names that requests may use on a server without keys."
    )
    trusted_proxies: tuple[str, ...] = _setting(
        (), "--trusted-proxies", "Addresses of proxies whose X-Forwarded-For is trusted, separated by commas."
    )

    # Limits.
    rate_limit: int = _setting(0, "--rate-limit", "Requests per minute and client; 0: no limit.")
    max_body: str = _setting("16MiB", "--max-body", "Maximum size of a request body.")
    max_bodies: str = _setting("256MiB", "--max-bodies", "Maximum size of all request bodies together.")
    max_prompt: int | None = _setting(None, "--max-prompt", "Maximum tokens of a prompt.", "the context")
    max_queue: int = _setting(128, "--max-queue", "Maximum queued requests.")
    max_connections: int = _setting(1024, "--max-connections", "Maximum open connections.")
    request_timeout: float = _setting(
        600.0, "--request-timeout", "Seconds without progress after which an answer is cancelled; 0: no limit."
    )
    timeout: float = _setting(30.0, "-to --timeout", "Seconds that a client may take to send a request or read data.")
    socket_idle: float = _setting(
        600.0, "--socket-idle", "Seconds that a WebSocket may stay open without a message or a chat; 0: no limit."
    )
    grace: float = _setting(30.0, "--grace", "Seconds to finish running answers when the server stops.")

    # Sessions and batches.
    sessions_file: Path | None = _setting(  # noqa: RUF009
        None, "--sessions-file", "File that stores chats.", "sessions.db next to the models folder"
    )
    max_sessions: int = _setting(1000, "--max-sessions", "Maximum sessions per client.")
    max_session_size: str = _setting("1MiB", "--max-session-size", "Maximum size of one session's messages.")

    batches_dir: Path | None = _setting(  # noqa: RUF009
        None,
        "--batches-dir",
        "Folder of files and batches (/v1/files, /v1/batches).",
        "batches next to the models folder",
    )
    max_files: str = _setting("1GB", "--max-files", "Maximum size of all files of one client.")

    # Defaults of a request.
    n_predict: int = _setting(-1, "-n --predict --n-predict", "Maximum tokens of an answer; -1: no limit.")
    seed: int = _setting(-1, "-s --seed", "Seed of the sampler; -1: random.")

    # Observation.
    metrics: bool = _setting(True, "--metrics/--no-metrics", "Serve Prometheus metrics at /metrics.")
    probe: bool = _setting(False, "--probe", "Fingerprint a model's output when it is loaded; /health shows it.")
    slots: bool = _setting(True, "--slots/--no-slots", "Serve running requests at /slots.")
    props: bool = _setting(False, "--props", "Allow POST /props.")
    read_ahead: bool = _setting(True, "--read-ahead/--no-read-ahead", "Compute prompts while the user types.")
    webui: bool = _setting(True, "--webui/--no-webui --ui/--no-ui", "Serve the web page at /.")
    log_level: str = _setting("info", "--log-level", "Log level: debug, info, warning, error or off.")
    log_format: str = _setting("text", "--log-format", "Log format: text or json, one line per event.")
    log_file: Path | None = _setting(None, "--log-file", "Log file, instead of standard error.")  # noqa: RUF009
    verbose: bool = _setting(
        False,
        "-v --verbose --log-verbose",
        "Set --log-level debug, and add the prompt to each chat reply as __verbose.",
    )
    log_prompts: bool = _setting(False, "--log-prompts/--no-log-prompts", "Write prompts and answers to the log.")

    def __post_init__(self) -> None:
        # Imported late, because the checks import this class.
        from woolly.serving.settings.checks import check_settings, read_aliases

        for name, value in read_aliases(self).items():
            object.__setattr__(self, name, value)
        check_settings(self)

    @property
    def folder(self) -> Path:
        """Return the models folder."""
        return models_folder() if self.models_dir is None else self.models_dir

    @property
    def max_models(self) -> int | None:
        """Return the maximum number of loaded models per kind, or None if only memory limits it."""
        if self.models_max is None:
            return 1 if self.models_memory is None else None
        return self.models_max or None

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach the server."""
        return self.host == "localhost" or self.host.startswith("127.") or self.host == "::1"

    @property
    def log_options(self) -> tuple[str, bool, Path | None]:
        """Return the log level, True for JSON, and the log file: the arguments of `set_up_logs`."""
        return "debug" if self.verbose else self.log_level, self.log_format == "json", self.log_file

    @property
    def sessions_path(self) -> Path:
        """Return the file that stores conversations."""
        return models_folder().parent / "sessions.db" if self.sessions_file is None else self.sessions_file

    @property
    def batches_path(self) -> Path:
        """Return the folder of files and batches."""
        return models_folder().parent / "batches" if self.batches_dir is None else self.batches_dir

    @property
    def has_keys(self) -> bool:
        """True if clients need a key."""
        return bool(self.keys or self.keys_file or self.oidc_issuer)

    @property
    def shares_prefixes(self) -> bool:
        """True if clients with different keys share cached prefixes."""
        return bool(self.share_prefixes)

    @property
    def request_ctx(self) -> int | None:
        """Return the context size of one request, or None for the model's default."""
        if self.ctx_size is None or self.kv_unified:
            return self.ctx_size
        return max(1, self.ctx_size // int(self.parallel or 16))

    @property
    def adapters(self) -> tuple[tuple[str, float], ...]:
        """Return the files of --lora and --lora-scaled with their default scales."""
        from woolly.engine.loading.adapters import scaled_file

        return (*((file, 1.0) for file in self.lora), *map(scaled_file, self.lora_scaled))

    @property
    def template_variables(self) -> dict[str, Any]:
        """Return the template variables of --chat-template-kwargs."""
        return {} if self.chat_template_kwargs is None else dict(json.loads(self.chat_template_kwargs))

    def structure(self) -> dict[str, Any]:
        """Return the structure of answers, for requests that set none; reads its file."""
        return structure_of(self)

    def model_options(self) -> ModelOptions:
        """Return the options for loading a model."""
        from woolly.serving.settings.options import options_from

        return options_from(self)

    def defaults(self) -> SamplingParams:
        """Return the default sampling parameters of a request."""
        from woolly.sampling import SamplingParams

        return SamplingParams(
            max_tokens=None if self.n_predict < 0 else self.n_predict,
            seed=None if self.seed < 0 else self.seed,
            reasoning_budget=None if self.reasoning_budget < 0 else self.reasoning_budget,
            reasoning_budget_message=self.reasoning_budget_message,
            **sampling_of(self),
        )


def groups(settings: type[Settings] = Settings) -> dict[str, str]:
    """Return the group of each setting, in the order of the groups."""
    found, group = {}, ""
    for setting in fields(settings):
        if "group" in setting.metadata:
            found[setting.name] = setting.metadata["group"]
        else:
            found[setting.name] = group = _GROUPS.get(setting.name, group)
    titles = list(_GROUPS.values())
    inherited = {setting.name for setting in fields(settings) if "group" in setting.metadata}
    return dict(sorted(found.items(), key=lambda one: (titles.index(one[1]), one[0] in inherited)))


def in_order(settings: type[Settings] = Settings) -> list[Field[Any]]:
    """Return the settings in the order of help and reference, group by group."""
    by_name = {setting.name: setting for setting in fields(settings)}
    return [by_name[name] for name in groups(settings)]
