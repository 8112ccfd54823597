"""Media that a question names by http(s): fetched only where allowed, and then within every bound."""

from __future__ import annotations

import asyncio
import gzip
import io
import ipaddress
import json
import socket
import threading

import pytest
from PIL import Image

from liveedge.core.clock import SystemClock
from liveedge.core.errors import MediaInvalid, MediaTooLarge
from liveedge.engine.request import ImagePart
from liveedge.media.pull_policy import PullPolicy
from liveedge.media.remote import RemoteLimits, check_remote_url, fetch
from tests.media_files import encode_numbered
from tests.raw_server import RawServer
from tests.serving import Exchange, chat_body, data_url, image, picture, serving, until, video
from tests.web_server import Answer, WebServer

CHAT = "/v1/chat/completions"
STRICT = PullPolicy(allow_private=False, ports=frozenset({80, 443}))
WHAT = "messages[0].content[0]"


def policy_for(*ports, **changed):
    return PullPolicy(ports=frozenset(ports), **changed)


def fetched(url, *, policy, max_bytes=100_000, **options):
    return fetch(
        url,
        policy=policy,
        limits=RemoteLimits(max_bytes=max_bytes),
        what=WHAT,
        clock=SystemClock(),
        stopping=threading.Event(),
        **options,
    )


class Site(WebServer):
    def __init__(self, answers):
        super().__init__(lambda request: answers.get(request.path, Answer(status=404)))
        self.answers = answers


@pytest.fixture
def web():
    """A server whose answers the test sets by path."""
    answers: dict[str, Answer] = {}
    server = Site(answers)
    yield server
    server.close()


@pytest.fixture
def raw():
    """Makes servers that send what the test says."""
    made = []

    def make(piece, **options):
        made.append(RawServer(piece, **options))
        return made[-1]

    yield make
    for server in made:
        server.close()


# ── what is judged by its text ──


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001",
        "localhost", "a.localhost", "LOCALHOST.", "0.0.0.0", "0", "[::]", "[::1]",
        "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[2002:7f00:1::]",
        "[64:ff9b::7f00:1]", "[64:ff9b:1::7f00:1]", "[2001:0:7f00:1::]",
        "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "198.18.0.1", "192.0.0.8",
        "192.0.2.1", "240.0.0.1", "255.255.255.255", "224.0.0.1", "[ff02::1]", "[fc00::1]",
        "[fd12::1]", "[fec0::1]", "[fe80::1]", "[fe80::1%25eth0]", "[2001:db8::1]",
        "169.254.169.254", "[fd00:ec2::254]", "100.100.100.200", "168.63.129.16",
        "metadata.google.internal", "[2002:a9fe:a9fe::]", "[64:ff9b::a00:1]",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public_are_refused_however_they_are_written(host):
    with pytest.raises(MediaInvalid, match=r"messages\[0\]\.content\[0\] is not fetched") as caught:
        check_remote_url(f"http://{host}/latest/meta-data?token=s3cret", policy=STRICT, what=WHAT)
    assert "s3cret" not in caught.value.message
    assert "latest" not in caught.value.message


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com:22/", "http://example.com:8080/", "https://example.com:0/",
        "http://user:pass@example.com/", "http://@example.com/", "ftp://example.com/", "http://",
        "http:///x", "http://exa\nmple.com/", "http://example.com/\x00", "http://[::1",
        "http://example.com:99999/", "http://" + "a" * 3000, "http:", "https:example.com",
    ],
)  # fmt: skip
def test_urls_that_are_malformed_or_carry_a_password_are_refused(url):
    with pytest.raises(MediaInvalid) as caught:
        check_remote_url(url, policy=STRICT, what=WHAT)
    assert WHAT in caught.value.message
    assert "pass@" not in caught.value.message
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "url", ["https://example.com/a.png", "HTTP://8.8.8.8/", "http://[2a00::1]/x"]
)
def test_public_addresses_are_not_refused_by_their_text(url):
    check_remote_url(url, policy=STRICT, what=WHAT)


