"""A camera that publishes by WHIP: `python -m liveedge.bench.soak.whip_camera`, words as `push_camera`.

Needs `liveedge[bench]`. Connects again as `liveedge publish` does, until standard input closes.
"""

from __future__ import annotations

import random
import sys

from liveedge.bench.soak.push_camera import end_with_stdin, parse
from liveedge.client.http import Client, Refused
from liveedge.client.publish.pictures import Wanted
from liveedge.client.publish.run import Hear, PublishFailed, PublishOptions, publish
from liveedge.core.clock import clock_at


def main() -> int:
    words = parse(sys.argv[1:])
    end_with_stdin()
    clock = clock_at(words.speed)
    options = PublishOptions(
        source=f"sim://workcell?seed={words.seed}",
        stream_id=words.stream_id,
        wanted=Wanted(size=words.size, fps=words.fps),
        is_local=True,
    )
    hear = Hear(created=_nothing, state=_nothing)  # they come and go for hours
    with Client(words.url, clock=clock) as client:
        try:
            publish(options, client, clock=clock, rng=random.Random(words.seed), hear=hear)
        except (PublishFailed, Refused) as error:
            _say(str(error))
            return 1
    return 0


def _nothing(_text: str) -> None:
    """The log of the soak has it."""


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
