"""HTTPS: a certificate and its key, checked at the start and read again when they are renewed.

A renewed certificate is put into the context that is in use: connections that are open keep theirs,
new ones get the new one. What does not fit never replaces what does.

Thread  the server's event loop, which is also the one that makes connections.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from liveedge.core.clock import Clock
from liveedge.core.errors import SettingsInvalid

log = logging.getLogger("liveedge.tls")

HANDSHAKE_S = 10.0  # asyncio's own patience is a minute, and no limit of ours holds before its end
GOODBYE_S = 1.0  # for a client to answer the end of a connection; asyncio's own patience is 30
LOOK_EVERY_S = 60.0  # at the files: who renews certificates does not always send a signal


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Where they are."""

    cert: Path
    key: Path
    password: Path | None = None


class Certificate:
    """What this server shows to its clients."""

    def __init__(self, files: TlsFiles, *, clock: Clock) -> None:
        """Raises SettingsInvalid."""
        self.context = _context()
        self._files = files
        self._clock = clock
        self._seen: object = None
        self.not_after_s = 0.0  # Unix
        self._load()

    def reload(self) -> bool:
        """Take what is in the files now; False, and a line in the log, where it cannot be used."""
        try:
            self._load()
        except SettingsInvalid as error:
            log.error("the certificate in use is kept: %s", error.message)  # noqa: TRY400  a user's mistake
            return False
        return True

    async def watch(self) -> None:
        """For ever: take what changed."""
        while True:
            await self._clock.sleep(LOOK_EVERY_S)
            if self._stamp() != self._seen:
                self.reload()

    def _load(self) -> None:
        self._seen = self._stamp()
        password = _read_password(self._files.password)
        _load_chain(_context(), self._files, password)  # on trial: half a chain would stay
        not_before, not_after, name = _facts(self._files.cert)
        _load_chain(self.context, self._files, password)
        self.not_after_s = not_after.timestamp()
        now = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)
        if not not_before <= now <= not_after:
            log.warning(
                "the certificate of %s is valid from %s to %s only", name, not_before, not_after
            )
        else:
            log.info("HTTPS with a certificate of %s, valid until %s", name, not_after)

    def _stamp(self) -> object:
        files = (self._files.cert, self._files.key)
        try:
            found = [path.stat() for path in files]
        except OSError:  # being replaced at this moment, or gone
            return None
        return [(one.st_mtime_ns, one.st_size, one.st_ino) for one in found]


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _read_password(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsInvalid(f"tls_key_password_file {path} cannot be read: {error}") from error


def _load_chain(context: ssl.SSLContext, files: TlsFiles, password: str | None) -> None:
    for name, path in (("tls_cert", files.cert), ("tls_key", files.key)):
        try:
            path.read_bytes()
        except OSError as error:
            raise SettingsInvalid(
                f"{name} {path} cannot be read: {error.strerror or error}"
            ) from error
    try:
        # Without a password OpenSSL would ask the terminal for one.
        context.load_cert_chain(files.cert, files.key, password=lambda: password or "")
    except ssl.SSLError as error:
        raise SettingsInvalid(_explained(error, files, has_password=bool(password))) from error


def _explained(error: ssl.SSLError, files: TlsFiles, *, has_password: bool) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"tls_key {files.key} is not the key of the certificate in tls_cert {files.cert}"
    if b"ENCRYPTED" in files.key.read_bytes():
        hint = "its password is wrong" if has_password else "give tls_key_password_file"
        return f"tls_key {files.key} is encrypted and cannot be opened: {hint}"
    return (
        f"tls_cert {files.cert} and tls_key {files.key} cannot be used: they need to be a"
        f" certificate and its private key as PEM ({error.reason or 'not PEM'})"
    )


def _facts(path: Path) -> tuple[datetime, datetime, str]:
    """From when to when it is valid, and for whom."""
    try:
        cert = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise SettingsInvalid(f"tls_cert {path} is no certificate in PEM") from error
    return cert.not_valid_before_utc, cert.not_valid_after_utc, _name(cert)


def _name(cert: x509.Certificate) -> str:
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        shown = [str(one.value) for one in names][:3]
    except x509.ExtensionNotFound:
        shown = []
    return ", ".join(shown) or cert.subject.rfc4514_string() or "nobody"


class TlsLoop(asyncio.SelectorEventLoop):
    """An event loop whose TLS servers are less patient with their clients: uvicorn passes no limit on."""

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:
        if options.get("ssl") is not None:
            options.setdefault("ssl_handshake_timeout", HANDSHAKE_S)
            options.setdefault("ssl_shutdown_timeout", GOODBYE_S)
        return await super().create_server(*args, **options)