# ── what a name leads to ──


@pytest.mark.parametrize(
    "found", [["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["2a00::1", "::ffff:10.0.0.1"]]
)
def test_every_address_of_a_name_is_judged_and_told_like_an_unknown_name(found):
    def look_up(_target):
        return [ipaddress.ip_address(text) for text in found]

    with pytest.raises(MediaInvalid) as private:
        fetched("http://pictures.example/x", policy=STRICT, look_up=look_up)
    with pytest.raises(MediaInvalid) as unknown:
        fetched("http://nothing.invalid/x", policy=STRICT)
    assert private.value.message == unknown.value.message  # else it would tell who is there
    assert "allow_private_media" in private.value.message


def test_a_name_is_looked_up_once_and_the_judged_address_is_connected_to(web):
    web.answers["/x"] = Answer(b"bytes")
    asked = []

    def look_up(target):
        asked.append(target.host)
        return [ipaddress.ip_address("127.0.0.1" if len(asked) == 1 else "10.0.0.1")]

    url = f"http://rebinding.example:{web.port}/x"
    assert fetched(url, policy=policy_for(web.port), look_up=look_up) == b"bytes"
    assert asked == ["rebinding.example"]
    assert web.requests[0].headers["Host"] == f"rebinding.example:{web.port}"


# ── what is asked, and what is taken of the answer ──


def test_nothing_of_the_client_or_the_environment_goes_along(web, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    web.answers["/a%20b?c=d"] = Answer(b"bytes", headers={"Content-Type": "text/html"})
    assert fetched(web.url("/a b?c=d"), policy=policy_for(web.port)) == b"bytes"
    assert set(web.requests[0].headers) == {
        "Host", "Accept", "Accept-Encoding", "User-Agent", "Connection"
    }  # fmt: skip
    assert web.requests[0].headers["Accept-Encoding"] == "identity"


def test_what_is_compressed_is_not_unpacked(web):
    bomb = gzip.compress(bytes(1_000_000))
    web.answers["/x"] = Answer(bomb, headers={"Content-Encoding": "gzip"})
    with pytest.raises(MediaInvalid, match="compressed"):
        fetched(web.url("/x"), policy=policy_for(web.port))


def test_more_bytes_than_allowed_are_refused_when_announced_and_when_they_come(web, raw):
    web.answers["/x"] = Answer(bytes(100_001))
    with pytest.raises(MediaTooLarge, match="100000 bytes"):
        fetched(web.url("/x"), policy=policy_for(web.port))
    endless = raw(bytes(50_000), every_s=0.001, begin=b"HTTP/1.1 200 OK\r\n\r\n")
    with pytest.raises(MediaTooLarge):
        fetched(f"http://127.0.0.1:{endless.port}/", policy=policy_for(endless.port))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(status=404), "404"),
        (Answer(status=401), "401"),
        (Answer(status=500), "error of its own"),
        (Answer(status=204), "status 204"),
        (Answer(b"half", headers={"Content-Length": "9"}), "broke"),
    ],
)
def test_an_answer_that_is_no_picture_says_why(web, answer, said):
    web.answers["/x?key=s3cret"] = answer
    with pytest.raises(MediaInvalid) as caught:
        fetched(web.url("/x?key=s3cret"), policy=policy_for(web.port))
    assert said in caught.value.message
    assert "s3cret" not in caught.value.message
    assert str(web.port) not in caught.value.message


# ── redirects ──


def test_few_redirects_are_followed(web):
    for n in range(3):
        web.answers[f"/{n}"] = Answer(status=302, headers={"Location": f"/{n + 1}"})
    web.answers["/3"] = Answer(b"bytes")
    assert fetched(web.url("/0"), policy=policy_for(web.port)) == b"bytes"
    web.answers["/3"] = Answer(status=307, headers={"Location": "/0"})
    with pytest.raises(MediaInvalid, match="circles"):
        fetched(web.url("/0"), policy=policy_for(web.port))


