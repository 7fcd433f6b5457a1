"""Settings: one table of all settings of the server; flags, environment, woolly.toml and docs are made from it."""

from __future__ import annotations

import json
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from woolly.llm.model_options import EngineOptions, ModelOptions, rows_of
from woolly.serving.settings.row import setting as _setting
from woolly.serving.settings.team_settings import TeamSettings
from woolly.serving.settings.value_parsers import Texts
from woolly.store import models_folder

if TYPE_CHECKING:
    from woolly.sampling import SamplingParams

# Title of each group by its first setting: the panels of --help and the tables of docs/reference/settings.md.
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
    """Return the field of an option of `LLM` that has another name here, llama.cpp's."""
    row = rows_of()[option]
    assert row.setting is not None
    return _setting(row.default, row.setting.flags, row.setting.help, row.setting.shown)


@dataclass(frozen=True, kw_only=True)
class Settings(Texts, TeamSettings, EngineOptions):
    """Settings of `woolly serve`. RequestError names the setting whose value is out of range.

    The type of a field decides how text is read: a tuple is a list separated by commas. Most options of `LLM` are
    inherited from their own table (woolly/llm/model_options.py).
    """

    # Models.
    model: str | None = _setting(
        None, "-m --model", "Model to load first: a GGUF file, or the name of a pulled model.", "the only one there is"
    )
    models_dir: Path | None = _setting(  # noqa: RUF009
        None, "--models-dir", "Folder of GGUF files that clients may use.", "where `woolly pull` puts them"
    )
    models_follow_links: bool = _setting(
        False, "--models-follow-links", "Serve files that links in that folder lead to, wherever they are."
    )
    alias: tuple[str, ...] = _setting(
        (), "-a --alias", "Names of --model for clients; the first by the alphabet is shown.", "its file's name"
    )
    tags: tuple[str, ...] = _setting((), "--tags", "Words about --model, for clients that show them.")
    models_autoload: bool = _setting(
        True,
        "--models-autoload/--no-models-autoload",
        "Whether a request loads its model; else only /models/load does.",
    )
    preload: tuple[str, ...] = _setting((), "--preload", "Further models to load at the start.")
    models_max: int | None = _setting(
        None,
        "--models-max",
        "Maximum number of loaded models per kind (text generation, embedding, reranking); the least recently used"
        " model is unloaded; 0: no limit.",
        "1; with --models-memory as many as fit",
    )
    strict_models: bool = _setting(
        False, "--strict-models", "Refuse names that no model has, which the main or only model else answers to."
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
        "Whether each request may have the whole --ctx-size; else its share, divided by --parallel.",
    )
    parallel: int | str | None = _named("max_running")
    batch_size: int | None = _named("chunk")
    ubatch_size: int | None = _setting(
        None, "-ub --ubatch-size", "As --batch-size; the smaller one counts.", "--batch-size"
    )
    cache_type_k: str | None = _named("kv_type")
    cache_type_v: str | None = _setting(None, "-ctv --cache-type-v", "Type of cached values alone.", "--cache-type-k")
    model_draft: str = _named("speculation")
    override_kv: tuple[str, ...] = _named("metadata")
    lora: tuple[str, ...] = _setting((), "--lora", "LoRA adapters for --model in GGUF, separated by commas.")
    lora_scaled: tuple[str, ...] = _setting(
        (), "--lora-scaled", "The same with how much each counts, FILE:SCALE; their numbers follow those of --lora."
    )
    control_vector: tuple[str, ...] = _setting(
        (), "--control-vector", "Control vectors for --model in GGUF, separated by commas."
    )
    control_vector_scaled: tuple[str, ...] = _setting((), "--control-vector-scaled", "The same, as FILE:SCALE.")
    control_vector_layer_range: str | None = _setting(
        None, "--control-vector-layer-range", "First and last layer that get a control vector, as START:END.", "all"
    )
    draft_max: int = _named("draft_tokens")
    optimized_inference: bool = _setting(
        True, "--use-optimized-inference/--no-optimized-inference", "Native kernels, or the reference backend."
    )
    chat_template: str | None = _setting(
        None, "--chat-template", "Jinja template for conversations, or the name of one, instead of the model's own."
    )
    chat_template_file: Path | None = _setting(None, "--chat-template-file", "File with such a template.")  # noqa: RUF009
    chat_template_kwargs: str | None = _setting(
        None, "--chat-template-kwargs", "JSON object: switches of the model's template, unless a request sets them."
    )
    pooling: str | None = _setting(
        None,
        "--pooling",
        "How rows of a text become its vector if the file does not say it, as of chat models: mean, cls or last.",
        "the file's",
    )
    reasoning: str = _setting(
        "auto", "-rea --reasoning", "Whether the model thinks: on, off, or auto as its template has it."
    )
    reasoning_format: str = _setting(
        "auto", "--reasoning-format", "none leaves thoughts in the text; auto and deepseek reply with them apart."
    )
    reasoning_budget: int = _setting(
        -1,
        "--reasoning-budget",
        "Most tokens of a thought, unless a request says it; 0 is --reasoning off.",
        "no limit",
    )
    reasoning_budget_message: str | None = _setting(
        None, "--reasoning-budget-message", "Text that ends a thought which its budget cuts off."
    )
    slot_save_path: Path | None = _setting(  # noqa: RUF009
        None, "--slot-save-path", "Folder for what /slots/N?action=save writes.", "no saving"
    )

    # Replicas.
    replicas: int = _setting(
        1, "--replicas", "Processes that compute, each with a model of its own; one that ends is replaced unnoticed."
    )
    pin: bool = _setting(False, "--pin/--no-pin", "Keep each replica to the CPUs of one NUMA node, in turn.")
    join: tuple[str, ...] = _setting(
        (), "--join", "Further replicas on other machines, HOST:PORT, separated by commas (`woolly cluster replica`)."
    )
    ray: str | None = _setting(
        None, "--ray", "Address of a Ray cluster for the replicas; auto: of this machine.", "none"
    )
    cluster_secret_file: Path | None = _setting(  # noqa: RUF009
        None, "--cluster-secret-file", "File with the secret that replicas of --join share.", "none"
    )
    cluster_secret: str | None = _setting(
        None, "--cluster-secret", "The secret itself, which other users see in a list of processes.", "none"
    )
    load_limit: float = _setting(1800.0, "--load-limit", "Seconds that a replica has to open its model.")
    stall: float = _setting(10.0, "--stall", "Seconds of silence after which a replica is given up.")

    # The network.
    host: str = _setting("127.0.0.1", "--host", "Address to listen at; 0.0.0.0: all addresses of this machine.")
    port: int = _setting(8080, "--port", "Port to listen at; 0: any free port.")

    api_prefix: str = _setting("", "--api-prefix", "Path that all routes begin with, such as /llm.", "none")
    path: Path | None = _setting(None, "--path", "Folder of files to serve at / in place of the web page.")  # noqa: RUF009

    # Safety.
    api_key: tuple[str, ...] = _setting((), "--api-key", "Keys of which clients must send one, separated by commas.")
    api_key_file: Path | None = _setting(None, "--api-key-file", "File with one key per line.")  # noqa: RUF009
    admin_key: tuple[str, ...] = _setting(
        (), "--admin-key", "Keys that may also load, configure and unload models; without any keys everyone may."
    )
    admin_key_file: Path | None = _setting(None, "--admin-key-file", "File with one such key per line.")  # noqa: RUF009
    allow_pull: bool = _setting(
        False, "--allow-pull", "Let requests download models (/api/pull), of clients that may load models."
    )
    allow_remote_images: bool = _setting(
        False,
        "--allow-remote-images",
        "Fetch images, PDF files and videos that requests name by an http(s) address, of public servers alone.",
    )
    pdf_pages: int = _setting(50, "--pdf-pages", "Pages that the PDF files of a conversation may have together.")
    allow_changes: bool = _setting(
        False, "--allow-changes", "Let requests make and remove names of models (/api/create), of the same clients."
    )
    mcp: Path | None = _setting(  # noqa: RUF009
        None, "--mcp", "File of MCP servers whose tools the page may call, each call after a question."
    )
    share_prefixes: bool | None = _setting(
        None,
        "--share-prefixes/--no-share-prefixes",
        "Whether clients with different keys reuse each other's computed prompts, which reveals who sent the same.",
        "only without keys",
    )
    token_secret: str | None = _setting(
        None, "--token-secret", "Text that signs tokens, so that they stay valid after a restart.", "random"
    )
    token_secret_file: Path | None = _setting(None, "--token-secret-file", "File with that text.")  # noqa: RUF009
    token_lifetime: int = _setting(3600, "--token-lifetime", "Seconds until a token expires.")
    cors_origins: tuple[str, ...] = _setting(
        (),
        "--cors-origins",
        "AllowedOrigins of web pages that may call, separated by commas; *: any; localhost: pages of this machine.",
        "pages of localhost, if --host is local",
    )
    allowed_hosts: tuple[str, ...] = _setting(
        (), "--allowed-hosts", "Further host names that requests may use if the server has no keys."
    )
    trusted_proxies: tuple[str, ...] = _setting(
        (), "--trusted-proxies", "Addresses of proxies whose X-Forwarded-For is trusted, separated by commas."
    )

    # Limits.
    rate_limit: int = _setting(0, "--rate-limit", "Requests per minute and client; 0: no limit.")
    max_body: str = _setting("16MiB", "--max-body", "Largest body of a request.")
    max_bodies: str = _setting("256MiB", "--max-bodies", "Bodies of all open requests together.")
    max_prompt: int | None = _setting(None, "--max-prompt", "Most tokens of a prompt.", "the context")
    max_queue: int = _setting(128, "--max-queue", "Answers that may wait for a running one to end.")
    max_connections: int = _setting(1024, "--max-connections", "Connections that may be open at once.")
    request_timeout: float = _setting(
        600.0, "--request-timeout", "Seconds without progress after which an answer ends; 0: none."
    )
    timeout: float = _setting(30.0, "-to --timeout", "Seconds that a client may take to send a request or read data.")
    socket_idle: float = _setting(
        600.0, "--socket-idle", "Seconds that a WebSocket may stay open without a message or a chat; 0: no limit."
    )
    grace: float = _setting(30.0, "--grace", "Seconds that running answers have to finish when the server stops.")

    # Sessions and batches.
    sessions_file: Path | None = _setting(  # noqa: RUF009
        None, "--sessions-file", "File that stores conversations.", "sessions.db beside the models folder"
    )
    max_sessions: int = _setting(1000, "--max-sessions", "Sessions that one client may keep.")
    max_session_size: str = _setting("1MiB", "--max-session-size", "Most that the messages of one session may take.")

    batches_dir: Path | None = _setting(  # noqa: RUF009
        None,
        "--batches-dir",
        "Folder of files and batches (/v1/files, /v1/batches).",
        "batches beside the models folder",
    )
    max_files: str = _setting("1GB", "--max-files", "Most that the files of one client may take.")

    # Defaults of a request.
    n_predict: int = _setting(-1, "-n --predict --n-predict", "Most tokens of an answer; -1: until the model ends it.")
    seed: int = _setting(-1, "-s --seed", "Seed of the answers; -1: a random one each time.")
    temp: float = _setting(0.8, "--temp --temperature", "Temperature; 0 takes the likeliest token each time.")
    top_k: int = _setting(40, "--top-k", "Draw from the k likeliest tokens; 0: all.")
    top_p: float = _setting(0.95, "--top-p", "Draw from the likeliest tokens that add up to this share.")
    min_p: float = _setting(0.05, "--min-p", "Drop tokens less likely than this share of the likeliest.")
    repeat_penalty: float = _setting(1.0, "--repeat-penalty", "Lowers the scores of used tokens; 1: off.")
    repeat_last_n: int = _setting(64, "--repeat-last-n", "Last tokens that the penalties apply to; -1: all.")
    presence_penalty: float = _setting(0.0, "--presence-penalty", "Lowers the scores of used tokens.")
    frequency_penalty: float = _setting(0.0, "--frequency-penalty", "Lowers the scores of tokens per use.")

    context_shift: bool = _setting(
        False,
        "--context-shift/--no-context-shift",
        "Whether an answer whose context is full goes on without the older half.",
    )

    # Observation.
    metrics: bool = _setting(True, "--metrics/--no-metrics", "Figures for Prometheus at /metrics.")
    probe: bool = _setting(
        False, "--probe", "Prove the identity of a model's bits when it is loaded; /health shows it."
    )
    slots: bool = _setting(True, "--slots/--no-slots", "Running requests at /slots.")
    props: bool = _setting(False, "--props", "POST /props.")
    read_ahead: bool = _setting(True, "--read-ahead/--no-read-ahead", "Prompts computed while they are typed.")
    webui: bool = _setting(True, "--webui/--no-webui --ui/--no-ui", "The web page at /.")
    log_level: str = _setting("info", "--log-level", "debug, info, warning or error.")
    log_format: str = _setting("text", "--log-format", "text or json, one line each.")
    log_file: Path | None = _setting(None, "--log-file", "File for the log, in place of standard error.")  # noqa: RUF009
    verbose: bool = _setting(
        False, "-v --verbose --log-verbose", "--log-level debug, and the prompt of each chat in its reply: __verbose."
    )
    log_prompts: bool = _setting(False, "--log-prompts/--no-log-prompts", "Write prompts and answers to the log.")

    def __post_init__(self) -> None:
        # Imported late: the checks are about this class.
        from woolly.serving.settings.checks import check_settings, read_aliases

        for name, value in read_aliases(self).items():
            object.__setattr__(self, name, value)
        check_settings(self)

    @property
    def folder(self) -> Path:
        """Return the folder of models."""
        return models_folder() if self.models_dir is None else self.models_dir

    @property
    def max_models(self) -> int | None:
        """Return how many models of a kind may be loaded at once, None: limited by memory."""
        if self.models_max is None:
            return 1 if self.models_memory is None else None
        return self.models_max or None

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach the server."""
        return self.host == "localhost" or self.host.startswith("127.") or self.host == "::1"

    @property
    def log_options(self) -> tuple[str, bool, Path | None]:
        """Return the level of the log, whether it is JSON, and its file: arguments of `set_up_logs`."""
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
        """Return the context of one request, None for the model's own."""
        if self.ctx_size is None or self.kv_unified:
            return self.ctx_size
        return max(1, self.ctx_size // int(self.parallel or 16))

    @property
    def adapters(self) -> tuple[tuple[str, float], ...]:
        """Return the files of --lora and --lora-scaled, and how much each counts if nobody says otherwise."""
        from woolly.engine.loading.adapters import scaled_file

        return (*((file, 1.0) for file in self.lora), *map(scaled_file, self.lora_scaled))

    @property
    def template_variables(self) -> dict[str, Any]:
        """Return the switches of --chat-template-kwargs."""
        return {} if self.chat_template_kwargs is None else dict(json.loads(self.chat_template_kwargs))

    def model_options(self) -> ModelOptions:
        """Return how a model is opened."""
        from woolly.serving.settings.options import options_from

        return options_from(self)

    def defaults(self) -> SamplingParams:
        """Return the sampling parameters of a request that sets none."""
        from woolly.sampling import SamplingParams

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
            context_shift=self.context_shift,
            reasoning_budget=None if self.reasoning_budget < 0 else self.reasoning_budget,
            reasoning_budget_message=self.reasoning_budget_message,
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
    """Return the settings, group by group: in the order of help and reference."""
    by_name = {setting.name: setting for setting in fields(settings)}
    return [by_name[name] for name in groups(settings)]
