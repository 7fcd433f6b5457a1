"""Settings that are parsed from strings, such as sizes, or read from files, such as keys and templates."""

from __future__ import annotations

import os
import stat
import warnings
from pathlib import Path

from woolly.errors import RequestError


class Texts:
    """Part of Settings that parses sizes and reads files."""

    max_files: str
    max_body: str
    max_bodies: str
    max_session_size: str
    api_key: tuple[str, ...]
    admin_key: tuple[str, ...]
    api_key_file: Path | None
    admin_key_file: Path | None
    token_secret: str | None
    token_secret_file: Path | None
    chat_template: str | None
    chat_template_file: Path | None
    cluster_secret: str | None
    cluster_secret_file: Path | None

    @property
    def max_files_bytes(self) -> int:
        """Return the maximum bytes of one client's files."""
        return _bytes("max_files", self.max_files)

    @property
    def max_body_bytes(self) -> int:
        """Return the maximum bytes of one body."""
        return _bytes("max_body", self.max_body)

    @property
    def max_bodies_bytes(self) -> int:
        """Return the maximum bytes of all bodies together."""
        return _bytes("max_bodies", self.max_bodies)

    @property
    def max_session_bytes(self) -> int:
        """Return the maximum bytes of one session's messages."""
        return _bytes("max_session_size", self.max_session_size)

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys of --api-key, --admin-key and their files, which are read on each call."""
        return (*self.api_key, *self.admin_keys, *_lines_of("api_key_file", self.api_key_file))

    @property
    def admin_keys(self) -> tuple[str, ...]:
        """Return the keys of --admin-key and its file, which is read on each call."""
        return (*self.admin_key, *_lines_of("admin_key_file", self.admin_key_file))

    @property
    def signing_secret(self) -> str | None:
        """Return the secret that signs tokens; reads --token-secret-file."""
        file = self.token_secret_file
        return self.token_secret if file is None else _secret_of("token_secret_file", file)

    @property
    def template_source(self) -> str | None:
        """Return the template of --chat-template, given as text or by name."""
        from woolly.templates import builtin_template

        return None if self.chat_template is None else builtin_template(self.chat_template) or self.chat_template

    @property
    def given_template(self) -> str | None:
        """Return the template that replaces the model's template; reads --chat-template-file."""
        file = self.chat_template_file
        return self.template_source if file is None else text_of("chat_template_file", file)

    @property
    def secret(self) -> str | None:
        """Return the secret shared with remote replicas; reads --cluster-secret-file."""
        file = self.cluster_secret_file
        return self.cluster_secret if file is None else _secret_of("cluster_secret_file", file)


def _bytes(name: str, value: str) -> int:
    from woolly.runtime import parse_size  # imported late, because --help must not need NumPy

    return parse_size(name, value) or 0


def _lines_of(name: str, path: Path | None) -> list[str]:
    """Return the lines of a file, without comments and empty lines."""
    lines = [] if path is None else _secret_of(name, path).splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _secret_of(name: str, path: Path) -> str:
    text = text_of(name, path).strip()
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        # All callers warn from this line, so that Python shows the warning only once.
        warnings.warn(f"other users can read the secret in {path}; run chmod 600", stacklevel=1)
    return text


def text_of(name: str, path: Path) -> str:
    """Return the text of a setting's file. Raises RequestError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise RequestError(f"{name} is {path}, which cannot be read: {reason}", field=name) from None
