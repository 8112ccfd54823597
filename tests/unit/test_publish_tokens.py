"""Publish tokens: what they allow, and a clear text for each that is refused."""

import base64
import json

import jwt
import pytest

from liveedge.core.errors import Unauthorized
from liveedge.service.tokens import LEEWAY_S, MAX_TOKEN_CHARS, PublishTokens
from liveedge.testing.clock import FakeClock

SECRET = b"0123456789abcdef0123456789abcdef"
OTHER_SECRET = b"fedcba9876543210fedcba9876543210"


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def tokens(clock):
    return PublishTokens(SECRET, clock=clock)


def claims_of(token):
    return jwt.decode(token, options={"verify_signature": False})


def signed(claims, *, secret=SECRET, algorithm="HS256"):
    return jwt.encode(claims, secret, algorithm=algorithm)


def refusal(tokens, token):
    with pytest.raises(Unauthorized) as refused:
        tokens.check(token)
    assert token[:20] not in refused.value.message or len(token) < 20
    return refused.value.message


def test_a_token_lets_its_holder_publish_into_its_stream(tokens, clock):
    grant = tokens.check(tokens.make("stream-1", valid_s=300))
    assert grant.stream_id == "stream-1"
    assert grant.identity.startswith("publisher-")
    assert grant.expires_at_ms == (clock.wall_ms() // 1000 + 300 + LEEWAY_S) * 1000


def test_a_token_allows_nothing_but_publishing(tokens):
    video = claims_of(tokens.make("stream-1", valid_s=300))["video"]
    assert video == {
        "room": "stream-1",
        "roomJoin": True,
        "canPublish": True,
        "canSubscribe": False,
        "canPublishData": False,
    }


def test_two_tokens_are_never_equal(tokens):
    assert tokens.make("stream-1", valid_s=300) != tokens.make("stream-1", valid_s=300)


def test_a_token_ends_with_its_lease_and_a_minute(tokens, clock):
    token = tokens.make("stream-1", valid_s=300)
    clock.move(300 + LEEWAY_S - 1)
    tokens.check(token)
    clock.move(1)
    assert "has expired" in refusal(tokens, token)
    assert "keepalive" in refusal(tokens, token)


def test_a_token_for_another_stream_is_refused_by_name(tokens):
    token = tokens.make("stream-1", valid_s=300)
    tokens.check_for(token, "stream-1")
    with pytest.raises(Unauthorized, match="is for stream stream-1, not for stream-2"):
        tokens.check_for(token, "stream-2")


def test_a_token_of_another_server_is_refused(tokens, clock):
    theirs = PublishTokens(OTHER_SECRET, clock=clock).make("stream-1", valid_s=300)
    assert "not signed by this server" in refusal(tokens, theirs)


def test_a_changed_token_is_refused(tokens):
    head, body, signature = tokens.make("stream-1", valid_s=300).split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    claims["video"]["room"] = "stream-2"
    changed = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    assert "not signed by this server" in refusal(tokens, f"{head}.{changed}.{signature}")


@pytest.mark.parametrize("algorithm", ["none", "HS384", "HS512"])
def test_a_token_that_is_signed_in_another_way_is_refused(tokens, algorithm):
    claims = claims_of(tokens.make("stream-1", valid_s=300))
    secret = "" if algorithm == "none" else SECRET * 2
    token = signed(claims, secret=secret, algorithm=algorithm)
    assert "is not signed with HS256" in refusal(tokens, token)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"iss": "somebody"}, "issued by somebody else than liveedge"),
        ({"iss": None}, "iss"),
        ({"exp": None}, "lacks the claim exp"),
        ({"sub": None}, "lacks the claim sub"),
        ({"exp": "soon"}, "has expired"),
        ({"nbf": 4_000_000_000}, "not valid yet"),
        ({"video": None}, "does not allow publishing"),
        ({"video": ["room"]}, "does not allow publishing"),
        ({"video": {"room": "s", "roomJoin": True}}, "does not allow publishing"),
        ({"video": {"room": 7, "roomJoin": True, "canPublish": True}}, "does not allow"),
        ({"video": {"room": "s", "roomJoin": "yes", "canPublish": True}}, "does not allow"),
    ],
)
def test_claims_that_do_not_fit_are_refused(tokens, change, text):
    claims = claims_of(tokens.make("stream-1", valid_s=300))
    kept = {key: value for key, value in {**claims, **change}.items() if value is not None}
    assert text in refusal(tokens, signed(kept))


@pytest.mark.parametrize("token", ["x", "a.b.c", "....", "é" * 10, "eyJhbGciOiJIUzI1NiJ9.W10.AAAA"])
def test_what_is_no_token_is_refused(tokens, token):
    with pytest.raises(Unauthorized):
        tokens.check(token)


def test_no_token_says_how_to_send_one(tokens):
    assert "Authorization: Bearer" in refusal(tokens, "")


def test_an_endless_token_is_not_even_looked_at(tokens):
    assert f"longer than {MAX_TOKEN_CHARS}" in refusal(tokens, "x" * (MAX_TOKEN_CHARS + 1))


def test_a_short_secret_is_a_mistake(clock):
    with pytest.raises(ValueError, match="has 8 bytes, needs 32"):
        PublishTokens(b"12345678", clock=clock)
