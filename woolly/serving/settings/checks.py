"""Validation of server settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from woolly.errors import RequestError
from woolly.llm.model_options import rows_of
from woolly.mcp.config import read_config
from woolly.mcp.optional_package import check_package

if TYPE_CHECKING:
    from woolly.serving.accounts.keys_file import NamedKey
    from woolly.serving.settings.table import Settings

_CHOICES = {
    **{row.setting_name: row.choices for row in rows_of().values() if row.choices},
    "log_level": ("debug", "info", "warning", "error", "off"),
    "log_format": ("text", "json"),
    "pooling": (None, "mean", "cls", "last"),
    "metrics_names": ("woolly", "vllm"),
    "reasoning": ("auto", "on", "off"),
    "reasoning_format": ("auto", "deepseek", "none"),
}

_MINIMA: dict[str, float] = {
    **{row.setting_name: row.low for row in rows_of().values() if row.low is not None},
    "models_max": 0,
    "keep_alive": 0,
    "load_wait": 0,
    "keep_requests": 0,
    "swap_wait": 0,
    "load_limit": 1,
    "replicas": 0,
    "stall": 0.5,
    "ubatch_size": 1,
    "n_predict": -1,
    "seed": -1,
    "port": 0,
    "token_lifetime": 1,
    "rate_limit": 0,
    "max_prompt": 1,
    "pdf_pages": 1,
    "max_queue": 0,
    "max_connections": 1,
    "max_sessions": 1,
    "socket_idle": 0,
    "request_timeout": 0,
    "timeout": 0.1,
    "grace": 0,
}

# llama.cpp's values for "automatic", and the equivalent values here.
_OPEN: dict[str, tuple[float, Any]] = {
    "ctx_size": (0, None),
    "threads": (-1, None),
    "parallel": (-1, None),
    "n_predict": (-2, -1),
    "keep_alive": (-1, 0.0),
}


def read_aliases(settings: Settings) -> dict[str, Any]:
    """Return the settings that have llama.cpp's value for "automatic", with the equivalent value here."""
    found = {name: ours for name, (theirs, ours) in _OPEN.items() if getattr(settings, name) == theirs}
    if isinstance(settings.parallel, str):
        from woolly.runtime import parse_max_running  # imported late, because --help must not need NumPy

        found["parallel"] = parse_max_running("parallel", "auto" if settings.parallel == "-1" else settings.parallel)
    return found


