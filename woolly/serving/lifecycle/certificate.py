"""TLS certificate of the server: reloaded while the server runs, or self-signed."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import ssl
import subprocess
import time
from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path
from shutil import which
from typing import Any

from woolly.errors import RequestError
from woolly.serving.settings.table import Settings
from woolly.store import models_folder

_DAYS = 825  # the maximum that Apple's systems accept
_SPARE = 30 * 86_400  # a self-signed certificate is renewed this many seconds before it expires
_OPENSSL = 60  # seconds for the openssl command
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class Certificate:
    """A certificate, its key and an SSL context for new connections."""

    def __init__(self, cert: Path, key: Path) -> None:
        """Raise RequestError if the files are unreadable or do not match, or the certificate is not currently valid."""
        self.files = (cert, key)
        self.context = _new_context()
        self.fingerprint = ""
        self.read()

    def read(self) -> None:
        """Reload the files for new connections. Raises RequestError under the same conditions as the constructor."""
        cert, key = self.files
        _check_times(cert)
        for context in (_new_context(), self.context):  # if the new context fails, the current one is unchanged
            try:
                # An empty password prevents OpenSSL from asking for one at the terminal.
                context.load_cert_chain(cert, key, password=lambda: "")
            except ssl.SSLError as error:
                reason = (error.reason or str(error)).lower().replace("_", " ")
                raise RequestError(
                    f"tls_cert {cert} and tls_key {key} cannot be used: {reason}; expected a PEM certificate and its"
                    " key without a password",
                    field="tls_cert",
                ) from None
            except OSError as error:
                raise RequestError(
                    f"tls_key is {key}, which cannot be read: {error.strerror}", field="tls_key"
                ) from None
        self.fingerprint = _fingerprint(cert)


def certificate_of(settings: Settings) -> Certificate | None:
    """Return the certificate of --tls-cert or --tls auto, or None without TLS."""
    if settings.tls is not None:
        return Certificate(*make_certificate(settings.host, models_folder().parent / "tls"))
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return Certificate(settings.tls_cert, settings.tls_key)


def make_certificate(host: str, folder: Path) -> tuple[Path, Path]:
    """Return the paths of a self-signed certificate and its key, creating them if necessary.

    Raises RequestError if neither the package cryptography nor the command openssl is installed, or if the folder is
    not writable.
    """
    names = _names_of(host)
    stem = f"auto-{hashlib.sha256(' '.join(names).encode()).hexdigest()[:8]}"
    cert, key = folder / f"{stem}.pem", folder / f"{stem}-key.pem"
    if cert.exists() and key.exists() and _ends(cert) > time.time() + _SPARE:
        return cert, key
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.close(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))  # private before the key is written
        try:
            import cryptography  # noqa: F401 - not a dependency of Woolly, but of many packages
        except ImportError:
            _by_openssl(names, cert, key)
        else:
            _by_cryptography(names, cert, key)
    except OSError as error:
        raise RequestError(f"tls is auto, but {folder} cannot be written: {error.strerror}", field="tls") from None
    return cert, key


def _by_cryptography(names: tuple[str, ...], cert: Path, key: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    secret = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "woolly")])
    now = datetime.now(timezone.utc)
    known: list[x509.GeneralName] = [
        x509.IPAddress(ip_address(name)) if _is_address(name) else x509.DNSName(name) for name in names
    ]
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName(known), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(secret.public_key()), critical=False)
        .sign(secret, hashes.SHA256())
    )
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    key.write_bytes(secret.private_bytes(*form))
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))


def _by_openssl(names: tuple[str, ...], cert: Path, key: Path) -> None:
    if which("openssl") is None:
        raise RequestError(
            "--tls auto needs the Python package cryptography or the command openssl; install one of them, or"
            " set tls_cert and tls_key",
            field="tls",
            names=("tls_cert", "tls_key"),
        )
    known = ",".join(f"{'IP' if _is_address(name) else 'DNS'}:{name}" for name in names)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", str(_DAYS), "-subj", "/CN=woolly", "-addext", f"subjectAltName={known}"]
    command += ["-addext", "basicConstraints=critical,CA:FALSE", "-addext", "extendedKeyUsage=serverAuth"]
    done = subprocess.run(
        [*command, "-keyout", str(key), "-out", str(cert)], capture_output=True, text=True, timeout=_OPENSSL
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise RequestError(f"openssl could not create a certificate: {last}", field="tls")


def _names_of(host: str) -> tuple[str, ...]:
    """Return the host names and addresses that clients may use for this machine."""
    names = {"localhost", "127.0.0.1", "::1", socket.gethostname().lower()}
    if host in ("0.0.0.0", "::"):
        names |= {address for address in (_own_address(),) if address is not None}
    else:
        names.add(host.lower())
    return tuple(sorted(name for name in names if _is_address(name) or re.fullmatch(r"[a-z0-9.-]{1,253}", name)))


def _own_address() -> str | None:
    """Return this machine's address in its network, without sending data."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address; connecting only selects the route
            return str(probe.getsockname()[0])
        except OSError:
            return None


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
        return True
    except ValueError:
        return False


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # TLS 1.2 only with forward secrecy and authenticated encryption, because scanners report CBC (LUCKY13).
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
    context.options |= ssl.OP_NO_RENEGOTIATION  # clients could repeat the expensive handshake
    context.set_alpn_protocols(["http/1.1"])
    return context


def _check_times(cert: Path) -> None:
    """Raise RequestError if the certificate cannot be read or is not currently valid."""
    now = time.time()
    begins, ends = _times(cert)
    if not begins <= now < ends:
        word, when = ("expired on", ends) if now >= ends else ("is not valid before", begins)
        day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(when))
        raise RequestError(f"tls_cert {cert} {word} {day}; use a certificate that is valid now", field="tls_cert")


def _ends(cert: Path) -> float:
    try:
        return _times(cert)[1]
    except RequestError:
        return 0.0


def _times(cert: Path) -> tuple[float, float]:
    """Return the start and end of the validity of a file's first certificate, in seconds since 1970."""
    # Python's only certificate parser; the ssl module uses it in its tests.
    decode: Any = ssl._ssl._test_decode_cert  # type: ignore[attr-defined]
    try:
        cert.open("rb").close()  # the parser gives the same error for missing and invalid files
        found = decode(str(cert))
    except (ssl.SSLError, OSError) as error:
        reason = "it is not a certificate in PEM" if isinstance(error, ssl.SSLError) else error.strerror
        raise RequestError(f"tls_cert is {cert}, which cannot be read: {reason}", field="tls_cert") from None
    begins, ends = (ssl.cert_time_to_seconds(found[name]) for name in ("notBefore", "notAfter"))
    return float(begins), float(ends)


def _fingerprint(cert: Path) -> str:
    """Return the SHA-256 fingerprint of a file's first certificate, in the format of browsers."""
    found = _PEM.search(cert.read_text(encoding="ascii", errors="replace"))
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(found[0])).hexdigest() if found else ""
    return ":".join(re.findall("..", digest.upper()))
