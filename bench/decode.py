"""Tokens per second of running greedy answers: stock eager transformers against liveedge.

    python bench/decode.py

The weights are random and have the shipped model's shape, because its own answers end after a few
words; no end token is ever the likeliest, so every answer has exactly --tokens tokens. Both sides
get the same prompts, one, four and eight at once (stock as one batch, ours as that many requests),
alternating; a new prompt in every run. The time is that of the whole call, prompt included, and a
run whose two sides wrote different texts is an error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from asking import add_engine_options, answered, running_engine, settings
from liveedge.engine.interface import Engine
from liveedge.engine.request import GenerateRequest, Message, SamplingParams, TextPart
from liveedge.models.qwen3_vl.config import CALL_MARKS, load_config, load_pixel_config
from liveedge.models.qwen3_vl.export import save
from liveedge.models.qwen3_vl.text import TextModel
from liveedge.models.qwen3_vl.vision import VisionTower
from machine import announce, checkpoint, settle, undisturbed
from report import finish, table
from tape import question

END_TOKENS = ("<|im_end|>", "<|endoftext|>")
EMBEDDING_STD = 0.02  # small beside what a layer adds, or tied weights would repeat one token
GAIN = 2.0  # of every layer: with less, answers end in one word over and over, and prove nothing


@contextmanager
def same_shape(folder: Path) -> Iterator[Path]:
    """A checkpoint of this one's shape whose random weights never end an answer."""
    config = load_config(folder)
    vision, text = VisionTower(config.vision), TextModel(config.text)
    with torch.no_grad():
        randomise(text)
        vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        ends = [t["id"] for t in vocabulary["added_tokens"] if t["content"] in END_TOKENS]
        text.embed_tokens.weight[ends] = 0.0  # their logits are zero: others are above
    with tempfile.TemporaryDirectory() as made:
        save(Path(made), config, load_pixel_config(folder, config.vision), vision, text)
        for path in folder.iterdir():
            if path.suffix != ".safetensors" and not Path(made, path.name).exists():
                shutil.copy(path, made)
        yield Path(made)


def randomise(module: nn.Module) -> None:
    """Weights whose answers look like noise and hang on every token before."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in sorted(module.named_parameters()):
        if parameter.ndim > 1:
            scale = EMBEDDING_STD if "embed" in name else GAIN / math.sqrt(parameter.shape[1])
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
        elif "q_norm" in name or "k_norm" in name:
            parameter.fill_(GAIN)


class Stock:
    """The reference's `generate`, all prompts as one batch."""

    def __init__(self, folder: Path, n_tokens: int) -> None:
        library: Any = transformers  # ships few types
        library.logging.set_verbosity_error()
        library.logging.disable_progress_bar()
        self._tokenizer: Any = library.AutoTokenizer.from_pretrained(folder)
        self._model: Any = library.AutoModelForImageTextToText.from_pretrained(
            folder, dtype=torch.float32
        ).eval()
        self._n_tokens = n_tokens

    def answer(self, questions: Sequence[str]) -> tuple[float, list[str]]:
        """(seconds, texts)."""
        prompts = [
            self._tokenizer.apply_chat_template(
                [{"role": "user", "content": words}], add_generation_prompt=True, tokenize=False
            )
            for words in questions
        ]
        begun_s = time.perf_counter()
        inputs = self._tokenizer(prompts, return_tensors="pt")  # all of one length: no padding
        with torch.inference_mode():
            out: Tensor = self._model.generate(
                **inputs, max_new_tokens=self._n_tokens, do_sample=False
            )
        answers = out[:, inputs["input_ids"].shape[1] :]
        # Ours shows the marks of calls, which some checkpoints list as special.
        silent = {
            token
            for token, added in self._tokenizer.added_tokens_decoder.items()
            if added.special and added.content not in CALL_MARKS
        }
        shown = [[token for token in row if token not in silent] for row in answers.tolist()]
        texts: list[str] = self._tokenizer.batch_decode(shown)
        taken_s = time.perf_counter() - begun_s
        if answers.shape[1] != self._n_tokens:
            raise SystemExit(f"stock wrote {answers.shape[1]} tokens, not {self._n_tokens}")
        return taken_s, texts


