"""Settings of a server with several users."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from woolly.serving.settings.row import setting
from woolly.store import models_folder

if TYPE_CHECKING:
    from woolly.serving.accounts.keys_file import NamedKey
    from woolly.serving.accounts.oidc import Issuer


@dataclass(frozen=True, kw_only=True)
class TeamSettings:
    """Fields that Settings inherits, each with its group."""

    keys_file: Path | None = setting(  # noqa: RUF009
        None,
        "--keys-file",
        "File of named keys with limits, written by `woolly keys`; reloaded when it changes.",
        "woolly.toml, if it has a [keys] table",
        group="Safety",
    )
    oidc_issuer: str | None = setting(
        None,
        "--oidc-issuer",
        "URL of an OIDC issuer whose tokens clients may send instead of a key.",
        group="Safety",
    )
    oidc_audience: str | None = setting(
        None, "--oidc-audience", "Required audience (aud) of OIDC tokens.", group="Safety"
    )
    oidc_admin: str | None = setting(
        None, "--oidc-admin", "CLAIM=VALUE of administrators, such as groups=llm-admins.", group="Safety"
    )
    names_file: Path | None = setting(  # noqa: RUF009
        None,
        "--names-file",
        "File with [models.NAME] tables: model names with separate settings.",
        "woolly.toml, if it has a [models] table",
        group="Models",
    )
    models_memory: str | None = setting(
        None,
        "--models-memory",
        "Maximum memory of all loaded models, such as 24GB, of the system and of each set of GPUs.",
        "the free memory",
        group="Models",
    )
    swap_wait: float = setting(
        10.0,
        "--swap-wait",
        "Seconds that requests for a loaded model precede a request that would replace it; 0: none.",
        group="Models",
    )
    tls_cert: Path | None = setting(  # noqa: RUF009
        None,
        "--tls-cert --ssl-cert-file",
        "File with the HTTPS certificate (PEM); reloaded when it changes.",
        group="The network",
    )
    tls_key: Path | None = setting(  # noqa: RUF009
        None, "--tls-key --ssl-key-file", "File with the key of the HTTPS certificate.", group="The network"
    )
    tls: str | None = setting(
        None,
        "--tls",
        "auto: HTTPS with a stored self-signed certificate; the log shows its fingerprint.",
        "HTTP, without --tls-cert",
        group="The network",
    )
    metrics_names: str = setting(
        "woolly", "--metrics-names", "vllm adds vLLM's metric names, for its dashboards.", group="Observation"
    )
    keep_requests: int = setting(
        0,
        "--keep-requests",
        "Number of recent requests that administrators can list (/api/v1/requests), without texts.",
        group="Observation",
    )
    keep_texts: bool = setting(False, "--keep-texts", "Also keep the texts of recent requests.", group="Observation")
    otlp_endpoint: str | None = setting(
        None,
        "--otlp-endpoint --otlp-traces-endpoint",
        "URL of an OpenTelemetry collector (OTLP over HTTP) for a span per request, without texts.",
        "none",
        group="Observation",
    )
    usage_file: Path | None = setting(  # noqa: RUF009
        None,
        "--usage-file",
        "File that records the usage of each key (`woolly usage`).",
        "usage.db next to the models folder, if --keys-file is set",
        group="Observation",
    )

    @property
    def named_keys(self) -> tuple[NamedKey, ...]:
        """Return the keys of --keys-file, which is read on each call."""
        from woolly.serving.accounts.keys_file import read_keys

        return () if self.keys_file is None else read_keys(self.keys_file)

    @property
    def issuer(self) -> Issuer | None:
        """Return the token verifier of --oidc-issuer before its keys are fetched, or None without an issuer."""
        from woolly.serving.accounts.oidc import Issuer

        if self.oidc_issuer is None or self.oidc_audience is None:
            return None
        return Issuer(self.oidc_issuer, self.oidc_audience, self.oidc_admin)

    @property
    def models_bytes(self) -> int | None:
        """Return the memory limit of all loaded models together, or None to use the free memory."""
        from woolly.runtime import parse_size

        return parse_size("models_memory", self.models_memory)

    @property
    def has_tls(self) -> bool:
        """True if the server uses HTTPS."""
        return self.tls is not None or self.tls_cert is not None

    @property
    def usage_path(self) -> Path | None:
        """Return the usage file, or None if usage is not recorded."""
        if self.usage_file is not None or self.keys_file is None:
            return self.usage_file
        return models_folder().parent / "usage.db"
