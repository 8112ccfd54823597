"""Request bodies: read within bounds, then checked against their model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from liveedge.core.errors import BodyTooLarge, RequestInvalid
from liveedge.service.limits import Budget, Shares, most_json_values

Model = TypeVar("Model", bound=BaseModel)

MAX_VALUES = 1 << 17


class BodyInvalid(Exception):
    """A body that does not fit its model. Caught by the app, which answers 422."""

    def __init__(self, error: ValidationError) -> None:
        super().__init__("the body does not fit its model")
        # Never with the input: it may be megabytes of somebody's picture.
        found = error.errors(include_input=False, include_url=False, include_context=False)
        self.details = [
            {"loc": ("body", *d["loc"]), "msg": _plain(d["msg"]), "type": d["type"]} for d in found
        ]


class Bodies:
    """Reads bodies. Each is limited in size, and all that are held at once together.

    Those of one owner that are still coming may fill half of that: the rest is for whoever is done.
    How long one may take is for the connection to say (`connection.py`).
    """

    def __init__(self, *, max_bytes: int, held: Budget, setting: str = "") -> None:
        """`setting` names the limit in refusals."""
        self._max_bytes = max_bytes
        self._setting = setting
        self._held = held
        self._coming = Shares(
            max(max_bytes, held.capacity // 2), what="bytes of unfinished request bodies of one key"
        )

    @asynccontextmanager
    async def read(
        self, request: Request, *, owner: str, max_bytes: int | None = None
    ) -> AsyncIterator[bytes]:
        """The body, counted against the budget for the time of the block."""
        limit = min(max_bytes or self._max_bytes, self._max_bytes)
        chunks: list[bytes] = []
        if _declared_length(request) > limit:
            raise self._too_large(limit)
        with self._held.growing() as held:
            with self._coming.growing(owner) as coming:
                async for chunk in request.stream():
                    if held.amount + len(chunk) > limit:
                        raise self._too_large(limit)
                    coming.add(len(chunk))
                    held.add(len(chunk))
                    chunks.append(chunk)
            data = b"".join(chunks)
            chunks.clear()  # not twice in memory for as long as the answer takes
            yield data

    def _too_large(self, limit: int) -> BodyTooLarge:
        name = f" ({self._setting})" if self._setting and limit == self._max_bytes else ""
        return BodyTooLarge(f"the body exceeds the limit of {limit} bytes{name}; send less at once")


def parse(data: bytes, model: type[Model]) -> Model:
    """JSON as `model`. Raises BodyInvalid, or RequestInvalid where it has too many values."""
    if most_json_values(data) > MAX_VALUES:
        raise RequestInvalid(f"the body has more than {MAX_VALUES} values; send less at once")
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise BodyInvalid(error) from None


def _declared_length(request: Request) -> int:
    text = request.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() else 0


def _plain(msg: str) -> str:
    return msg.removeprefix("Value error, ")
