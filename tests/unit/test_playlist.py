"""Playlists of HLS, read and refused."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from liveedge.media.playlist import (
    KEPT_LIVE,
    MAX_LINE_CHARS,
    MAX_LINES,
    MAX_URL_CHARS,
    MAX_VARIANTS,
    Key,
    MasterPlaylist,
    MediaPlaylist,
    Part,
    PlaylistInvalid,
    parse_playlist,
)

URL = "http://cam/live/index.m3u8?token=x"
BASE = "http://cam/live/index.m3u8"


def media(*lines: str) -> MediaPlaylist:
    playlist = parse_playlist("\n".join(["#EXTM3U", *lines]), url=URL)
    assert isinstance(playlist, MediaPlaylist)
    return playlist


def test_segments_have_numbers_lengths_and_whole_addresses() -> None:
    playlist = media(
        "#EXT-X-TARGETDURATION:4",
        "#EXT-X-MEDIA-SEQUENCE:7",
        "#EXTINF:3.5,a title, with commas",
        "a.ts",
        "",
        "#EXT-X-PROGRAM-DATE-TIME:2026-01-01T00:00:00Z",
        "#EXTINF:4",
        "/other/b.ts?x=1",
        "#EXTINF:4,",
        "https://cdn/c.ts",
    )
    assert [s.number for s in playlist.segments] == [7, 8, 9]
    assert [s.seconds for s in playlist.segments] == [3.5, 4.0, 4.0]
    assert [s.part.url for s in playlist.segments] == [
        "http://cam/live/a.ts",
        "http://cam/other/b.ts?x=1",
        "https://cdn/c.ts",
    ]
    assert (playlist.target_s, playlist.is_over) == (4.0, False)
    assert media("#EXT-X-ENDLIST").is_over


def test_marks_heads_and_keys_hold_for_what_follows() -> None:
    playlist = media(
        '#EXT-X-MAP:URI="init.mp4",BYTERANGE="100@5"',
        '#EXT-X-KEY:METHOD=AES-128,URI="k",IV=0x0A',
        "#EXTINF:1,",
        "a",
        "#EXT-X-KEY:METHOD=NONE",
        "#EXT-X-DISCONTINUITY",
        "#EXTINF:1,",
        "b",
    )
    first, second = playlist.segments
    assert first.head == Part("init.mp4", BASE, 5, 100)
    assert first.key == Key(Part("k", BASE), bytes(15) + b"\x0a")
    assert second.key is None
    assert (first.run, second.run) == (0, 1)


def test_ranges_continue_where_the_one_before_ended() -> None:
    playlist = media(
        "#EXT-X-BYTERANGE:10@0", "a", "#EXT-X-BYTERANGE:20", "a", "#EXT-X-BYTERANGE:5@90", "a", "b"
    )
    assert [(s.part.first_byte, s.part.n_bytes) for s in playlist.segments] == [
        (0, 10),
        (10, 20),
        (90, 5),
        (None, None),
    ]


def test_the_best_quality_is_the_largest_with_a_picture() -> None:
    text = (
        "#EXTM3U\n"
        '#EXT-X-STREAM-INF:BANDWIDTH=9,CODECS="mp4a.40.2",RESOLUTION=9x9\nsound\n'
        '#EXT-X-STREAM-INF:BANDWIDTH=5,RESOLUTION=640x360,CODECS="avc1.4d,mp4a.40.2"\nlow\n'
        "#EXT-X-STREAM-INF:BANDWIDTH=7,RESOLUTION=640x360\nhigh\n"
    )
    playlist = parse_playlist(text, url=URL)
    assert isinstance(playlist, MasterPlaylist)
    assert playlist.best().part.url == "http://cam/live/high"


@pytest.mark.parametrize("value", ["nan", "-1", "inf", "x", "", "1e999", "99999999999999999999999"])
def test_numbers_that_are_none_do_no_harm(value: str) -> None:
    playlist = media(
        f"#EXT-X-TARGETDURATION:{value}",
        f"#EXT-X-MEDIA-SEQUENCE:{value}",
        f"#EXT-X-DISCONTINUITY-SEQUENCE:{value}",
        f"#EXT-X-BYTERANGE:{value}@{value}",
        f"#EXTINF:{value},",
        "a",
    )
    assert 0.5 <= playlist.target_s <= 60
    assert playlist.segments[0].number == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not an HLS playlist"),
        ("<html>", "not an HLS playlist"),
        ("#EXTM3U\n" + "\n" * MAX_LINES, "more than"),
        ("#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n", "names no stream"),
        ("#EXTM3U\n#EXT-X-MAP:X=1\na", "malformed"),
        ("#EXTM3U\n#EXT-X-KEY:METHOD=AES-128\na", "malformed"),
        ('#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI="k",IV=0xzz\na', "malformed"),
        ('#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI="k",IV=00  00\na', "malformed"),
        (f'#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI="k",IV=0x{"1" * 33}\na', "malformed"),
        ("#EXTM3U\n#EXT-X-KEY:METHOD=SAMPLE-AES,URI=k\na", "protected"),
        ('#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI="k",KEYFORMAT="com.x"\na', "protected"),
        ("#EXTM3U\n#EXTINF:1," + "x" * MAX_LINE_CHARS, "a line"),
        ("#EXTM3U\n" + "#EXT-X-STREAM-INF:A=1\na\n" * (MAX_VARIANTS + 1), "qualities"),
    ],
)
def test_what_is_no_playlist_is_refused_with_a_reason(text: str, why: str) -> None:
    with pytest.raises(PlaylistInvalid, match=why):
        parse_playlist(text, url=URL)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("piece", ["A", "A=", ',A="', ", ", '"'])
def test_a_long_list_of_attributes_is_read_in_one_pass(piece: str) -> None:
    """Reading holds up the whole process, and a stranger decides how long the line is."""
    line = "#EXT-X-KEY:METHOD=NONE,"
    line += (piece * MAX_LINE_CHARS)[: MAX_LINE_CHARS - len(line)]
    assert media(line, "#EXTINF:1,", "a").segments[0].key is None


@pytest.mark.parametrize(
    ("base", "where", "why"),
    [
        (BASE, "http://[bad/a", "malformed"),
        (BASE, "a" * MAX_URL_CHARS, "an address of more than"),
        (BASE + "/" + "p" * (MAX_URL_CHARS - len(BASE)), "/" + "a" * MAX_URL_CHARS, "more than"),
    ],
)
def test_an_address_that_is_none_or_endless_is_refused_when_it_is_needed(
    base: str, where: str, why: str
) -> None:
    with pytest.raises(PlaylistInvalid, match=why):
        _ = Part(where, base).url


@pytest.mark.parametrize("end", [[], ["#EXT-X-ENDLIST"]])
@pytest.mark.parametrize(
    "lines",
    [
        ["a"] * (MAX_LINES - 2),
        ['#EXT-X-MAP:URI="m"', '#EXT-X-KEY:METHOD=AES-128,URI="k"', "a"] * (MAX_LINES // 3 - 1),
    ],
)
def test_a_list_below_a_long_address_takes_no_more_memory_than_itself(
    lines: list[str], end: list[str]
) -> None:
    """Each of its lines joined with the address would be 100 MB here."""
    text = "\n".join(["#EXTM3U", *lines, *end])
    url = "http://cam/" + "p" * (MAX_URL_CHARS - 100) + "/x.m3u8"
    tracemalloc.start()
    parse_playlist(text, url=url)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20


def test_of_a_live_list_the_newest_segments_are_kept_as_if_all_were() -> None:
    lines = ["#EXT-X-MEDIA-SEQUENCE:5", '#EXT-X-MAP:URI="init"']
    for n in range(100):
        lines += ["#EXT-X-DISCONTINUITY"] if n == 50 else []
        lines += ["#EXTINF:2,", "#EXT-X-BYTERANGE:10", "a"]
    live, over = media(*lines), media(*lines, "#EXT-X-ENDLIST")
    assert len(over.segments) == 100
    assert live.segments == over.segments[-KEPT_LIVE:]
    last = live.segments[-1]
    assert (last.number, last.run, last.part.first_byte) == (104, 1, 990)
    assert last.head == Part("init", BASE)


@pytest.mark.parametrize("line", ["a", '#EXT-X-KEY:METHOD=AES-128,URI="k"', "#EXT-X-BYTERANGE:9"])
def test_the_heaviest_live_list_costs_little_at_a_reload(line: str) -> None:
    """It comes again every half second, and no other thread runs meanwhile."""
    text = "\n".join(["#EXTM3U", *[line, "a"] * (MAX_LINES // 2 - 1)])
    began_s = time.thread_time()
    parse_playlist(text, url=URL)
    assert time.thread_time() - began_s < 0.25  # 0.02 s where it was measured


def test_a_token_in_the_address_of_a_list_makes_no_other_segments_of_it() -> None:
    text = '#EXTM3U\n#EXT-X-MAP:URI="init"\na\n'
    assert parse_playlist(text, url=f"{BASE}?t=1") == parse_playlist(text, url=f"{BASE}?t=2")


def test_a_byte_order_mark_and_carriage_returns_are_no_harm() -> None:
    playlist = parse_playlist("\ufeff#EXTM3U\r\n#EXTINF:1,\r\na.ts\r\n", url=URL)
    assert isinstance(playlist, MediaPlaylist)
    assert playlist.segments[0].part.url == "http://cam/live/a.ts"