class Ours:
    """The engine as the server uses it, one request per prompt."""

    def __init__(self, engine: Engine, n_tokens: int) -> None:
        self._engine = engine
        self._n_tokens = n_tokens
        self._n_requests = 0

    async def answer(self, questions: Sequence[str]) -> tuple[float, list[str]]:
        """(seconds, texts)."""
        requests = [self._request(words) for words in questions]
        begun_s = time.perf_counter()
        found = await asyncio.gather(*(answered(self._engine, request) for request in requests))
        taken_s = time.perf_counter() - begun_s
        for one in found:
            assert one.usage is not None
            if one.usage.completion_tokens != self._n_tokens:
                raise SystemExit(
                    f"ours wrote {one.usage.completion_tokens} tokens, not {self._n_tokens}"
                )
        return taken_s, [one.text for one in found]

    def _request(self, words: str) -> GenerateRequest:
        self._n_requests += 1
        return GenerateRequest(
            request_id=f"bench-{self._n_requests}",
            messages=(Message(role="user", content=(TextPart(words),)),),
            sampling=SamplingParams(max_tokens=self._n_tokens),
        )


async def measure(options: argparse.Namespace, folder: Path) -> dict[tuple[str, int], list[float]]:
    """Tokens per second by side and number of answers at once."""
    speeds: dict[tuple[str, int], list[float]] = defaultdict(list)
    n_asked = 0
    async with running_engine(
        folder, options.engine, settings(n_slots=max(options.at_once), n_windows=0)
    ) as e:
        stock, ours = Stock(folder, options.tokens), Ours(e, options.tokens)
        with undisturbed():
            for run in range(options.runs + 1):
                for n in options.at_once:
                    questions = [question(n_asked + i) for i in range(n)]
                    n_asked += n
                    settle()
                    stock_s, expected = stock.answer(questions)
                    settle()
                    ours_s, found = await ours.answer(questions)
                    check(questions, expected, found)
                    if run:  # the first warms up code and caches
                        speeds["stock", n].append(n * options.tokens / stock_s)
                        speeds["ours", n].append(n * options.tokens / ours_s)
    return speeds


def check(questions: Sequence[str], expected: Sequence[str], found: Sequence[str]) -> None:
    """Both sides must write the same, or the ratio says nothing."""
    for words, theirs, own in zip(questions, expected, found, strict=True):
        if theirs != own:
            raise SystemExit(f"{words!r}: stock {theirs!r}, ours {own!r}: not comparable")


def report(options: argparse.Namespace, speeds: dict[tuple[str, int], list[float]]) -> None:
    median = {key: statistics.median(values) for key, values in speeds.items()}
    table(
        ("answers at once", "stock tokens/s", "ours tokens/s", "ours / stock"),
        [
            (n, median["stock", n], median["ours", n], median["ours", n] / median["stock", n])
            for n in options.at_once
        ],
    )
    figures: dict[str, Any] = {"model": Path(options.model).name, "tokens": options.tokens}
    for n in options.at_once:
        suffix = "" if n == 1 else f"_{n}"
        figures |= {
            f"ours_tok_s{suffix}": median["ours", n],
            f"stock_tok_s{suffix}": median["stock", n],
            f"ratio{suffix}": median["ours", n] / median["stock", n],
        }
    finish(figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_engine_options(parser)
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="one short run, to see that it works")
    options = parser.parse_args()
    if options.quick:
        options.runs, options.tokens = 1, 32
    options.at_once = (1, 4, 8)
    announce()
    with same_shape(checkpoint(options.model)) as folder:
        report(options, asyncio.run(measure(options, folder)))


if __name__ == "__main__":
    main()
