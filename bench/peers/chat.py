"""What every server here is asked, and how its answer is timed: chat completions over HTTP."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeAlias

import httpx

LIMIT_S = 600.0  # the slowest peer needs half a minute for a window of the larger model
Part: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer and what it cost."""

    text: str
    total_ms: float  # sending to the last byte; of one token, this is the time to first token
    n_read: int
    n_written: int
    evidence: Mapping[str, Any]  # what ours tells of the frames it used; empty from a peer


class Chat:
    """One server over one kept connection, as a client that asks again and again has it."""

    def __init__(self, url: str) -> None:
        # A proxy from the environment is for the world, never for this machine.
        self.http = httpx.Client(base_url=url, timeout=LIMIT_S, trust_env=False)
        self._model = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.http.close()

    def ask(self, media: Sequence[Part], question: str, *, max_tokens: int = 1) -> Reply:
        """A greedy answer to one question after the media."""
        content = [*media, {"type": "text", "text": question}]
        body = {
            "model": self._model or self._find_model(),
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": max_tokens,
        }
        begun_s = time.perf_counter()
        response = self.http.post("/v1/chat/completions", json=body)
        total_ms = (time.perf_counter() - begun_s) * 1000
        if response.is_error:
            raise SystemExit(f"{response.url} answered {response.status_code}: {response.text}")
        answer = response.json()
        return Reply(
            text=(answer["choices"][0]["message"]["content"] or "").strip(),
            total_ms=total_ms,
            n_read=answer["usage"]["prompt_tokens"],
            n_written=answer["usage"]["completion_tokens"],
            evidence=answer.get("liveedge", {}),
        )

    def _find_model(self) -> str:
        self._model = self.http.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        return self._model


def as_video(jpegs: Sequence[bytes]) -> list[Part]:
    """The frames as one video: a list of JPEGs in one data URL, which some servers understand."""
    encoded = ",".join(base64.b64encode(jpeg).decode() for jpeg in jpegs)
    return [{"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{encoded}"}}]


def as_images(jpegs: Sequence[bytes]) -> list[Part]:
    """The frames as pictures, which every server understands; twice the tokens of a video."""
    urls = [f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}" for jpeg in jpegs]
    return [{"type": "image_url", "image_url": {"url": url}} for url in urls]
