"""`liveedge bench run` put together: the only module that knows every part of a run."""

from __future__ import annotations

import gc
import random
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from liveedge.bench.answers import decoded
from liveedge.bench.clocks import LOCAL, measure_clock
from liveedge.bench.cold import ColdProbe
from liveedge.bench.connections import dial_to
from liveedge.bench.documents import told
from liveedge.bench.environment import Started, describe, with_clock_after
from liveedge.bench.measures import summarise_folder
from liveedge.bench.report.write import write_report
from liveedge.bench.result import RECORDS, ResultFolder, ResultUnwritable, Summary
from liveedge.bench.run import Keep, Parts, Refused, Target, run_scenario
from liveedge.bench.sampling import Looks, Sampler
from liveedge.bench.scenario import Scenario, ScenarioInvalid
from liveedge.bench.sources.choose import Cameras, media_source
from liveedge.bench.sources.streams import SourceFailed
from liveedge.core.clock import Clock

MODELS_TIMEOUT_S = 30.0
__all__ = [
    "Asked",
    "RunFailed",
    "SourceFailed",
    "new_folder",
    "overrides_of",
    "run",
    "what_is_left",
]


class RunFailed(Exception):
    """A run could not begin; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line says beside the scenario."""

    command: Sequence[str]  # as it was typed
    variables: Mapping[str, str]  # of the environment: the key is in one of them
    started_ms: Mapping[str, float]  # how a server that was started for the run came up
    say: Callable[[str], None]


def new_folder(out: Path | None, name: str, clock: Clock) -> ResultFolder:
    """An empty folder for a result. Raises RunFailed where it holds something already."""
    at = time.strftime("%Y%m%d-%H%M%S", time.gmtime(clock.wall_ms() / 1000))
    path = out or Path("bench-results") / f"{name}-{at}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise RunFailed(f"{path} is not empty: name a new folder with --out")
    except OSError as error:
        raise RunFailed(f"{path} cannot be made: {error.strerror}") from error
    return ResultFolder(path)


async def run(scenario: Scenario, folder: ResultFolder, asked: Asked, clock: Clock) -> Summary:
    """Run it against its target. Raises RunFailed, SourceFailed, ScenarioInvalid."""
    api_key = asked.variables.get(scenario.target.api_key_env) or None
    try:
        dial = dial_to(scenario.target.base_url, httpx.create_ssl_context())
    except ValueError as error:
        raise ScenarioInvalid(f"target.base_url: {error}") from error
    async with _http(scenario, api_key) as http:
        model = scenario.target.model or await _first_model(http, scenario.target.api_key_env)
        scenario = replace(scenario, target=replace(scenario.target, model=model))
        chance = random.Random(f"sources {scenario.load.seed}")
        source = media_source(scenario, clock=clock, chance=chance, api_key=api_key)
        parts = _Parts(scenario, asked, http, clock, source, api_key).made()
        target = Target(model=model, api_key=api_key, dial=dial)
        gc.collect()
        gc.freeze()  # what was imported is not looked through again while answers are timed
        try:
            return await run_scenario(scenario, folder, target=target, parts=parts, clock=clock)
        except (Refused, SourceFailed, ResultUnwritable) as error:
            raise RunFailed(f"{error}{what_is_left(folder)}") from error
        finally:
            gc.unfreeze()


def what_is_left(folder: ResultFolder) -> str:
    """How to come to the figures of steps that were measured before a run broke off."""
    records = folder.path / RECORDS
    if not records.exists() or not records.stat().st_size:
        return ""
    return f"; `liveedge bench report {folder.path}` makes the figures of what was measured"


class _Parts:
    """Makes the parts of one run."""

    def __init__(
        self,
        scenario: Scenario,
        asked: Asked,
        http: httpx.AsyncClient,
        clock: Clock,
        source: Cameras,
        api_key: str | None,
    ) -> None:
        self._scenario, self._asked, self._http = scenario, asked, http
        self._clock, self._source, self._api_key = clock, source, api_key
        self._sampler: Sampler | None = None

    def made(self) -> Parts:
        return Parts(
            source=self._source,
            sampler=self._sampling,
            environment=self._environment,
            environment_after=self._environment_after,
            summarise=summarise_folder,
            write_report=write_report,
            probe=ColdProbe(clock=self._clock, started=self._asked.started_ms),
            say=self._asked.say,
        )

    def _sampling(self, keep: Keep, begun_s: float) -> Sampler:
        target = self._scenario.target
        server = urlsplit(target.base_url)
        url = target.metrics_url or f"{server.scheme}://{server.netloc}/metrics"
        # The key is for the server alone, never for whoever else keeps its metrics.
        is_its_own = urlsplit(url).netloc == server.netloc
        headers = _authorization(self._api_key) if is_its_own else {}
        looks = Looks(metrics_url=url, headers=headers, pid=target.pid)
        self._sampler = Sampler(looks, keep, clock=self._clock, began_s=begun_s)
        return self._sampler

    async def _environment(self) -> Mapping[str, Any]:
        started = Started(command=self._asked.command, api_key=self._api_key or "")
        return await describe(self._scenario.target, self._http, started=started, clock=self._clock)

    async def _environment_after(self, before: Mapping[str, Any]) -> Mapping[str, Any]:
        after = await measure_clock(self._http, self._scenario.target.base_url, self._clock)
        trouble = [] if self._sampler is None else self._sampler.trouble
        seen = {"sources": self._source.report(), "sampling": trouble}
        return {**with_clock_after(before, after), **seen}


def _http(scenario: Scenario, api_key: str | None) -> httpx.AsyncClient:
    """For everything but the measured requests."""
    is_local = httpx.URL(scenario.target.base_url).host in LOCAL
    return httpx.AsyncClient(
        base_url=f"{scenario.target.base_url.rstrip('/')}/",
        headers=_authorization(api_key),
        timeout=MODELS_TIMEOUT_S,
        trust_env=not is_local,
    )


def _authorization(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


async def _first_model(http: httpx.AsyncClient, api_key_env: str) -> str:
    """The first that is ready."""
    where = f"{http.base_url}models"
    try:
        answer = await told(http, "models")
        if answer.status != httpx.codes.OK:
            raise RunFailed(
                f"{where} answered {answer.status}; is the server up, and the key right?"
                f" It is read from the variable {api_key_env}; with target.model set nobody asks here"
            )
        models = decoded(answer.text)["data"]
        names = [str(one["id"]) for one in models if one.get("status", "ready") == "ready"]
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise RunFailed(f"{where}: {reason}; is the server up?") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise RunFailed(f"{where} names no models: set target.model") from error
    if not names:
        raise RunFailed(
            f"none of the {len(models)} models at {where} is ready: wait for it, or set target.model"
        )
    return names[0]


def overrides_of(settings: Sequence[str]) -> dict[str, Any]:
    """`load.duration_s=5` as in TOML; what is no TOML value is a text. Raises ScenarioInvalid."""
    found = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not key or not equals:
            raise ScenarioInvalid(
                f"--set {setting}: it must be KEY=VALUE, such as load.duration_s=5"
            )
        found[key.strip()] = _toml_value(text.strip())
    return found


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
