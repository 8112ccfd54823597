"""Stock transformers behind the same HTTP face as the other servers.

    PYTHONPATH=src:bench python -m peers.stock_server MODEL --port 8003

Used as its documentation says: the processor, then `generate`, float32. It keeps nothing between
questions, because stock transformers does not. Connections are many, answers one at a time: who
asks meanwhile waits for a lock. A client that leaves ends its answer at the next token.
"""

from __future__ import annotations

import argparse
import base64
import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.video_utils import VideoMetadata

from peers.names import model_id
from peers.stock_http import Pieces, Server


class Model:
    """One checkpoint."""

    def __init__(self, folder: Path, *, fps: float) -> None:
        library: Any = transformers  # ships few types
        library.logging.set_verbosity_error()
        self.name = model_id(folder)
        self._fps = fps
        self._turn = threading.Lock()
        self._processor: Any = library.AutoProcessor.from_pretrained(folder)
        self._model: Any = library.AutoModelForImageTextToText.from_pretrained(
            folder, dtype=torch.float32
        ).eval()

    def answer(
        self, messages: list[dict[str, Any]], n_tokens: int, say: Callable[[str], None]
    ) -> tuple[int, int]:
        """(tokens read, tokens written); the text goes to `say` in pieces."""
        media: dict[str, list[Any]] = {"images": [], "videos": []}
        shown = [{**message, "content": _shown(message["content"], media)} for message in messages]
        text = self._processor.apply_chat_template(
            shown, add_generation_prompt=True, tokenize=False
        )
        with self._turn, torch.inference_mode():
            inputs = self._processor(
                text=[text],
                return_tensors="pt",
                do_sample_frames=False,
                video_metadata=[self._metadata(len(video)) for video in media["videos"]] or None,
                **{kind: given for kind, given in media.items() if given},
            )
            out = self._model.generate(
                **inputs,
                max_new_tokens=n_tokens,
                do_sample=False,
                streamer=Pieces(self._processor.tokenizer, say),
            )
        n_read = inputs["input_ids"].shape[1]
        return n_read, out.shape[1] - n_read

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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="checkpoint folder")
    parser.add_argument("--port", type=int, default=8003)
    parser.add_argument("--fps", type=float, default=2.0, help="of frames sent as a video")
    options = parser.parse_args()
    model = Model(options.model, fps=options.fps)
    with Server(options.port, model) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
