"""From nothing to the first answer: liveedge against stock transformers on the same weights.

    python bench/cold_start.py --runs 5

Ours: start `liveedge serve`, wait until it answers, ask about one uploaded picture over HTTP.
Stock: start Python, import, load the same checkpoint, generate the first token for that picture.
Both are processes of their own; the runs alternate, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image

from liveedge.client.http import Client
from liveedge.core.clock import SystemClock
from liveedge.demo.server import running_server
from liveedge.sim.questions import TEST_SEEDS
from liveedge.sim.render import Renderer
from liveedge.sim.scene import Workcell
from report import finish, table

SHIPPED = Path(__file__).resolve().parent.parent / "src/liveedge/assets/workcell-tiny"
QUESTION = "Is the door open or closed?"

STOCK = """
import json, sys, time
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor
folder, picture, question = sys.argv[1:]
processor = AutoProcessor.from_pretrained(folder)
model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
loaded = time.monotonic()
content = [{"type": "image"}, {"type": "text", "text": question}]
text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
inputs = processor(text=[text], images=[Image.open(picture)], return_tensors="pt")
model.generate(**inputs, max_new_tokens=1, do_sample=False)
answered = time.monotonic()
print(json.dumps(answered - loaded))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=SHIPPED, help="checkpoint folder")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one run, to see that it works")
    options = parser.parse_args()
    workcell = Workcell(TEST_SEEDS.start)
    picture = Image.fromarray(Renderer(workcell, width=854, height=480).render(0, 5.0, 0))
    ours, stock = [], []
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        picture.save(file.name)
        for _ in range(1 if options.quick else options.runs):
            ours.append(start_ours(options.model, picture))
            stock.append(start_stock(options.model, Path(file.name)))
    stages = ("imports and weights", "first answer", "all")
    ours_ms = [statistics.median(run[i] for run in ours) for i in range(3)]
    stock_ms = [statistics.median(run[i] for run in stock) for i in range(3)]
    rows = [(name, a, b, b / a) for name, a, b in zip(stages, ours_ms, stock_ms, strict=True)]
    table(("stage (median ms)", "liveedge", "transformers", "ratio"), rows)
    finish(
        {
            "model": options.model.name,
            "runs": len(ours),
            "ours_ms": ours_ms[2],
            "stock_ms": stock_ms[2],
            "ratio": stock_ms[2] / ours_ms[2],
            "ready_ms": ours_ms[0],
            "first_answer_ms": ours_ms[1],
        }
    )


def start_ours(model: Path, picture: Image.Image) -> tuple[float, float, float]:
    clock = SystemClock()
    with (
        running_server(model=str(model), port=None, clock=clock) as server,
        Client(server.url, clock=clock) as client,
    ):
        data = io.BytesIO()
        picture.save(data, "png")
        url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
        content: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": QUESTION},
        ]
        answer = client.ask(content, model=client.models()[0]["id"], max_tokens=1)
    ready_ms = server.process_ms + server.model_ms
    return ready_ms, answer.total_ms, ready_ms + answer.total_ms


def start_stock(model: Path, picture: Path) -> tuple[float, float, float]:
    command = [sys.executable, "-c", STOCK, str(model), str(picture), QUESTION]
    begun = time.monotonic()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    total_ms = (time.monotonic() - begun) * 1000
    answer_ms = json.loads(done.stdout.splitlines()[-1]) * 1000
    return total_ms - answer_ms, answer_ms, total_ms


if __name__ == "__main__":
    main()
