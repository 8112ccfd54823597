"""Cases from the field, as a client of the HTTP API meets them."""

import base64
import io
import json
import logging

import numpy as np
import pytest
from PIL import Image

from liveedge.engine.request import ImagePart
from liveedge.testing.engine import FakeEngine
from tests.media_files import (
    encode_numbered,
    encode_video,
    gif,
    number_of,
    numbered,
    png,
    png_header,
)
from tests.serving import (
    MODEL,
    Exchange,
    chat_body,
    data_url,
    image,
    noise,
    picture,
    serving,
    sse_events,
    until,
    video,
)

MODES = ("1", "L", "LA", "P", "PA", "RGBA", "I;16", "CMYK", "YCCK", "RGB")


def encoded(mode):
    rgb = Image.new("RGB", (40, 24), (200, 100, 50))
    made = rgb.convert("RGBA") if mode in ("RGBA", "PA") else rgb
    if mode == "I;16":
        made = Image.fromarray(np.full((24, 40), 30_000, np.uint16))
    elif mode == "YCCK":
        made = made.convert("CMYK")
    elif mode not in ("RGB", "RGBA"):
        made = made.convert(mode)
    out = io.BytesIO()
    if mode == "PA":
        made.convert("RGB").convert("P").save(out, "PNG", transparency=0)
    else:
        made.save(out, "JPEG" if mode in ("CMYK", "YCCK") else "PNG")
    if mode == "YCCK":  # the same numbers, called another space
        adobe = out.getvalue().index(b"Adobe")
        return out.getvalue()[: adobe + 11] + b"\x02" + out.getvalue()[adobe + 12 :]
    return out.getvalue()


def shown(server):
    """The pictures that the last request shows, as the engine loads them."""
    content = server.engine.requests[-1].messages[-1].content
    return [part.frame.load() for part in content if hasattr(part, "frame")]


def first_picture(request):
    part = request.messages[-1].content[0]
    assert isinstance(part, ImagePart)
    return part


async def is_alive(server):
    health = await server.client.get("/health")
    control = await server.ask(image(data_url(picture())))
    return health.status_code == control.status_code == 200


async def test_case_2_pictures_of_every_mode_become_rgb_alone_and_together():
    async with serving() as server:
        for mode in MODES:
            assert (await server.ask(image(data_url(encoded(mode))))).status_code == 200, mode
            (rgb,) = shown(server)
            assert (rgb.shape, rgb.dtype) == ((24, 40, 3), np.uint8)
        answer = await server.ask(*(image(data_url(encoded(mode))) for mode in MODES))
        assert answer.status_code == 200
        assert len(shown(server)) == len(MODES)
        assert len(answer.json()["liveedge"]["frames"]) == len(MODES)


async def test_case_2_one_bad_picture_is_one_4xx_that_names_it():
    async with serving() as server:
        bad = picture()[:50]
        answer = await server.ask(image(data_url(picture())), image(data_url(bad)))
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "media_invalid"
        assert "messages[0].content[1]" in answer.json()["error"]["message"]
        assert await is_alive(server)


async def test_case_3_a_bomb_is_refused_from_its_header():
    async with serving() as server:
        out = io.BytesIO()
        Image.new("1", (20_000, 20_000)).save(out, "PNG")
        answer = await server.ask(image(data_url(out.getvalue())))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "media_too_large")
        assert await is_alive(server)


async def test_case_4_megabytes_of_broken_base64_hardly_touch_the_log(caplog):
    caplog.set_level(logging.DEBUG)
    async with serving() as server:
        body = chat_body(image("data:image/png;base64," + "A*" * 2_500_000))
        caplog.clear()
        answer = await server.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert len(answer.content) < 2000
        unclosed = json.dumps(body).encode()[:-2]
        assert (
            await server.client.post("/v1/chat/completions", content=unclosed)
        ).status_code == 422
        wrong = chat_body() | {"temperature": "A*" * 2_500_000}
        answer = await server.client.post("/v1/chat/completions", json=wrong)
        assert answer.status_code == 422
        assert len(answer.content) < 2000
        logged = "\n".join(record.getMessage() for record in caplog.records)
        assert 0 < len(logged) < 2000


@pytest.mark.parametrize(
    "size", [(1, 1), (2, 2), (26, 28), (27, 257), (332, 27), (305, 30), (31, 31)]
)
async def test_case_5_tiny_and_odd_sizes_are_never_a_5xx(size):
    async with serving() as server:
        answer = await server.ask(image(data_url(picture(size=size))))
        assert answer.status_code < 500


def dialects():
    plain = base64.b64encode(noise(9, 7)).decode()
    wrapped = "\n".join(plain[i : i + 76] for i in range(0, len(plain), 76))
    return {
        "line breaks": f"data:image/png;base64,{wrapped}",
        "upper-case scheme": f"DATA:image/png;base64,{plain}",
        "charset": f"data:image/png;charset=utf-8;base64,{plain}",
        "no type": f"data:;base64,{plain}",
        "no padding": f"data:image/png;base64,{plain.rstrip('=')}",
        "url-safe": "data:image/png;base64," + plain.replace("+", "-").replace("/", "_"),
        "percent": "data:image/png;base64," + plain.replace("+", "%2B").replace("=", "%3D"),
        "wrong type": f"data:image/jpeg;base64,{plain}",
    }


