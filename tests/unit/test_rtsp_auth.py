"""Challenges of cameras are answered as the standards' own examples are."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from liveedge.media.rtsp_auth import Authorizer, Credentials, challenges_in, credentials_of

REALM = 'realm="http-auth@example.org"'
RFC_7616 = (
    f'Digest {REALM}, qop="auth, auth-int", algorithm={{}}, '
    'nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", '
    'opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS"'
)
MUFASA = Credentials(b"Mufasa", b"Circle of Life")


def answer(
    challenge: str, who: Credentials, *, own_nonce: str = "", method: str = "GET", url: str
) -> str:
    authorizer = Authorizer(who, make_nonce=lambda: own_nonce)
    assert authorizer.challenged([challenge])
    ((name, value),) = authorizer.header(method, url)
    assert name == "Authorization"
    return value


@pytest.mark.parametrize(
    ("algorithm", "response"),
    [
        ("MD5", "8ca523f5e9506fed4657c9700eebdbec"),
        ("SHA-256", "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
    ],
)
def test_the_examples_of_rfc_7616_are_answered_as_printed(algorithm: str, response: str) -> None:
    value = answer(
        RFC_7616.format(algorithm),
        MUFASA,
        own_nonce="f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ",
        url="/dir/index.html",
    )
    assert f'response="{response}"' in value
    assert f"algorithm={algorithm}" in value
    assert 'opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS"' in value
    assert "nc=00000001" in value
    assert "qop=auth" in value


def test_the_example_of_rfc_2617_is_answered_as_printed() -> None:
    value = answer(
        'Digest realm="testrealm@host.com", qop="auth,auth-int", '
        'nonce="dcd98b7102dd2f0e8b11d0f600bfb0c093", opaque="5ccc069c403ebaf9f0171e9517f40e41"',
        Credentials(b"Mufasa", b"Circle Of Life"),
        own_nonce="0a4f113b",
        url="/dir/index.html",
    )
    assert 'response="6629fae49393a05397450978507c4ef1"' in value


def test_without_a_quality_of_protection_the_older_form_is_used() -> None:
    """As most cameras ask. The number is MD5(MD5(u:r:p):n:MD5(DESCRIBE:rtsp://cam/x))."""
    value = answer(
        'Digest realm="r", nonce="n"',
        Credentials(b"u", b"p"),
        method="DESCRIBE",
        url="rtsp://cam/x",
    )
    assert value == (
        'Digest username="u", realm="r", nonce="n", uri="rtsp://cam/x",'
        ' response="81eb27c769fc336c2331590cd8a1d59f"'
    )


def test_a_basic_challenge_is_answered_with_user_and_password() -> None:
    value = answer('Basic realm="x"', Credentials(b"Aladdin", b"open sesame"), url="/")
    assert value == "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="


@pytest.mark.parametrize(
    "headers",
    [
        ['Basic realm="a, b"', 'Digest realm="c", nonce="1"', 'Digest realm="c", nonce="2", algorithm=SHA-256'],
        ['Basic realm="a, b", Digest realm="c", nonce="1", Digest nonce="2", realm="c", algorithm=SHA-256'],
    ],
)  # fmt: skip
def test_of_several_challenges_the_strongest_is_answered(headers: list[str]) -> None:
    assert [challenge.scheme for challenge in challenges_in(headers)] == [
        *("basic", "digest", "digest")
    ]
    authorizer = Authorizer(MUFASA)
    assert authorizer.challenged(headers)
    assert 'nonce="2"' in authorizer.header("PLAY", "x")[0][1]


def test_the_same_question_twice_is_a_refusal_but_a_stale_nonce_is_not() -> None:
    authorizer = Authorizer(MUFASA)
    assert authorizer.header("OPTIONS", "x") == ()
    assert authorizer.challenged(['Digest realm="r", nonce="1", qop="auth"'])
    assert "nc=00000001" in authorizer.header("OPTIONS", "x")[0][1]
    assert "nc=00000002" in authorizer.header("OPTIONS", "x")[0][1]
    assert authorizer.challenged(['Digest realm="r", nonce="2", qop="auth", stale=TRUE'])
    again = authorizer.header("OPTIONS", "x")[0][1]
    assert 'nonce="2"' in again
    assert "nc=00000001" in again
    assert not authorizer.challenged(['Digest realm="r", nonce="3", qop="auth"'])


def test_a_camera_that_changes_its_nonce_with_each_request_is_followed_once_it_let_us_in() -> None:
    authorizer = Authorizer(MUFASA)
    authorizer.accepted()  # an open request, which proves nothing
    assert authorizer.challenged(['Digest realm="r", nonce="1"'])
    authorizer.header("DESCRIBE", "x")
    authorizer.accepted()
    authorizer.header("SETUP", "x")
    assert authorizer.challenged(['Digest realm="r", nonce="2"'])
    assert 'nonce="2"' in authorizer.header("SETUP", "x")[0][1]


@pytest.mark.parametrize(
    "header",
    ["", "Negotiate", 'Digest realm="r", nonce="n", algorithm=MD4', 'Digest qop="auth-int"'],
)
def test_what_cannot_be_answered_is_not(header: str) -> None:
    assert not Authorizer(MUFASA).challenged([header])
    assert not Authorizer(None).challenged(['Basic realm="x"'])


def test_credentials_come_percent_decoded_out_of_the_url_and_are_not_shown() -> None:
    found = credentials_of("rtsp://b%40b:pa%2Fs%3As%C3%A9@cam:554/live")
    assert found == Credentials(b"b@b", "pa/s:sé".encode())
    assert "pa/s" not in repr(found)
    assert credentials_of("rtsp://bob@cam/live") == Credentials(b"bob", b"")
    assert credentials_of("rtsp://cam/live") is None
    assert credentials_of("rtsp://bob%0d%0aX-Evil:1@cam/live") is None


def test_a_quote_in_a_user_name_stays_inside_its_quotes() -> None:
    value = answer('Digest realm="r", nonce="n"', Credentials(b'a", evil="', b"p"), url="x")
    assert r'username="a\", evil=\"", realm' in value


@given(st.lists(st.text(max_size=300), max_size=4))
def test_no_challenge_does_harm(headers: list[str]) -> None:
    latin = [text.encode("latin-1", "replace").decode("latin-1") for text in headers]
    authorizer = Authorizer(MUFASA)
    authorizer.challenged(latin)
    authorizer.header("PLAY", "x")
