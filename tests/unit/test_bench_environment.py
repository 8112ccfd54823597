"""Where a run was made, and nothing that would let somebody in."""

import json
from pathlib import Path

import httpx
import pytest

from liveedge.bench.checkpoints import digest
from liveedge.bench.clocks import ClockOffset
from liveedge.bench.environment import Started, describe, masked, with_clock_after
from liveedge.bench.scenario import Target
from liveedge.testing.clock import FakeClock


class Instant(FakeClock):
    """Sleeping moves it."""

    async def sleep(self, seconds: float) -> None:
        self.move(seconds)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["bench", "run", "a.toml"], "bench run a.toml"),
        (["--api-key", "s3cret", "--port", "80"], "--api-key *** --port 80"),
        (["--api-key=s3cret"], "--api-key=***"),
        (["--tls-key-password-file", "/run/p"], "--tls-key-password-file ***"),
        (["LIVEEDGE_API_KEY=s3cret", "x"], "LIVEEDGE_API_KEY=*** x"),
        (["rtsp://me:s3cret@10.0.0.1/a"], "rtsp://***@10.0.0.1/a"),
        (["https://a/b?token=s3cret&n=1"], "https://a/b?token=***&n=1"),
        (["say", "known-s3cret-key here"], 'say "known-***-key here"'),
        ([f"{Path.home()}/models/tiny"], "~/models/tiny"),
        (["--set", "target.model=a/b"], "--set target.model=a/b"),
    ],
    ids=range(10),
)
def test_a_command_is_shown_without_its_secrets(arguments, shown):
    assert masked(arguments, {"s3cret", ""}) == shown


def test_a_checkpoint_has_a_digest_of_its_files(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_text("{}")
    first = digest(tmp_path)
    assert first is not None
    assert first["digest"].startswith("sha256:")
    assert first["digest_of"] == "whole files"
    (tmp_path / "README.md").write_text("not weights")
    assert digest(tmp_path) == first
    (tmp_path / "model.safetensors").write_bytes(b"other!!")
    assert digest(tmp_path) != first
    assert digest(tmp_path / "none") is None
    assert digest(tmp_path / "model.safetensors") is not None  # one file, as GGUF is


def asked(handle):
    return httpx.AsyncClient(
        transport=httpx.MockTransport(handle), headers={"Authorization": "Bearer s3cret"}
    )


async def test_a_server_tells_what_it_is(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    model = {"id": "a/b", "root": str(tmp_path), "dtype": "bfloat16", "max_model_len": 4096}

    def handle(request):
        if request.url.path == "/version":
            return httpx.Response(200, json={"version": "0.11.0"}, headers={"server": "uvicorn"})
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "other"}, model]})
        return httpx.Response(404)

    target = Target(base_url="http://127.0.0.1:9/v1", model="a/b")
    started = Started(command=["liveedge", "bench", "--api-key", "s3cret"], api_key="s3cret")
    found = await describe(target, asked(handle), started=started, clock=Instant())
    assert found["server"]["version"] == "0.11.0"
    assert found["server"]["name"] == "uvicorn"
    assert found["model"]["id"] == "a/b"
    assert found["model"]["dtype"] == "bfloat16"
    assert found["model"]["root"] == tmp_path.name
    assert found["model"]["digest"].startswith("sha256:")
    assert found["cpu"]["cores"] >= 1
    assert found["memory_mb"] > 100
    assert found["packages"]["httpx"]
    assert "load_average_1min" in found["busy_before"]
    assert found["clock"]["method"] == "same machine"
    assert "s3cret" not in json.dumps(found)


async def test_a_server_that_is_not_there_leaves_the_rest():
    def handle(request):
        raise httpx.ConnectError("refused")

    target = Target(base_url="http://user:s3cret@far:9/v1", model="a/b")
    started = Started(command=["liveedge"])
    found = await describe(target, asked(handle), started=started, clock=Instant())
    assert found["server"]["version"] is None
    assert found["model"] == {"id": "a/b", "digest": None}
    assert found["clock"]["method"] == "unknown"
    assert "s3cret" not in json.dumps(found)


def test_the_clock_after_the_run_is_held_with_that_before():
    before = {"clock": {"offset_ms": 4.0, "uncertainty_ms": 1.0, "rtt_ms": 2.0, "method": "now_ms"}}
    after = ClockOffset(offset_ms=8.0, uncertainty_ms=1.0, rtt_ms=2.0, method="now_ms")
    held = with_clock_after({**before, "os": "Linux"}, after)
    assert held["os"] == "Linux"
    assert (held["clock"]["offset_ms"], held["clock"]["uncertainty_ms"]) == (6.0, 3.0)
    assert with_clock_after({}, after)["clock"]["offset_ms"] == 8.0
