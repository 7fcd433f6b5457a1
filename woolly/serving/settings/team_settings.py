"""TeamSettings: the settings of a server that several people use."""

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
    """Rows that Settings inherits, each with the group that it belongs to."""

    keys_file: Path | None = setting(  # noqa: RUF009
        None,
        "--keys-file",
        "File of named keys with limits, which `woolly keys` writes; a change counts at once.",
        "woolly.toml, if it has a table [keys]",
        group="Safety",
    )
    oidc_issuer: str | None = setting(
        None,
        "--oidc-issuer",
        "Address of an OIDC issuer whose tokens clients may send in place of a key.",
        group="Safety",
    )
    oidc_audience: str | None = setting(
        None, "--oidc-audience", "The audience (aud) that these tokens must have.", group="Safety"
    )
    oidc_admin: str | None = setting(
        None, "--oidc-admin", "CLAIM=VALUE of users who may load models, such as groups=llm-admins.", group="Safety"
    )
    names_file: Path | None = setting(  # noqa: RUF009
        None,
        "--names-file",
        "File with tables [models.NAME]: names for models, with settings of their own.",
        "woolly.toml, if it has a table [models]",
        group="Models",
    )
    models_memory: str | None = setting(
        None,
        "--models-memory",
        "Most memory of all loaded models together, such as 24GB: of the system, and of each set of GPUs.",
        "what is free",
        group="Models",
    )
    swap_wait: float = setting(
        10.0,
        "--swap-wait",
        "Seconds that requests for a loaded model go before one for another that would replace it; 0: none.",
        group="Models",
    )
    tls_cert: Path | None = setting(  # noqa: RUF009
        None,
        "--tls-cert --ssl-cert-file",
        "File with the certificate for HTTPS, in PEM; a change counts at once.",
        group="The network",
    )
    tls_key: Path | None = setting(  # noqa: RUF009
        None, "--tls-key --ssl-key-file", "File with the key of that certificate.", group="The network"
    )
    tls: str | None = setting(
        None,
        "--tls",
        "auto: HTTPS with a certificate that this machine signs itself, and keeps; the log shows its fingerprint.",
        "HTTP, without --tls-cert",
        group="The network",
    )
    metrics_names: str = setting(
        "woolly", "--metrics-names", "vllm adds vLLM's names, which its dashboards know.", group="Observation"
    )
    keep_requests: int = setting(
        0,
        "--keep-requests",
        "Last requests that an administrator may look at (/api/v1/requests), without their texts.",
        group="Observation",
    )
    keep_texts: bool = setting(False, "--keep-texts", "Keep texts of those requests too.", group="Observation")
    otlp_endpoint: str | None = setting(
        None,
        "--otlp-endpoint --otlp-traces-endpoint",
        "Address of an OpenTelemetry collector (OTLP over HTTP) that gets a span for each request, without texts.",
        "none",
        group="Observation",
    )
    usage_file: Path | None = setting(  # noqa: RUF009
        None,
        "--usage-file",
        "File that keeps what each key has used (`woolly usage`).",
        "usage.db beside the models folder, if --keys-file is given",
        group="Observation",
    )

    @property
    def named_keys(self) -> tuple[NamedKey, ...]:
        """Return the keys of --keys-file, which each call reads again."""
        from woolly.serving.accounts.keys_file import read_keys

        return () if self.keys_file is None else read_keys(self.keys_file)

    @property
    def issuer(self) -> Issuer | None:
        """Return the checker of --oidc-issuer's tokens, without its keys yet; None without an issuer."""
        from woolly.serving.accounts.oidc import Issuer

        if self.oidc_issuer is None or self.oidc_audience is None:
            return None
        return Issuer(self.oidc_issuer, self.oidc_audience, self.oidc_admin)

    @property
    def models_bytes(self) -> int | None:
        """Return the maximum memory of all loaded models together; None: the free memory."""
        from woolly.runtime import parse_size

        return parse_size("models_memory", self.models_memory)

    @property
    def has_tls(self) -> bool:
        """True if the server speaks HTTPS."""
        return self.tls is not None or self.tls_cert is not None

    @property
    def usage_path(self) -> Path | None:
        """Return the file that keeps usage; None if it is not kept."""
        if self.usage_file is not None or self.keys_file is None:
            return self.usage_file
        return models_folder().parent / "usage.db"
