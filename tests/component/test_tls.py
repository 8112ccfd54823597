"""HTTPS: what is wrong with a certificate is told at the start, and a renewed one is taken while streams
go on."""

from __future__ import annotations

import logging
import re
import shutil
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from websockets.sync.client import connect

from liveedge.api.tls import LOOK_EVERY_S, Certificate, TlsFiles
from liveedge.client.http import Client, Refused
from liveedge.core.clock import SystemClock
from liveedge.core.errors import SettingsInvalid
from liveedge.server import BackgroundServer
from liveedge.settings import Settings
from liveedge.testing.clock import FakeClock
from liveedge.testing.engine import FakeEngine
from tests.certificates import Pair, self_signed
from tests.serving import SMALL, picture


def certificate(pair: Pair, *, password: Path | None = None) -> Certificate:
    files = TlsFiles(cert=pair.cert, key=pair.key, password=password)
    return Certificate(files, clock=SystemClock())


@contextmanager
def serving_tls(pair: Pair) -> Iterator[BackgroundServer]:
    clock = SystemClock()
    settings = Settings(port=0, tls_cert=pair.cert, tls_key=pair.key, **SMALL)
    engine = FakeEngine(clock=clock)
    with BackgroundServer(settings, clock=clock, load_engine=lambda: engine) as server:
        yield server


def trusting(pair: Pair) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=pair.cert)


def shown_serial(url: str) -> int:
    port = int(url.rpartition(":")[2])
    pem = ssl.get_server_certificate(("127.0.0.1", port))
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


def test_routes_addresses_and_sockets_are_secure(tmp_path: Path) -> None:
    pair = self_signed(tmp_path)
    context = trusting(pair)
    with serving_tls(pair) as server, httpx.Client(
        base_url=server.url, verify=context, trust_env=False
    ) as client:  # fmt: skip
        assert server.url.startswith("https://127.0.0.1:")
        assert client.get("/health").json() == {"status": "ok"}
        publish = client.post("/v1/streams").json()["publish"]
        address = server.url.removeprefix("https")
        assert publish["url"] == f"wss{address}"
        assert publish["whip_url"].startswith(f"https{address}/")
        pushed = client.post("/v1/streams", json={"source": {"type": "push"}}).json()["id"]
        with connect(f"wss{address}/v1/streams/{pushed}/frames", ssl=context) as socket:
            socket.send(picture())
            assert '"frame_index":0' in str(socket.recv()).replace(" ", "")


def test_old_versions_and_plain_http_get_nothing(tmp_path: Path) -> None:
    pair = self_signed(tmp_path)
    with serving_tls(pair) as server:
        old = trusting(pair)
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = ssl.TLSVersion.TLSv1_1
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        for url, context in ((server.url, old), (server.url.replace("https", "http"), None)):
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{url}/health", verify=context or True, trust_env=False)
        assert httpx.get(f"{server.url}/health", verify=trusting(pair), trust_env=False).is_success


def test_our_client_trusts_what_ssl_cert_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = self_signed(tmp_path)
    with serving_tls(pair) as server:
        with (
            Client(server.url, clock=SystemClock()) as stranger,
            pytest.raises(Refused, match="CERTIFICATE_VERIFY_FAILED"),
        ):
            stranger.models()
        monkeypatch.setenv("SSL_CERT_FILE", str(pair.cert))
        with Client(server.url, clock=SystemClock()) as friend:
            assert friend.models()


def test_a_renewed_certificate_is_taken_and_open_connections_go_on(tmp_path: Path) -> None:
    pair, renewed = self_signed(tmp_path), self_signed(tmp_path, "renewed")
    with serving_tls(pair) as server, httpx.Client(
        base_url=server.url, verify=trusting(pair), trust_env=False
    ) as client:  # fmt: skip
        assert client.get("/health").is_success
        assert shown_serial(server.url) == pair.serial
        shutil.copy(renewed.cert, pair.cert)
        shutil.copy(renewed.key, pair.key)
        assert server.built.certificate.reload()
        assert shown_serial(server.url) == renewed.serial
        assert client.get("/health").is_success  # on its old connection


def test_half_a_renewal_keeps_the_certificate_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair, renewed = self_signed(tmp_path), self_signed(tmp_path, "renewed")
    with serving_tls(pair) as server:
        shutil.copy(renewed.cert, pair.cert)
        assert not server.built.certificate.reload()
        assert "the certificate in use is kept: tls_key" in caplog.text
        assert shown_serial(server.url) == pair.serial


async def test_changed_files_are_noticed_without_a_signal(tmp_path: Path) -> None:
    pair, renewed = self_signed(tmp_path), self_signed(tmp_path, "renewed", days=90)
    clock = FakeClock()
    found = Certificate(TlsFiles(cert=pair.cert, key=pair.key), clock=clock)
    before_s = found.not_after_s
    shutil.copy(renewed.cert, pair.cert)
    shutil.copy(renewed.key, pair.key)
    watching = found.watch()
    turn = watching.send(None)  # asleep until the first look
    assert turn is not None
    clock.move(LOOK_EVERY_S)
    turn.set_result(None)
    watching.send(None)
    assert found.not_after_s > before_s
    watching.close()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda pair, other: pair.cert.unlink(), "tls_cert .*server.pem cannot be read: No such"),
        (lambda pair, other: pair.key.unlink(), "tls_key .*server.key cannot be read: No such"),
        (lambda pair, other: shutil.copy(other.key, pair.key), "is not the key of the certificate"),
        (lambda pair, other: pair.cert.write_text("hello"), "need to be a certificate and its"),
        (lambda pair, other: pair.key.write_text("hello"), "need to be a certificate and its"),
    ],
)
def test_what_cannot_be_used_is_told_at_the_start(tmp_path: Path, spoil, told: str) -> None:
    pair, other = self_signed(tmp_path), self_signed(tmp_path, "other")
    spoil(pair, other)
    with pytest.raises(SettingsInvalid, match=told):
        certificate(pair)


def test_an_encrypted_key_needs_its_password_and_never_asks_the_terminal(tmp_path: Path) -> None:
    pair = self_signed(tmp_path, password="hush-hush")
    password = tmp_path / "password"
    with pytest.raises(SettingsInvalid, match=r"is encrypted .* give tls_key_password_file"):
        certificate(pair)
    password.write_text("wrong\n")
    with pytest.raises(SettingsInvalid, match=r"is encrypted .* its password is wrong"):
        certificate(pair, password=password)
    password.write_text("hush-hush\n")
    assert certificate(pair, password=password).not_after_s > 0


def test_one_that_is_over_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    certificate(self_signed(tmp_path, days=-3))
    assert re.search(r"certificate of localhost, 127.0.0.1 is valid from .* only", caplog.text)


@pytest.mark.parametrize("given", [{"tls_cert": "c"}, {"tls_key": "k"}])
def test_a_certificate_and_a_key_belong_together(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"is missing: HTTPS needs tls_cert and tls_key"):
        Settings(**given)