@pytest.mark.parametrize(
    "where",
    [
        "http://169.254.169.254/latest", "http://127.0.0.1:22/", "http://localhost:9/",
        "http://10.0.0.1/", "file:///etc/passwd", "gopher://127.0.0.1/", "//[::1]:25/",
    ],
)  # fmt: skip
def test_each_hop_of_a_redirect_is_judged_again(web, where):
    web.answers["/x"] = Answer(status=302, headers={"Location": where})
    with pytest.raises(MediaInvalid) as caught:
        fetched(web.url("/x"), policy=policy_for(web.port))
    assert "passwd" not in caught.value.message
    assert len(web.requests) == 1


def test_the_server_s_own_ports_are_never_fetched_from_not_even_after_a_redirect(web):
    own = policy_for(web.port, 8000, own_ports=frozenset({8000}))
    web.answers["/x"] = Answer(status=302, headers={"Location": "http://localhost:8000/metrics"})
    for url in (web.url("/x"), "http://127.1:8000/", "http://[::ffff:127.0.0.1]:8000/"):
        with pytest.raises(MediaInvalid):
            fetched(url, policy=own)


# ── over HTTP ──


def allowing(*ports, **settings):
    return serving(
        allow_remote_media=True, allow_private_media=True, remote_media_ports=ports, **settings
    )


async def test_remote_media_are_off_unless_a_setting_allows_them():
    async with serving() as server:
        answer = await server.ask(
            image(data_url(picture())), image("http://example.com/x?k=s3cret")
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "media_invalid")
        assert "allow_remote_media" in answer.json()["error"]["message"]
        assert "messages[0].content[1]" in answer.json()["error"]["message"]
        assert "s3cret" not in answer.text


async def test_case_7_with_remote_media_allowed_the_inside_stays_out_of_reach():
    async with serving(allow_remote_media=True) as server:
        for url in (
            "http://127.0.0.1:8000/metrics",
            "http://169.254.169.254/latest/meta-data",
            "http://[::1]/",
            "http://10.0.0.1/",
            f"http://{socket.gethostname()}.localhost/",
            "https://user:s3cret@example.com/",
        ):
            answer = await server.ask(image(url))
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "media_invalid"), (
                url
            )
            assert "messages[0].content[0]" in answer.json()["error"]["message"]
            assert "s3cret" not in answer.text
        assert server.engine.requests == []


async def test_a_url_is_judged_before_any_stream_is_looked_up():
    async with serving(allow_remote_media=True) as server:
        unknown = image("ovs://streams/unknown?frame_index=-1")
        answer = await server.ask(unknown, image("http://127.0.0.1/"))
        assert answer.json()["error"]["code"] == "media_invalid"
        answer = await server.ask(unknown, image("https://example.com/"))
        assert answer.json()["error"]["code"] == "stream_not_found"  # and nothing was fetched


async def test_a_remote_picture_and_a_remote_clip_are_the_same_as_sent_ones(web):
    clip = encode_numbered(4, fps=2.0, width=160, height=120)
    web.answers["/x.png"] = Answer(picture(), headers={"Content-Type": "application/json"})
    web.answers["/x.mp4"] = Answer(clip)
    async with allowing(web.port) as server:
        keys = []
        for url in (data_url(picture()), web.url("/x.png")):
            assert (await server.ask(image(url))).status_code == 200
            part = server.engine.requests[-1].messages[-1].content[0]
            assert isinstance(part, ImagePart)
            keys.append(part.frame.key)
        assert keys[0] == keys[1]  # by content, so their encoding is shared
        answer = await server.ask(video(web.url("/x.mp4")))
        assert len(answer.json()["liveedge"]["frames"]) == 4
        assert server.built.held_bytes.used == 0
        wrong = await server.ask(image(web.url("/nothing")), image(web.url("/x.png")))
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "media_invalid")


