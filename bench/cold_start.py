"""From nothing to the first correct answer over HTTP, beside a bare `import torch` in the same run.

    python bench/cold_start.py --runs 5

Ours: start `liveedge serve`, wait until it answers, ask about one uploaded picture whose truth is
known. The peer is what nobody can avoid who computes with torch: `python -c "import torch"`. Both
are processes of their own; the runs alternate, so that both see the same machine.

`--stock` adds transformers on the same weights: start Python, import, load, first token.
"""

from __future__ import annotations

import argparse
import base64
import io
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from liveedge.client.http import Client
from liveedge.client.local_server import running_server
from liveedge.core.clock import SystemClock
from liveedge.sim.questions import KINDS, TEST_SEEDS, expected
from liveedge.sim.render import Renderer
from liveedge.sim.scene import Workcell
from machine import SHIPPED, announce, checkpoint
from report import finish, table

KIND = "door"
QUESTION = KINDS[KIND].phrasings[0]
SCENE_S = 5.0  # the moment of the scene that is asked about

STOCK = """
import sys
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor
folder, picture, question = sys.argv[1:]
processor = AutoProcessor.from_pretrained(folder)
model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
content = [{"type": "image"}, {"type": "text", "text": question}]
text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
inputs = processor(text=[text], images=[Image.open(picture)], return_tensors="pt")
model.generate(**inputs, max_new_tokens=1, do_sample=False)
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One start of ours, in seconds."""

    total_s: float  # start of the process to the answer
    health_s: float  # to the first answer of the API
    ready_s: float  # to the first moment at which the model answers
    answer_s: float  # of the first question
    stages_s: Mapping[str, float]  # of the engine, as the server says


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=str(SHIPPED), help="checkpoint folder, or random-267m")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one run, to see that it works")
    parser.add_argument("--stock", action="store_true", help="transformers on the same weights too")
    options = parser.parse_args()
    announce()
    model = checkpoint(options.model)
    workcell = Workcell(TEST_SEEDS.start)
    picture = Image.fromarray(Renderer(workcell, width=854, height=480).render(0, SCENE_S, 0))
    truth = expected(KIND, [workcell.state(SCENE_S)]) if model == SHIPPED else None
    ours: list[Run] = []
    torch_s: list[float] = []
    stock_s: list[float] = []
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        picture.save(file.name)
        for _ in range(1 if options.quick else options.runs):
            torch_s.append(timed("-c", "import torch"))
            ours.append(start(model, picture, truth))
            if options.stock:
                stock_s.append(timed("-c", STOCK, str(model), file.name, QUESTION))
    tell(model, ours, torch_s, stock_s)


def timed(*arguments: str) -> float:
    """How long a Python program takes, from its start to its end."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - begun


def start(model: Path, picture: Image.Image, truth: str | None) -> Run:
    """Start a server and ask it; anything but the truth ends the measurement."""
    data = io.BytesIO()
    picture.save(data, "png")
    url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    content: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": QUESTION},
    ]
    clock = SystemClock()
    begun = time.perf_counter()
    with (
        running_server(model=str(model), port=None, clock=clock) as server,
        Client(server.url, clock=clock) as client,
    ):
        answer = client.ask(content, model=client.models()[0]["id"], max_tokens=8)
        total_s = time.perf_counter() - begun
        stages_ms = server.model_stages_ms()
    if truth is not None and answer.text.strip().lower() != truth:
        raise SystemExit(f"the first answer is {answer.text!r}, the truth is {truth!r}")
    return Run(
        total_s=total_s,
        health_s=server.process_ms / 1000,
        ready_s=(server.process_ms + server.model_ms) / 1000,
        answer_s=answer.total_ms / 1000,
        stages_s={name: ms / 1000 for name, ms in stages_ms.items()},
    )


def tell(model: Path, ours: list[Run], torch_s: list[float], stock_s: list[float]) -> None:
    median_s = statistics.median(run.total_s for run in ours)
    torch_import_s = statistics.median(torch_s)
    moments = {
        "/health answers": statistics.median(run.health_s for run in ours),
        "the model answers": statistics.median(run.ready_s for run in ours),
        "the first answer is there": median_s,
    }
    table(("moment (median)", "s"), list(moments.items()))
    stages = {
        name: statistics.median(run.stages_s.get(name, 0.0) for run in ours)
        for name in ours[0].stages_s
    }
    answer_s = statistics.median(run.answer_s for run in ours)
    table(("stage (median)", "s"), [*stages.items(), ("first question", answer_s)])
    rows = [
        ("liveedge, first correct answer", median_s, median_s / torch_import_s),
        ("import torch", torch_import_s, 1.0),
    ]
    figures: dict[str, Any] = {}
    if stock_s:
        figures["stock_s"] = stock = statistics.median(stock_s)
        rows.append(("transformers, first token", stock, stock / torch_import_s))
    table(("side", "s", "ratio"), rows)
    finish(
        {
            "model": model.name,
            "runs": len(ours),
            "median_s": median_s,
            "torch_import_s": torch_import_s,
            "ratio": median_s / torch_import_s,
            "health_s": moments["/health answers"],
            "ready_s": moments["the model answers"],
            "first_answer_s": answer_s,
            "stages_s": stages,
            **figures,
        }
    )


if __name__ == "__main__":
    main()
