"""Which addresses may be pulled: decided on text alone, and never told with the URL."""

from __future__ import annotations

import ipaddress

import pytest

from liveedge.core.errors import SourceUnavailable
from liveedge.media.pull_policy import PullPolicy, check_pull_address, check_pull_url

POLICY = PullPolicy(own_ports=frozenset({8080, 7880}), own_addresses=frozenset({"192.168.1.5"}))


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("rtsp://192.168.1.20/stream", "192.168.1.20", 554),
        ("rtsp://user:pa%40ss@10.0.0.7:8554/ch1", "10.0.0.7", 8554),
        ("rtsps://camera.example/a?b=c", "camera.example", 322),
        ("RTSP://Camera.Example./a", "camera.example", 554),
        ("rtsp://localhost:8554/x", "localhost", 8554),
        ("rtsp://127.0.0.1:8554/x", "127.0.0.1", 8554),
        ("rtsp://[::1]:8554/x", "::1", 8554),
        ("rtsp://[fd12::7]/x", "fd12::7", 554),
        ("rtsp://192.168.1.6:8080/x", "192.168.1.6", 8080),
        ("  rtsp://10.0.0.7/x\n", "10.0.0.7", 554),
    ],
)
def test_cameras_on_any_network_are_allowed(url: str, host: str, port: int) -> None:
    target = check_pull_url(url, policy=POLICY)
    assert (target.host, target.port) == (host, port)


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "169.254.1.2",
        "[fe80::1]",
        "[fe80::1%25eth0]",
        "[fd00:ec2::254]",
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:a9fe:a9fe::1]",
        "100.100.100.200",
        "168.63.129.16",
        "metadata.google.internal",
        "METADATA.google.internal.",
        "2852039166",
        "0xa9fea9fe",
        "0xa9.254.169.254",
        "0251.0376.0251.0376",
        "169.254.43518",
    ],
)
def test_metadata_addresses_are_never_pulled_however_they_are_written(host: str) -> None:
    with pytest.raises(SourceUnavailable, match="metadata addresses are never pulled"):
        check_pull_url(f"rtsp://{host}/latest", policy=POLICY)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.8.8.8",
        "localhost",
        "a.localhost",
        "[::1]",
        "0.0.0.0",
        "[::]",
        "192.168.1.5",
        "2130706433",
        "0x7f.1",
        "[::ffff:127.0.0.1]",
        "0",
    ],
)
def test_the_servers_own_ports_are_never_pulled(host: str) -> None:
    with pytest.raises(SourceUnavailable, match="a port of this server"):
        check_pull_url(f"rtsp://{host}:8080/x", policy=POLICY)


@pytest.mark.parametrize("host", ["224.0.0.1", "[ff02::1]", "255.255.255.255", "250.1.1.1"])
def test_addresses_that_are_no_host_are_refused(host: str) -> None:
    with pytest.raises(SourceUnavailable, match="multicast and reserved"):
        check_pull_url(f"rtsp://{host}/x", policy=POLICY)


@pytest.mark.parametrize("host", ["10.0.0.7", "192.168.1.20", "127.0.0.1", "[fd12::7]"])
def test_private_addresses_can_be_switched_off(host: str) -> None:
    strict = PullPolicy(allow_private=False)
    with pytest.raises(SourceUnavailable, match="need the setting allow_private_sources"):
        check_pull_url(f"rtsp://{host}/x", policy=strict)
    assert check_pull_url("rtsp://8.8.8.8/x", policy=strict).port == 554
    other = PullPolicy(allow_private=False, private_setting="allow_private_media")
    with pytest.raises(SourceUnavailable, match="need the setting allow_private_media"):
        check_pull_url(f"rtsp://{host}/x", policy=other)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://camera/x", "needs to begin with rtsp:// or rtsps://"),
        ("file:///etc/passwd", "needs to begin with"),
        ("camera/x", "needs to begin with"),
        ("", "needs to begin with"),
        ("rtsp://", "has no host"),
        ("rtsp:///path", "has no host"),
        ("rtsp://host:99999/x", "malformed"),
        ("rtsp://host:port/x", "malformed"),
        ("rtsp://[::1/x", "malformed"),
        ("rtsp://\0x", "control characters"),
        ("rtsp://host/a\nb", "control characters"),
        ("rtsp://host/\x7f", "control characters"),
        ("rtsp://1.2.3.4.5/x", None),
        ("rtsp://999.1.1.1/x", "not a valid address"),
    ],
)
def test_malformed_urls_are_refused(url: str, why: str | None) -> None:
    if why is None:  # five numbers are an odd name, not an address
        assert check_pull_url(url, policy=POLICY).address is None
        return
    with pytest.raises(SourceUnavailable, match=why):
        check_pull_url(url, policy=POLICY)


@pytest.mark.parametrize(
    "url",
    [
        "rtsp://admin:hunter2@169.254.169.254/secret-path",
        "rtsp://admin:hunter2@127.0.0.1:8080/secret-path",
        "http://admin:hunter2@host/secret-path",
        "rtsp://admin:hunter2@host:99999/secret-path",
    ],
)
def test_no_refusal_shows_any_part_of_the_url(url: str) -> None:
    with pytest.raises(SourceUnavailable) as caught:
        check_pull_url(url, policy=POLICY)
    for part in ("hunter2", "admin", "secret-path", "169.254", "127.0.0.1", "99999"):
        assert part not in caught.value.message


def test_what_a_name_resolved_to_is_judged_by_the_same_rules() -> None:
    check_pull_address(ipaddress.ip_address("192.168.1.20"), port=8080, policy=POLICY)
    with pytest.raises(SourceUnavailable, match="metadata"):
        check_pull_address(ipaddress.ip_address("169.254.169.254"), port=554, policy=POLICY)
    with pytest.raises(SourceUnavailable, match="port of this server"):
        check_pull_address(ipaddress.ip_address("::1"), port=7880, policy=POLICY)