async def test_a_remote_bomb_is_refused_like_a_sent_one(web):
    large = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(large, "PNG")
    web.answers["/x"] = Answer(large.getvalue())
    web.answers["/y"] = Answer(b"<html>no picture</html>")
    async with allowing(web.port) as server:
        assert (await server.ask(image(web.url("/x")))).status_code == 413
        answer = await server.ask(image(web.url("/y")))
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "media_invalid")


async def test_the_remote_media_of_a_question_share_its_limit_of_bytes(web):
    web.answers["/x"] = Answer(picture() + bytes(600_000))
    async with allowing(web.port, max_body_mb=1) as server:
        assert (await server.ask(image(web.url("/x")))).status_code == 200
        answer = await server.ask(image(web.url("/x")), image(web.url("/x")))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "media_too_large")
        assert "messages[0].content[1]" in answer.json()["error"]["message"]


def dripping(raw):
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n"
    return raw(b"x", every_s=0.01, begin=head)


async def asking(server, url, **options):
    body = json.dumps(chat_body(image(url), **options)).encode()
    return Exchange(server.built.app, CHAT, body)


async def test_case_7_a_server_of_one_byte_a_second_is_left_at_the_limit(raw):
    slow = dripping(raw)
    async with allowing(slow.port) as server:
        remote = server.built.questions.remote
        async with await asking(server, f"http://127.0.0.1:{slow.port}/") as exchange:
            await until(lambda: slow.n_accepted == 1)  # its limits run by then
            await server.clock.advance(9.9)
            assert not exchange.has_begun
            await server.clock.advance(0.2)
            await exchange.ended()
        assert exchange.status == 400
        assert "within 10 s" in json.loads(exchange.received)["error"]["message"]
        await until(lambda: remote.at_once.used == 0)
        assert server.built.held_bytes.used == 0


async def test_the_deadline_of_the_question_ends_a_fetch(raw):
    slow = dripping(raw)
    async with allowing(slow.port) as server:
        remote = server.built.questions.remote
        url = f"http://127.0.0.1:{slow.port}/"
        async with await asking(server, url, timeout_ms=2000) as exchange:
            await until(lambda: slow.n_accepted == 1)  # its limits run by then
            await server.clock.advance(2.1)
            await exchange.ended()
        assert exchange.status == 504
        await until(lambda: remote.at_once.used == 0)


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n"])
async def test_a_client_that_leaves_ends_its_fetch_at_once(raw, begin):
    silent = raw(None, every_s=1, begin=begin)
    async with allowing(silent.port) as server:
        questions = server.built.questions
        asked_s = server.clock.monotonic_s()
        async with await asking(server, f"http://127.0.0.1:{silent.port}/") as exchange:
            await until(lambda: questions.remote.at_once.used == 1)
            assert server.built.held_bytes.used > 16 << 20  # reserved for what may come
            exchange.leave()
            await until(lambda: questions.remote.at_once.used == 0)
        assert server.clock.monotonic_s() == asked_s  # it was no limit of its own that ended it
        assert (questions.in_progress.used, server.built.held_bytes.used) == (0, 0)


async def test_one_key_has_half_of_the_fetches_and_is_told_when_to_come_again(raw):
    silent = raw(None, every_s=1)
    async with allowing(silent.port, max_uploads_mb=512) as server:
        remote = server.built.questions.remote
        url = f"http://127.0.0.1:{silent.port}/"
        many = [await asking(server, url) for _ in range(4)]
        for one in many:
            await one.__aenter__()
        await until(lambda: remote.at_once.used == 4)
        answer = await server.ask(image(url))
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
        assert int(answer.headers["retry-after"]) >= 1
        for one in many:
            await one.__aexit__(None, None, None)
        await until(lambda: remote.at_once.used == 0)
        assert await asyncio.wait_for(server.ask(image(data_url(picture()))), 5)