async def test_case_6_every_dialect_of_a_data_url_is_the_same_picture():
    expected = np.asarray(Image.open(io.BytesIO(noise(9, 7))))
    async with serving() as server:
        for name, url in dialects().items():
            assert (await server.ask(image(url))).status_code == 200, name
            (rgb,) = shown(server)
            assert np.array_equal(rgb, expected), name


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64,",
        "data:,",
        "data:image/png;base64",
        base64.b64encode(picture()).decode(),
        "data:image/png;base64,!!!!",
        "data:image/png;base64,aGVsbG8gd29ybGQ=",
        "",
        "garbage",
    ],
)
async def test_case_6_what_holds_no_picture_is_a_400_that_names_the_part(url):
    async with serving() as server:
        answer = await server.ask(image(data_url(picture())), image(url))
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "media_invalid"
        assert "messages[0].content[1]" in answer.json()["error"]["message"]
        assert len(answer.content) < 1500


@pytest.mark.parametrize(
    "kind", ["input_video", "image_ulr", "input_image", "file", "Image_url", ""]
)
async def test_case_8_a_part_of_an_unknown_type_is_a_400_and_never_dropped(kind):
    async with serving() as server:
        part = {"type": kind, kind or "x": {"url": data_url(picture())}}
        answer = await server.ask(part)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "media_invalid"
        assert "messages[0].content[0]" in answer.json()["error"]["message"]
        assert server.engine.requests == []


async def test_case_8_usage_always_counts_media():
    async with serving() as server:
        without = (await server.ask()).json()["usage"]
        used = (await server.ask(image(data_url(picture(size=(320, 320)))))).json()["usage"]
        tokens = used["prompt_tokens_details"]["image_tokens"]
        assert tokens == 100
        assert used["prompt_tokens"] == without["prompt_tokens"] + tokens


async def test_case_9_the_same_bytes_in_another_place_or_size_are_other_frames():
    async with serving() as server:
        red, blue = picture((255, 0, 0)), picture((0, 0, 255))
        keys = []
        for data in (red, blue, picture((255, 0, 0), size=(48, 64)), red):
            part = image(data_url(data)) | {"uuid": "same", "id": "same"}
            await server.ask(part)
            shown_part = server.engine.requests[-1].messages[-1].content[0]
            assert isinstance(shown_part, ImagePart)
            keys.append(shown_part.frame.key)
        assert keys[0] == keys[3]
        assert len(set(keys)) == 3


async def test_case_10_a_clip_with_a_broken_frame_keeps_true_times_and_says_how_many():
    clip = bytearray(encode_numbered(8, fps=2.0, gop=1, width=160, height=120))
    middle = len(clip) // 2
    clip[middle : middle + 200] = bytes(b ^ 0xFF for b in clip[middle : middle + 200])
    async with serving() as server:
        answer = await server.ask(video(data_url(bytes(clip), "video/mp4")))
        assert answer.status_code == 200, answer.text
        block = answer.json()["liveedge"]
        assert block["undecodable_frames"] >= 1
        assert len(block["frames"]) == 8 - block["undecodable_frames"]
        assert {f["timestamp_ms"] for f in block["frames"]} < {500 * i for i in range(8)}


async def test_case_12_uneven_frames_carry_their_own_times():
    times_s = [0.0, 0.1, 0.7, 1.0, 1.9, 2.0, 3.5, 3.6]
    clip = encode_video(
        ((time_s, numbered(i, width=160, height=120)) for i, time_s in enumerate(times_s)), gop=1
    )
    async with serving() as server:
        answer = await server.ask(video(data_url(clip, "video/mp4")))
        assert answer.status_code == 200, answer.text
        (part,) = (p for p in server.engine.requests[0].messages[0].content if hasattr(p, "frames"))
        assert [frame.time_s for frame in part.frames] == pytest.approx(times_s, abs=1e-3)
        assert [number_of(frame.load()) for frame in part.frames] == list(range(8))


async def test_a_long_clip_is_sampled_at_two_frames_a_second():
    clip = encode_numbered(90, fps=30.0, width=160, height=120)
    async with serving() as server:
        answer = await server.ask(video(data_url(clip, "video/mp4")))
        times = [f["timestamp_ms"] for f in answer.json()["liveedge"]["frames"]]
        assert times == [0, 500, 1000, 1500, 2000, 2500]


async def test_case_20_after_an_answer_of_no_token_the_next_turn_works():
    answers = iter(["", "later"])
    async with serving(
        engine=lambda clock: FakeEngine(clock=clock, answer=lambda request: next(answers))
    ) as server:
        messages = [{"role": "user", "content": "one"}]
        first = await server.client.post(
            "/v1/chat/completions", json={"model": MODEL, "messages": messages}
        )
        said = first.json()["choices"][0]["message"]
        assert said["content"] == ""
        messages += [said, {"role": "user", "content": "two"}]
        second = await server.client.post(
            "/v1/chat/completions", json={"model": MODEL, "messages": messages}
        )
        assert second.json()["choices"][0]["message"]["content"] == "later"


