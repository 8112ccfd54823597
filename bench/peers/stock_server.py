"""Stock transformers behind the same HTTP face as the other servers.

    python bench/peers/stock_server.py MODEL --port 8003

Used as its documentation says: the processor, then `generate`, float32, one question at a time. It
keeps nothing between questions, because stock transformers does not.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.video_utils import VideoMetadata


class Model:
    """One checkpoint."""

    def __init__(self, folder: Path, *, fps: float) -> None:
        library: Any = transformers  # ships few types
        library.logging.set_verbosity_error()
        self.name = folder.name
        self._fps = fps
        self._processor: Any = library.AutoProcessor.from_pretrained(folder)
        self._model: Any = library.AutoModelForImageTextToText.from_pretrained(
            folder, dtype=torch.float32
        ).eval()

    def answer(self, messages: list[dict[str, Any]], n_tokens: int) -> tuple[str, int, int]:
        """(text, tokens read, tokens written)."""
        media: dict[str, list[Any]] = {"images": [], "videos": []}
        shown = [{**message, "content": _shown(message["content"], media)} for message in messages]
        text = self._processor.apply_chat_template(
            shown, add_generation_prompt=True, tokenize=False
        )
        inputs = self._processor(
            text=[text],
            return_tensors="pt",
            do_sample_frames=False,
            video_metadata=[self._metadata(len(video)) for video in media["videos"]] or None,
            **{kind: given for kind, given in media.items() if given},
        )
        with torch.inference_mode():
            out = self._model.generate(**inputs, max_new_tokens=n_tokens, do_sample=False)
        n_read = inputs["input_ids"].shape[1]
        written = out[0, n_read:]
        decoded = self._processor.tokenizer.decode(written, skip_special_tokens=True)
        return decoded, n_read, len(written)

    def _metadata(self, n_frames: int) -> VideoMetadata:
        return VideoMetadata(
            total_num_frames=n_frames, fps=self._fps, frames_indices=list(range(n_frames))
        )


def _shown(content: Any, media: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """The content as templates expect it, its pixels moved to `media`."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts: list[dict[str, Any]] = []
    for part in content:
        if part["type"] == "text":
            parts.append(part)
        elif part["type"] == "image_url":
            media["images"] += _pictures(part["image_url"]["url"])
            parts.append({"type": "image"})
        else:
            frames = [np.asarray(frame) for frame in _pictures(part["video_url"]["url"])]
            media["videos"].append(np.stack(frames))
            parts.append({"type": "video"})
    return parts


def _pictures(url: str) -> list[Image.Image]:
    encoded = url.split(",")[1:]
    return [Image.open(io.BytesIO(base64.b64decode(one))).convert("RGB") for one in encoded]


def handler(model: Model) -> type[BaseHTTPRequestHandler]:
    """The class of a server's connections."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept

        def do_GET(self) -> None:
            found = {"/health": {}, "/v1/models": {"data": [{"id": model.name}]}}.get(self.path)
            self._send(HTTPStatus.OK if found is not None else HTTPStatus.NOT_FOUND, found or {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text, n_read, n_written = model.answer(body["messages"], body["max_tokens"])
            choice = {"message": {"role": "assistant", "content": text}}
            usage = {"prompt_tokens": n_read, "completion_tokens": n_written}
            self._send(HTTPStatus.OK, {"choices": [choice], "usage": usage})

        def log_message(self, *_: object) -> None:
            """Nothing: lines per request are work that the others do not do either."""

        def _send(self, status: HTTPStatus, value: object) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="checkpoint folder")
    parser.add_argument("--port", type=int, default=8003)
    parser.add_argument("--fps", type=float, default=2.0, help="of frames sent as a video")
    options = parser.parse_args()
    model = Model(options.model, fps=options.fps)
    with HTTPServer(("127.0.0.1", options.port), handler(model)) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
