"""Which of a publisher's tracks becomes the stream, and what its offer is narrowed to."""

import itertools

import pytest
from livekit.protocol import models, rtc

from liveedge.media.livekit.sdp import narrowed, sections
from liveedge.media.livekit.tracks import MAX_TRACKS, TrackRefused, Tracks
from liveedge.media.webrtc.session import OfferInvalid
from tests.livekit_clients import add_track, empty_offer, offer_sdp


@pytest.fixture
def tracks():
    numbers = itertools.count()
    return Tracks(new_id=lambda: str(next(numbers)))


def announce(tracks, cid, **fields):
    return tracks.announce(add_track(cid, **fields).add_track)


def chosen(tracks, sdp, names=None):
    return tracks.choose(sections(sdp), names or {})


def directions(sdp):
    return {s.mid: s.sends for s in sections(sdp)}


# ── what an offer holds ──


def test_a_section_is_read_from_its_lines():
    _, camera = sections(offer_sdp(("a0", "sendonly", "mic"), ("7", "sendonly", "cam")))
    assert (camera.kind, camera.mid, camera.track_id) == ("video", "7", "cam")
    assert camera.codecs == ("vp8",)
    assert camera.is_video
    assert camera.is_decodable


def test_sections_without_a_direction_send():
    assert sections("v=0\r\nm=video 9 x 96\r\na=mid:1\r\n")[0].sends


def test_a_rejected_section_sends_nothing():
    assert not sections("v=0\r\nm=video 0 x 96\r\na=mid:1\r\na=sendonly\r\n")[0].sends


def test_a_section_on_the_transport_of_others_is_not_rejected():
    offer = "v=0\r\nm=video 0 x 96\r\na=mid:1\r\na=bundle-only\r\na=sendonly\r\n"
    assert sections(offer)[0].sends


@pytest.mark.parametrize("text", ["", "hello", "m=video 9 x 96", "\x00"])
def test_what_is_no_sdp_is_refused(text):
    with pytest.raises(OfferInvalid, match="is not SDP"):
        sections(text)


@pytest.mark.parametrize("text", ["v=0\r\nm=", "v=0\r\nm=video", "v=0\r\nm= \r\na=rtpmap:\r\n"])
def test_odd_sections_are_harmless(text):
    assert len(sections(text)) == 1
    narrowed(text, keep=None)


# ── the choice ──


def test_clients_join_without_any_video(tracks):
    choice = chosen(tracks, empty_offer())
    assert choice.section is None
    assert choice.undecodable == ()


def test_the_newest_video_wins(tracks):
    announce(tracks, "cam")
    announce(tracks, "screen")
    choice = chosen(tracks, offer_sdp(("7", "sendonly", "cam"), ("8", "sendonly", "screen")))
    assert (choice.mid, choice.others) == ("8", 1)


def test_age_counts_and_not_the_place_in_the_offer(tracks):
    announce(tracks, "screen")
    announce(tracks, "cam")
    choice = chosen(tracks, offer_sdp(("7", "sendonly", "cam"), ("8", "sendonly", "screen")))
    assert choice.mid == "7"


def test_the_older_video_is_taken_again_when_the_newer_ends(tracks):
    announce(tracks, "cam")
    announce(tracks, "screen")
    both = offer_sdp(("7", "sendonly", "cam"), ("8", "sendonly", "screen"))
    assert chosen(tracks, both).mid == "8"
    assert chosen(tracks, both.replace("a=sendonly", "a=inactive", 2)).mid is None
    announce(tracks, "cam")
    one = offer_sdp(("7", "sendonly", "cam"), ("8", "inactive", "screen"))
    assert chosen(tracks, one).mid == "7"


def test_a_client_may_name_its_tracks_apart_from_the_sdp(tracks):
    announce(tracks, "screen")
    announce(tracks, "cam")
    sdp = offer_sdp(("7", "sendonly", ""), ("8", "sendonly", ""))
    assert chosen(tracks, sdp, {"7": "cam", "8": "screen"}).mid == "7"


def test_without_any_names_the_last_section_is_the_newest(tracks):
    assert chosen(tracks, offer_sdp(("7", "sendonly", ""), ("8", "sendonly", ""))).mid == "8"


def test_a_video_that_cannot_be_decoded_is_not_chosen(tracks):
    vp9 = offer_sdp(("7", "sendonly", "cam"), codecs="98 VP9,99 rtx")
    choice = chosen(tracks, vp9)
    assert (choice.section, choice.undecodable) == (None, ("vp9",))