async def test_case_23_the_role_is_not_sent_before_there_is_content():
    async with serving() as server:
        server.engine.hold("prefill")
        body = json.dumps(chat_body(stream=True)).encode()
        async with Exchange(server.built.app, "/v1/chat/completions", body) as exchange:
            await until(lambda: server.engine.requests != [])
            assert exchange.status is None
            assert exchange.received == b""
            server.engine.release("prefill")
            await exchange.ended()
        first, second, *_ = sse_events(exchange.received.decode())
        assert first["choices"][0]["delta"]["role"] == "assistant"
        assert second["choices"][0]["delta"]["content"] == "It"


async def test_frames_of_a_stream_that_changes_size_are_all_shown():
    async with serving() as server:
        stream_id = await server.new_stream()
        for size in ((64, 48), (64, 48), (128, 72), (321, 241)):
            await server.push(stream_id, picture(size=size))
            server.clock.move(0.5)
        answer = await server.ask(video(f"ovs://streams/{stream_id}?start_frame_index=0&max_fps=2"))
        frames = answer.json()["liveedge"]["frames"]
        assert [(f["width"], f["height"]) for f in frames] == [
            (64, 48), (64, 48), (128, 72), (321, 241)
        ]  # fmt: skip


def sideways(kind, orientation):
    """A picture with a red bar at the left and a green one at the bottom, stored as the tag says."""
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # numbers of Image.Transpose
    upright = Image.new("RGB", (64, 48), "white")
    upright.paste("red", (0, 0, 8, 48))
    upright.paste("green", (0, 42, 64, 48))
    turn = undo.get(orientation)
    tag = Image.Exif()
    tag[0x0112] = orientation
    stored = upright if turn is None else upright.transpose(Image.Transpose(turn))
    out = io.BytesIO()
    stored.save(out, kind, exif=tag, **({"lossless": True} if kind == "WEBP" else {}))
    return out.getvalue(), np.asarray(upright)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
async def test_case_1_every_way_in_turns_a_picture_upright_once(kind):
    async with serving() as server:
        stream_id = await server.new_stream()
        for orientation in range(1, 9):
            data, upright = sideways(kind, orientation)
            tolerance = 12 if kind == "JPEG" else 0
            answer = await server.ask(image(data_url(data)))
            (rgb,) = shown(server)
            assert rgb.shape == upright.shape
            assert np.abs(rgb.astype(int) - upright).mean() <= tolerance, orientation
            frame = answer.json()["liveedge"]["frames"][0]
            assert (frame["width"], frame["height"]) == (64, 48)
            await server.push(stream_id, data)
            picked = await server.client.get(f"/v1beta/streams/{stream_id}/frame.png")
            got = np.asarray(Image.open(io.BytesIO(picked.content)))
            assert np.array_equal(got, rgb)  # a pushed one goes the same way


def bombs():
    return {
        "16000 x 16000": png(16_000, 16_000),
        "40000 x 40000": png(40_000, 40_000),
        "a header of 60000 x 60000": b"\x89PNG\r\n\x1a\n" + png_header(60_000, 60_000),
    }


async def test_case_3_bombs_are_refused_on_every_way_in_and_animations_show_their_first_frame():
    async with serving() as server:
        stream_id = await server.new_stream()
        for name, data in bombs().items():
            assert len(data) < 5_000_000, name
            asked = await server.ask(image(data_url(data)))
            pushed = await server.client.post(f"/streams/{stream_id}/frames", content=data)
            for answer in (asked, pushed):
                code = (answer.status_code, answer.json()["error"]["code"])
                assert code == (413, "media_too_large"), name
        for data in (gif(64, 48, n_frames=2000), png(64, 48, n_frames=2000)):
            assert (await server.ask(image(data_url(data)))).status_code == 200
            assert shown(server)[0].shape == (48, 64, 3)
        assert await is_alive(server)
        assert server.built.questions.decoded_bytes.used == 0


async def test_case_9_two_keys_share_neither_a_frame_nor_the_beginning_of_a_prompt():
    async with serving(api_key=("a", "b")) as server:
        cached = []
        for key in ("a", "a", "b"):
            answer = await server.client.post(
                "/v1/chat/completions",
                json=chat_body(image(data_url(picture()))),
                headers={"authorization": f"Bearer {key}"},
            )
            cached.append(answer.json()["overshoot"]["cache"]["cached_input_tokens"])
        keys = [first_picture(request).frame.key for request in server.engine.requests]
        assert keys[0] == keys[1] != keys[2]
        assert cached[0] == cached[2] == 0 < cached[1]


async def test_case_9_another_budget_of_pixels_is_another_picture_to_the_engine():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        for n_pixels in (64 * 48, 32 * 32):
            url = f"ovs://streams/{stream_id}?frame_index=0&max_pixels={n_pixels}"
            await server.ask(image(url))
        first, second = map(first_picture, server.engine.requests)
        assert (first.max_pixels, second.max_pixels) == (64 * 48, 32 * 32)
