"""`liveedge bench` and `liveedge soak`: measure a server from outside."""

from __future__ import annotations

import argparse


def add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`liveedge bench run|compare|envelope|report`."""
    what = "measure any OpenAI-compatible server on live streams"
    bench = commands.add_parser("bench", help=what, description=f"{what[0].upper()}{what[1:]}.")
    bench.add_subparsers(title="commands", required=True, metavar="COMMAND")