def test_a_track_that_is_sent_no_more_is_forgotten(tracks):
    for i in range(100):
        announce(tracks, f"cam{i}")
        chosen(tracks, offer_sdp(("7", "sendonly", f"cam{i}")))
        chosen(tracks, offer_sdp(("7", "inactive", f"cam{i}")))
    assert tracks.infos() == []


# ── announcements ──


def test_a_track_gets_a_name_and_keeps_what_was_said(tracks):
    track = announce(tracks, "cam", name="front door")
    assert track.sid.startswith("TR_V")
    assert (track.info.name, track.info.width, track.info.source) == (
        "front door",
        640,
        models.CAMERA,
    )


def test_audio_is_accepted(tracks):
    track = announce(tracks, "mic", type=models.AUDIO)
    assert track.sid.startswith("TR_A")
    assert not tracks.has_video


def test_a_track_that_is_announced_again_is_one_track(tracks):
    announce(tracks, "cam")
    announce(tracks, "cam")
    assert len(tracks.infos()) == 1


@pytest.mark.parametrize(
    ("codec", "wanted"), [("vp8", "vp8"), ("H264", "h264"), ("video/VP8", "vp8"), ("", None)]
)
def test_the_codec_that_the_client_wants_is_kept(tracks, codec, wanted):
    assert announce(tracks, "cam", codec=codec).codec == wanted


@pytest.mark.parametrize("codec", ["vp9", "av1", "h265", "video/AV1"])
def test_a_codec_that_cannot_be_decoded_is_refused_by_name(tracks, codec):
    with pytest.raises(TrackRefused, match=r"publish VP8 or H\.264") as refused:
        announce(tracks, "cam", codec=codec)
    assert codec.upper().rpartition("/")[2] in refused.value.message
    assert refused.value.reason == rtc.RequestResponse.UNSUPPORTED_TYPE


def test_a_codec_with_one_to_fall_back_to_is_taken(tracks):
    asked = add_track("cam", codec="vp9").add_track
    asked.simulcast_codecs.add(codec="vp8", cid="cam-vp8")
    assert tracks.announce(asked).codec == "vp8"


def test_an_encrypted_track_is_refused(tracks):
    with pytest.raises(TrackRefused, match="end-to-end encrypted"):
        announce(tracks, "cam", encryption=models.Encryption.GCM)


def test_tracks_are_bounded(tracks):
    for i in range(MAX_TRACKS):
        announce(tracks, f"cam{i}")
    with pytest.raises(TrackRefused, match="8 tracks are published already") as refused:
        announce(tracks, "one more")
    assert refused.value.reason == rtc.RequestResponse.LIMIT_EXCEEDED


# ── the narrowed offer ──


def test_only_the_chosen_video_is_offered_on():
    sdp = offer_sdp(
        ("a0", "sendonly", "mic"), ("7", "sendonly", "cam"), ("8", "sendonly", "screen")
    )
    assert directions(narrowed(sdp, keep="8")) == {"a0": True, "7": False, "8": True}


def test_nothing_else_of_the_offer_changes():
    sdp = offer_sdp(("a0", "sendonly", "mic"), ("7", "sendonly", "cam"), ("d", "", ""))
    assert narrowed(sdp, keep="7") == sdp
    without = narrowed(sdp, keep=None)
    assert set(without.split()) ^ set(sdp.split()) == {"a=inactive"}


def test_a_video_without_a_direction_is_made_inactive_too():
    sdp = offer_sdp(("7", "sendonly", "cam")).replace("a=sendonly\r\n", "")
    assert directions(sdp) == {"7": True}
    assert directions(narrowed(sdp, keep=None)) == {"7": False}


def test_the_wanted_codec_comes_first_in_both_places():
    sdp = offer_sdp(
        ("7", "sendonly", "cam"), codecs="96 VP8,97 rtx,102 H264,103 rtx,104 H264,98 VP9"
    )
    lines = narrowed(sdp, keep="7", codec="h264").splitlines()
    assert "m=video 9 UDP/TLS/RTP/SAVPF 102 104 96 97 103 98" in lines
    maps = [line.partition(":")[2].split()[0] for line in lines if "rtpmap" in line]
    assert maps == ["102", "104", "96", "97", "103", "98"]
    assert {*lines} ^ {*sdp.splitlines()} == {lines[4], sdp.splitlines()[4]}  # the m= line alone


def test_a_codec_that_is_not_offered_changes_nothing():
    sdp = offer_sdp(("7", "sendonly", "cam"))
    assert narrowed(sdp, keep="7", codec="h264") == sdp