def check_settings(settings: Settings) -> None:
    """Raise RequestError for invalid values. Values that depend on the model are checked when it is loaded."""
    from woolly.runtime import check_kv_type, parse_layers, parse_max_running, parse_size
    from woolly.runtime.options import join_kv_types, parse_cpu_moe
    from woolly.serving.observability.traces import check_telemetry

    parse_max_running("parallel", settings.parallel)
    for name, low in _MINIMA.items():
        if (value := getattr(settings, name)) is not None and not low <= value < float("inf"):
            raise RequestError(f"{name} is {value}; expected at least {low}", field=name)
    if settings.port > 65535:
        raise RequestError(f"port is {settings.port}; expected at most 65535", field="port")
    for name, choices in _CHOICES.items():
        if getattr(settings, name) not in choices:
            chosen = getattr(settings, name)
            raise RequestError(f"{name} is {chosen!r}; choose one of: {', '.join(filter(None, choices))}", field=name)
    if settings.cache_type_k is not None:
        check_kv_type(settings.cache_type_k, "cache_type_k")
    join_kv_types(settings.cache_type_k, settings.cache_type_v, ("cache_type_k", "cache_type_v"))
    _check_template(settings)
    _check_one_of("chat_template", "chat_template_file", settings)
    _check_device(settings)
    if is_reference(settings) and (settings.cache_type_k or settings.cache_type_v) not in (None, "f32"):
        raise RequestError("the reference backend supports only f32; remove cache_type_k and cache_type_v")
    # Behind a proxy, requests come from other machines and the Host header is not checked.
    is_reached = not settings.is_local or bool(settings.trusted_proxies)
    if settings.mcp is not None and is_reached and not settings.has_keys:
        raise RequestError(
            "mcp starts programs whose tools anyone on the network could call: set admin_key"
            " or listen on 127.0.0.1 without trusted_proxies",
            field="mcp",
            names=("admin_key", "trusted_proxies"),
        )
    if settings.mcp is not None:
        check_package()  # check the package and the file before the port is open
        read_config(Path(settings.mcp))
    _check_replicas(settings)
    _check_one_of("token_secret", "token_secret_file", settings)
    if (signs := settings.signing_secret) is not None and len(signs) < 32:
        name = "token_secret" if settings.token_secret_file is None else "token_secret_file"
        raise RequestError(f"{name} is short enough to guess; expected at least 32 characters", field=name)
    check_keys(settings)
    _check_tls(settings)
    check_telemetry(settings.otlp_endpoint)
    _check_oidc(settings)
    for name in (
        "weight_memory",
        "models_memory",
        "max_body",
        "max_bodies",
        "max_session_size",
        "max_files",
        "cache_disk",
    ):
        parse_size(name, getattr(settings, name))
    parse_layers(settings.gpu_layers)
    parse_cpu_moe(settings.n_cpu_moe)
    if settings.max_bodies_bytes < settings.max_body_bytes:
        raise RequestError(
            f"max_bodies is {settings.max_bodies}; expected at least max_body, which is {settings.max_body}"
        )
    if settings.reasoning_budget < -1:
        raise RequestError(
            f"reasoning_budget is {settings.reasoning_budget}; expected a number of tokens, or -1 for no limit",
            field="reasoning_budget",
        )
    if settings.api_prefix and (not settings.api_prefix.startswith("/") or settings.api_prefix.endswith("/")):
        raise RequestError(
            f"api_prefix is {settings.api_prefix!r}; expected a path such as /llm, without a slash at the end",
            field="api_prefix",
        )
    if settings.stages and settings.model is None:
        raise RequestError("stages need a model; set model", field="stages", names=("stages", "model"))
    if settings.lora_scaled:
        _ = settings.adapters  # raises unless each entry is FILE:SCALE
    for name in ("models_dir", "slot_save_path", "path"):
        folder = getattr(settings, name)
        if folder is not None and not folder.is_dir():
            raise RequestError(f"{name} is {folder}, which is not a folder", field=name)
    replace(settings.defaults(), **settings.structure())


def check_keys(settings: Settings) -> tuple[tuple[str, ...], tuple[str, ...], tuple[NamedKey, ...]]:
    """Return plain, admin and named keys.

    Raises RequestError for keys that no client could send, or a file without keys.

     Callers must use the returned keys, because the files may change between reads.
    """
    plain, admins, named = settings.keys, settings.admin_keys, settings.named_keys
    if any(not key or not key.isascii() or not key.isprintable() or " " in key for key in (*plain, *admins)):
        raise RequestError("an API key is empty or has a character that is not allowed in a header")
    for name, keys in (("api_key_file", plain), ("admin_key_file", admins)):
        if getattr(settings, name) is not None and not keys:
            raise RequestError(f"{name} has no key, so no client could connect; write one key per line", field=name)
    if settings.keys_file is not None and not named:
        raise RequestError(
            f"keys_file {settings.keys_file} has no key, so no client could connect; add one with"
            " `woolly keys add NAME`",
            field="keys_file",
        )
    return plain, admins, named


def _check_oidc(settings: Settings) -> None:
    if settings.oidc_issuer is not None:
        from woolly.serving.accounts.oidc import check_issuer

        check_issuer(settings.oidc_issuer, settings.oidc_audience, settings.oidc_admin)
    for name in ("oidc_audience", "oidc_admin"):
        if getattr(settings, name) is not None and settings.oidc_issuer is None:
            raise RequestError(f"{name} is set without oidc_issuer; set both", field=name)


def _check_tls(settings: Settings) -> None:
    if settings.tls not in (None, "auto"):
        raise RequestError(f"tls is {settings.tls!r}; expected auto, or tls_cert with tls_key", field="tls")
    if (settings.tls_cert is None) != (settings.tls_key is None):
        given, missing = ("tls_cert", "tls_key") if settings.tls_key is None else ("tls_key", "tls_cert")
        raise RequestError(f"{given} is set without {missing}; set both", field=given, names=(given, missing))
    if settings.tls is not None and settings.tls_cert is not None:
        raise RequestError("tls and tls_cert cannot be combined; set one of them", field="tls")


