"""What the engine is measured against: the reference library, and the bare model without an engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.video_utils import VideoMetadata

from liveedge.core.clock import SystemClock
from liveedge.engine.decide.plan import DecodeBatch, EncodeBatch, PrefillChunk, Sampled, SampleSpec
from liveedge.engine.front import Front
from liveedge.engine.interface import EngineSettings, FeatureGroup, PreparedRequest
from liveedge.engine.process.start import Opening
from liveedge.engine.request import GenerateRequest, TextPart
from tape import Picture, shown


class Stock:
    """transformers, used as its documentation says, with frames that are sampled already."""

    def __init__(self, folder: Path) -> None:
        library: Any = transformers  # ships few types
        library.logging.set_verbosity_error()
        library.logging.disable_progress_bar()
        self._processor: Any = library.AutoProcessor.from_pretrained(folder)
        self._model: Any = library.AutoModelForImageTextToText.from_pretrained(
            folder, dtype=torch.float32
        ).eval()

    def first_token(self, request: GenerateRequest) -> tuple[int, int]:
        """(tokens read, first token) for the very frames and words of a request."""
        frames, times_s = shown(request)
        words = "".join(
            part.text for part in request.messages[0].content if isinstance(part, TextPart)
        )
        return self._generate(frames, times_s, words)

    def _generate(
        self, frames: Sequence[Picture], times_s: Sequence[float], words: str
    ) -> tuple[int, int]:
        content = [{"type": "video"}, {"type": "text", "text": words}]
        text = self._processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        # At one frame per second the reference's time of a frame is its index, here any number.
        indices: Any = list(times_s)
        metadata = VideoMetadata(total_num_frames=len(frames), fps=1.0, frames_indices=indices)
        inputs = self._processor(
            text=[text],
            videos=[np.stack(frames)],
            video_metadata=[metadata],
            do_sample_frames=False,
            return_tensors="pt",
        )
        with torch.inference_mode():
            out = self._model.generate(**inputs, max_new_tokens=1, do_sample=False)
        n_read = inputs["input_ids"].shape[1]
        return n_read, int(out[0, n_read])

    def timed(self, request: GenerateRequest) -> tuple[float, int]:
        """(ms until the first token, first token)."""
        begun = time.perf_counter()
        _, token = self.first_token(request)
        return (time.perf_counter() - begun) * 1000, token

    def text_of(self, token: int) -> str:
        """What a reader sees of it: an end-of-answer token is no text."""
        text: str = self._processor.tokenizer.decode([token], skip_special_tokens=True)
        return text


class Limit:
    """The engine's own runner on its own, with everything but the asked work done beforehand.

    What it takes is what no scheduling, caching or transport can save: the passes themselves.
    """

    def __init__(self, folder: Path, asked: EngineSettings) -> None:
        clock = SystemClock()
        opening = Opening(folder, Front(folder, asked, clock).settings, clock)
        parts = opening.open()
        self._runner = parts.runner
        self._preprocess = parts.preprocess
        self._piece = opening.sizing.limits.prefill_chunk
        self._rows: dict[str, slice] = {}

    def prepare(self, prepared: PreparedRequest, n_resident: int) -> None:
        """Put a prompt's first tokens and all its features where the engine would have them."""
        self._rows.clear()
        for group in prepared.groups:
            n_used = sum(rows.stop - rows.start for rows in self._rows.values())
            self._rows.setdefault(group.key, slice(n_used, n_used + group.n_tokens))
            self._runner.encode(self._batch(group))
        self._prefill(prepared, 0, n_resident)

    def question_ms(self, prepared: PreparedRequest, n_resident: int) -> tuple[float, int]:
        """(ms, first token) of the tokens behind the resident ones, in one pass."""
        begun = time.perf_counter()
        token = self._prefill(prepared, n_resident, prepared.n_tokens)
        return (time.perf_counter() - begun) * 1000, token

    def step_ms(self, prepared: PreparedRequest, token: int) -> float:
        """One decode step more, behind a prompt that was just computed: the second token."""
        n_tokens = prepared.n_tokens
        batch = DecodeBatch(
            request_ids=(prepared.request.request_id,),
            slots=np.array([0]),
            lengths=np.array([n_tokens]),
            tokens=np.array([token]),
            positions=np.array([n_tokens + prepared.position_delta]),
        )
        begun = time.perf_counter()
        self._runner.decode(batch)
        return (time.perf_counter() - begun) * 1000

    def forget(self, prepared: PreparedRequest) -> None:
        """No step of this prompt follows."""
        self._runner.forget([prepared.request.request_id])

    def newest_ms(self, prepared: PreparedRequest, n_resident: int) -> tuple[float, int]:
        """The same with the last group encoded before; its patches are made already."""
        batch = self._batch(prepared.groups[-1])
        begun = time.perf_counter()
        self._runner.encode(batch)
        token = self._prefill(prepared, n_resident, prepared.n_tokens)
        return (time.perf_counter() - begun) * 1000, token

    def preprocess_ms(self, prepared: PreparedRequest) -> float:
        """Pixels of the last group to patches: not part of the limit, told beside it."""
        begun = time.perf_counter()
        self._patches(prepared.groups[-1])
        return (time.perf_counter() - begun) * 1000

    def _patches(self, group: FeatureGroup) -> object:
        frames = [frame.load() for frame in group.frames]
        return self._preprocess(frames, size=(group.height, group.width))

    def _batch(self, group: FeatureGroup) -> EncodeBatch:
        rows = self._rows[group.key]
        return EncodeBatch(
            keys=(group.key,),
            patches=(self._patches(group),),
            rows=(np.arange(rows.start, rows.stop),),
            sizes=((group.height, group.width),),
        )

    def _prefill(self, prepared: PreparedRequest, start: int, stop: int) -> int:
        """Tokens [start, stop) into the first slot; the first token of the answer, or -1."""
        result: Any = None
        for low in range(start, stop, self._piece):
            high = min(low + self._piece, stop)
            (result,) = self._runner.prefill([self._chunk(prepared, low, high)])
        return result.token if isinstance(result, Sampled) else -1

    def _chunk(self, prepared: PreparedRequest, start: int, stop: int) -> PrefillChunk:
        index, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for group in prepared.groups:
            low, high = max(group.start, start), min(group.stop, stop)
            if low < high:
                first = self._rows[group.key].start - group.start
                index.append(np.arange(low - start, high - start))
                rows.append(np.arange(first + low, first + high))
        request = prepared.request
        last = stop == prepared.n_tokens
        return PrefillChunk(
            request_id=request.request_id,
            slot=0,
            start=start,
            ids=prepared.ids[start:stop],
            positions=prepared.positions[:, start:stop],
            visual_index=np.concatenate(index),
            visual_rows=np.concatenate(rows),
            sample=SampleSpec(request.sampling, request.form) if last else None,
        )
