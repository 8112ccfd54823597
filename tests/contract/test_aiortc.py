"""What we use of aiortc and aioice beyond their promises is still there, as it was when we read it.

A failure here means that another version is installed than the one pinned in pyproject.toml, or that
the pin was raised: then read media/webrtc/private.py beside the new source, and these tests again.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pylibsrtp
import pytest
from aioice import Candidate, Connection, ice, stun
from aiortc import RTCSctpTransport
from aiortc.rtcdtlstransport import SRTP_PROFILES, RTCDtlsTransport, State

from liveedge.media.webrtc import private
from liveedge.media.webrtc.private import (
    CONNECTION_ATTRIBUTES,
    DTLS_ATTRIBUTES,
    REQUIRED,
    SCTP_ATTRIBUTES,
    STUN_ATTRIBUTES,
    DataChannels,
    Link,
    new_certificate,
)

pytestmark = pytest.mark.contract
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
HINT = "read media/webrtc/private.py beside the installed aiortc and aioice"


def test_the_version_is_the_one_that_was_read() -> None:
    pinned = re.search(r'"aiortc==([^"]+)"', PYPROJECT.read_text(encoding="utf-8"))
    assert pinned is not None, "aiortc has to be pinned exactly: private parts of it are used"
    assert version("aiortc") == pinned[1] == "1.16.0", HINT
    assert version("aioice").startswith("0.13"), HINT


def test_private_parts_are_used_in_one_module_and_all_of_them_are_named() -> None:
    media = Path(private.__file__).parents[1]
    importing = [
        path.name
        for path in sorted(media.rglob("*.py"))
        if re.search(r"^\s*(from|import) (aiortc|aioice)", path.read_text(encoding="utf-8"), re.M)
    ]
    assert importing == ["private.py"]
    source = Path(private.__file__).read_text(encoding="utf-8")
    used = set(re.findall(r"(?:connection|_dtls|pair|sctp)\.(_[a-z]\w+)", source))
    named = {*CONNECTION_ATTRIBUTES, *DTLS_ATTRIBUTES, *(n for _, names in REQUIRED for n in names)}
    assert used - named == set()


@pytest.mark.parametrize(("owner", "names"), REQUIRED)
def test_the_names_exist(owner: Any, names: tuple[str, ...]) -> None:
    missing = [name for name in names if not hasattr(owner, name)]
    assert not missing, f"{owner} has no {missing}; {HINT}"


async def test_the_attributes_exist() -> None:
    connection = Connection(ice_controlling=False)
    dtls = RTCDtlsTransport(private._IceTransport(connection), [new_certificate()])  # type: ignore[arg-type]
    end = ice.StunProtocol(connection)
    for owner, names in (
        (connection, CONNECTION_ATTRIBUTES),
        (dtls, DTLS_ATTRIBUTES),
        (DataChannels(dtls), SCTP_ATTRIBUTES),
        (end, STUN_ATTRIBUTES),
    ):
        missing = [name for name in names if not hasattr(owner, name)]
        assert not missing, f"{owner} has no {missing}; {HINT}"
    assert dtls.state == "new"
    assert isinstance(connection._queue, asyncio.Queue)
    assert {state.name for state in State} == {"NEW", "CONNECTING", "CONNECTED", "CLOSED", "FAILED"}


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (Connection.data_received, ["self", "data", "component"]),
        (Connection.add_remote_candidate, ["self", "remote_candidate"]),
        (Connection.request_received, ["self", "message", "addr", "protocol"]),
        (ice.StunProtocol.datagram_received, ["self", "data", "addr"]),
        (ice.StunProtocol.connection_lost, ["self", "exc"]),
        (ice.server_reflexive_candidate, ["protocol", "stun_server"]),
        (ice.get_host_addresses, ["use_ipv4", "use_ipv6"]),
        (ice.CandidatePair.__init__, ["self", "protocol", "remote_candidate"]),
        (stun.parse_message, ["data"]),
        (stun.Message.check_message_integrity, ["self", "key"]),
        (RTCDtlsTransport.start, ["self", "remoteParameters"]),
        (RTCDtlsTransport._set_role, ["self", "role"]),
        (RTCSctpTransport.start, ["self", "remoteCaps", "remotePort"]),
        (RTCSctpTransport._handle_data, ["self", "data"]),
        (RTCSctpTransport._receive, ["self", "stream_id", "pp_id", "data"]),
        (RTCSctpTransport._receive_data_chunk, ["self", "chunk"]),
        (RTCSctpTransport._receive_forward_tsn_chunk, ["self", "chunk"]),
        (RTCSctpTransport._receive_sack_chunk, ["self", "chunk"]),
        (pylibsrtp.Session.unprotect, ["self", "packet"]),
        (pylibsrtp.Session.remove_stream, ["self", "ssrc"]),
    ],
)
def test_the_parameters_are_those_that_are_given(function: Any, parameters: list[str]) -> None:
    assert list(inspect.signature(function).parameters) == parameters, HINT


def test_relays_take_what_they_are_given() -> None:
    taken = set(inspect.signature(ice.relayed_candidate).parameters)
    assert taken == {
        "component",
        "hide_related_address",
        "protocol_factory",
        "turn_server",
        "turn_username",
        "turn_password",
        "turn_ssl",
        "turn_transport",
    }, HINT


def test_dtls_reads_from_what_we_call_a_transport() -> None:
    """Nothing else of a transport may be needed than `_IceTransport` has."""
    used = set(re.findall(r"self\.transport\.(\w+)", inspect.getsource(RTCDtlsTransport)))
    assert used == {"_recv", "_send", "role"}, HINT


def test_ice_sends_and_closes_through_what_we_call_a_socket() -> None:
    used = set(re.findall(r"self\.transport\.(\w+)", inspect.getsource(ice.StunProtocol)))
    assert used == {"sendto", "close"}, HINT


def test_keys_for_srtp_can_be_had() -> None:
    assert SRTP_PROFILES


async def test_media_never_reaches_the_unbounded_queue() -> None:
    got: list[bytes] = []
    link = Link(
        ports=None,  # type: ignore[arg-type]  # no socket is opened
        certificate=new_certificate(),
        ice_servers=(),
        on_rtp=got.append,
        on_rtcp=got.append,
        wants=lambda _packet: True,
        on_down=got.append,  # type: ignore[arg-type]
    )
    connection = link._connection
    for _ in range(1000):
        connection.data_received(b"\x80" + bytes(40), 1)  # media, and there are no keys yet
        connection.data_received(b"\x16" + bytes(40), 1)  # DTLS, and nobody reads yet
        connection.data_received(b"\x50" + bytes(40), 1)  # neither
    assert connection._queue.qsize() == private.MAX_DTLS_WAITING
    assert link.n_unwanted == 3000 - private.MAX_DTLS_WAITING
    assert got == []


async def test_candidates_have_the_fields_that_are_told() -> None:
    candidate = Candidate("f", 1, "udp", 5, "10.0.0.1", 9, "host")
    assert (candidate.host, candidate.port, candidate.type) == ("10.0.0.1", 9, "host")
