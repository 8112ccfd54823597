"""What every side is asked, and the HTTP face of stock transformers, without either."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.append(str(BENCH))

from liveedge.settings import Settings  # noqa: E402
from liveedge.sim.questions import KINDS  # noqa: E402
from peers import exam  # noqa: E402
from peers.agree import differing, reference_of  # noqa: E402
from peers.names import SHIPPED, model_id  # noqa: E402
from peers.pictures import parse, write, write_live  # noqa: E402
from peers.stock_http import Pieces, Server  # noqa: E402


def draw(n_items: int, *, n_frames: int, seed: int = 0) -> list[exam.Item]:
    """Of small pictures, which take little time."""
    return exam.draw(n_items, n_frames=n_frames, width=160, height=96, seed=seed)


def test_equal_arguments_draw_equal_questions_and_pictures():
    assert draw(3, n_frames=2) == draw(3, n_frames=2)
    assert draw(3, n_frames=2) != draw(3, n_frames=2, seed=1)


def test_questions_about_one_frame_never_need_two_and_half_of_those_about_a_clip_do():
    single, clip = draw(4, n_frames=1), draw(6, n_frames=2)
    assert not any(KINDS[item.kind].needs_clip for item in single)
    assert [KINDS[item.kind].needs_clip for item in clip] == [False, True] * 3
    assert {len(item.jpegs) for item in single} == {1}
    assert {len(item.jpegs) for item in clip} == {2}


def test_closed_answers_come_round_evenly():
    n_kinds = sum(not kind.needs_clip for kind in KINDS.values())
    doors = [item for item in draw(3 * n_kinds + 1, n_frames=1) if item.kind == "door"]
    assert [item.truth for item in doors] == ["open", "closed", "open", "closed"]
    assert all(item.is_right(item.truth) for item in doors)
    assert not doors[0].is_right(doors[1].truth)


def test_the_lines_for_load_tools_are_about_the_same_pictures(tmp_path: Path):
    items = draw(2, n_frames=1)
    write(items, tmp_path, model="a/b")
    questions, requests, truths = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("questions", "requests", "truths")
    )
    for item, question, request, truth in zip(items, questions, requests, truths, strict=True):
        assert question["text"] == item.question
        assert Path(question["image"]).read_bytes() == item.jpegs[0]
        assert [part["type"] for part in request["messages"][0]["content"]] == ["image_url", "text"]
        assert request["model"] == "a/b"
        assert truth == {"kind": item.kind, "truth": item.truth}


def test_several_pictures_of_a_question_stay_in_order(tmp_path: Path):
    (item,) = draw(1, n_frames=3)
    write([item], tmp_path, model="a/b")
    question = json.loads((tmp_path / "questions.jsonl").read_text())
    assert [Path(path).read_bytes() for path in question["images"]] == list(item.jpegs)


@pytest.mark.parametrize(
    ("query", "kind"), [("frame_index=-1", "image_url"), ("start_offset_ms=-2000", "video_url")]
)
def test_questions_about_a_stream_have_its_reference_in_place_of_pictures(
    tmp_path: Path, query: str, kind: str
):
    reference = f"ovs://streams/s?{query}"
    write_live(draw(1, n_frames=1), tmp_path, model="a/b", reference=reference)
    (line,) = (tmp_path / "requests.jsonl").read_text().splitlines()
    media, text = json.loads(line)["messages"][0]["content"]
    assert media == {"type": kind, kind: {"url": reference}}
    assert text["type"] == "text"


def test_a_reference_without_a_stream_is_refused(capsys: pytest.CaptureFixture[str]):
    reference = "ovs://streams/s?frame_index=-1"
    assert parse(["out", "--live", reference]).live == reference
    with pytest.raises(SystemExit):
        parse(["out", "--live", "ovs://streams/?frame_index=-1"])
    assert "it must be ovs://streams/ID" in capsys.readouterr().err


def test_a_model_has_one_id_on_every_side(tmp_path: Path):
    assert model_id(SHIPPED) == Settings().model
    assert model_id(tmp_path / "random-9m") == "local/random-9m"


def test_a_stream_is_held_against_a_video_of_transformers():
    assert reference_of(("clip", "stream")) == ("clip", "video")
    assert reference_of(("frame", "images")) == ("frame", "images")


def test_differences_are_told_with_the_truth():
    items = draw(2, n_frames=1)
    (line,) = differing(items, ["open", "on"], ["open", "off"])
    assert repr(items[1].truth) in line
    assert line.endswith("'on', transformers 'off'")


class Tokens:
    """A tensor, as far as a streamer looks at it."""

    def __init__(self, *ids: int) -> None:
        self._ids = ids

    def flatten(self) -> Tokens:
        return self

    def tolist(self) -> list[int]:
        return list(self._ids)


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, tokens: list[int], **_: object) -> str:
        return bytes(tokens).decode(errors="replace")


def test_text_goes_on_with_every_token_whose_characters_are_whole():
    said: list[str] = []
    pieces = Pieces(Bytes(), said.append)
    pieces.put(Tokens(1, 2, 3))  # the prompt
    for token in "aé b".encode():
        pieces.put(Tokens(token))
    pieces.end()
    assert said == ["a", "é", " ", "b"]


class Scripted:
    """A model that says the same to everybody."""

    name = "a/b"

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces
        self.asked: list[int] = []

    def answer(
        self, messages: list[dict[str, Any]], n_tokens: int, say: Callable[[str], None]
    ) -> tuple[int, int]:
        self.asked.append(n_tokens)
        for piece in self.pieces:
            say(piece)
        return 7, len(self.pieces)


@contextlib.contextmanager
def served(model: Scripted) -> Iterator[httpx.Client]:
    with Server(0, model) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            with httpx.Client(base_url=url, trust_env=False) as client:
                yield client
        finally:
            server.shutdown()
            thread.join()


def question(**options: Any) -> dict[str, Any]:
    return {"model": "a/b", "messages": [{"role": "user", "content": "so?"}], **options}


@pytest.mark.timeout(30)
def test_stock_transformers_answers_whole_and_streamed_alike():
    model = Scripted("yes", ", it is")
    with served(model) as client:
        assert client.get("/v1/models").json()["data"][0]["id"] == "a/b"
        whole = client.post("/v1/chat/completions", json=question(max_tokens=9)).json()
        options = {"stream": True, "stream_options": {"include_usage": True}}
        streamed = client.post("/v1/chat/completions", json=question(max_tokens=2, **options))
    assert whole["choices"][0]["message"]["content"] == "yes, it is"
    assert whole["choices"][0]["finish_reason"] == "stop"
    *events, end, _ = streamed.text.split("\n\n")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert end == "data: [DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas == [
        {"role": "assistant", "content": ""}, {"content": "yes"}, {"content": ", it is"}, {},
    ]  # fmt: skip
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"] == whole["usage"]
    assert whole["usage"] == {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    assert model.asked == [9, 2]