def is_reference(settings: Settings) -> bool:
    """Return True if the backend is the NumPy reference."""
    return settings.backend == "reference" or not settings.optimized_inference


def _check_device(settings: Settings) -> None:
    from woolly.runtime import backend_for

    if settings.backend not in ("auto", "reference") and not settings.optimized_inference:
        raise RequestError(
            f"backend is {settings.backend}, but without optimized_inference the reference backend is used; remove one"
            " of them",
            field="backend",
            names=("backend", "optimized_inference"),
        )
    backend_for(settings.device, "reference" if is_reference(settings) else settings.backend)


def has_replicas(settings: Settings) -> bool:
    """Return True if the model runs in other processes."""
    return settings.replicas != 1 or bool(settings.join) or settings.ray is not None


def reads_ahead(settings: Settings) -> bool:
    """Return True if prompts are computed while the user types. Replicas have separate caches and do not read ahead."""
    return settings.read_ahead and not has_replicas(settings)


def late_swap(settings: Settings) -> str | None:
    """Return a warning if a request for another model may time out before a busy model is replaced, else None."""
    if settings.load_wait >= settings.swap_wait + settings.grace:
        return None
    return (
        f"--load-wait is {settings.load_wait:g}, less than --swap-wait ({settings.swap_wait:g}) and --grace"
        f" ({settings.grace:g}) together: a request for another model may fail with 503 before a busy model is unloaded"
    )


def _check_replicas(settings: Settings) -> None:
    if settings.stages and has_replicas(settings):
        raise RequestError(
            "stages serve one engine at a time, but each replica has an engine: remove replicas, join and ray",
            field="stages",
            names=("stages", "replicas", "join", "ray"),
        )
    if settings.replicas == 0 and not settings.join:
        raise RequestError("replicas is 0, and join names no remote replicas; expected at least 1", field="replicas")
    _check_one_of("cluster_secret", "cluster_secret_file", settings)
    secret = settings.secret
    if settings.join and secret is None:
        raise RequestError(
            "join names replicas on other machines, which need cluster_secret_file or cluster_secret to authenticate"
            " the server",
            field="join",
            names=("join", "cluster_secret_file", "cluster_secret"),
        )
    if settings.ray is not None and settings.pin:
        raise RequestError(
            "pin binds local processes to NUMA nodes, but Ray places the replicas; remove pin", field="pin"
        )
    if settings.ray is not None and ":" in (settings.device or ""):
        raise RequestError(
            f"device is {settings.device}, but Ray chooses the GPU of each replica; remove the number",
            field="device",
            names=("device", "ray"),
        )
    if secret is not None and len(secret) < 32:
        name = "cluster_secret" if settings.cluster_secret_file is None else "cluster_secret_file"
        raise RequestError(f"{name} is short enough to guess; expected at least 32 characters", field=name)
    if settings.slot_save_path is not None and has_replicas(settings):
        raise RequestError(
            "slot_save_path supports only one process, but the model has replicas; use cache_disk",
            field="slot_save_path",
            names=("slot_save_path", "cache_disk"),
        )


def _check_one_of(text: str, file: str, settings: Settings) -> None:
    if getattr(settings, text) is not None and getattr(settings, file) is not None:
        raise RequestError(f"{text} and {file} cannot be combined; set one of them", field=file, names=(text, file))


def _check_template(settings: Settings) -> None:
    source = settings.chat_template
    if source is not None and "{{" not in source and "{%" not in source:
        from woolly.templates import TEMPLATE_NAMES

        if source not in TEMPLATE_NAMES:
            raise RequestError(
                f"chat_template is {source[:40]!r}, which has no placeholders: use a Jinja template, the name of a"
                f" built-in template ({', '.join(TEMPLATE_NAMES)}), or no value for the model's own",
                field="chat_template",
            )
    given = settings.chat_template_kwargs
    if given is not None:
        try:
            is_object = isinstance(json.loads(given), dict)
        except ValueError:
            is_object = False
        if not is_object:
            raise RequestError(
                f"chat_template_kwargs is {given[:40]!r}; expected a JSON object", field="chat_template_kwargs"
            )
