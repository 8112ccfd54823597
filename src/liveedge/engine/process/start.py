"""The half of a start that needs torch: weights and memory to the parts of an engine, with the
time of each stage. `front` is the other one. Runs on the engine thread.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from liveedge.core.clock import Clock
from liveedge.core.errors import SettingsInvalid
from liveedge.engine.compute.runner import TorchRunner
from liveedge.engine.decide.encoder_cache import EncoderCache
from liveedge.engine.decide.scheduler import Scheduler
from liveedge.engine.decide.slots import SlotTable
from liveedge.engine.decide.verify import Verifier
from liveedge.engine.form.grammar import GrammarCompiler
from liveedge.engine.interface import EngineSettings
from liveedge.engine.memory.fitting import check_device_memory
from liveedge.engine.memory.plan import VALUE_BYTES, read_facts
from liveedge.engine.memory.sizing import Sizing, model_shape, plan_sizes
from liveedge.engine.process.intake import Preprocess
from liveedge.models.loader import load_model
from liveedge.models.qwen3_vl.config import Qwen3VLConfig, load_config
from liveedge.models.qwen3_vl.processor import Preprocessor
from liveedge.models.qwen3_vl.vocabulary import Vocabulary
from liveedge.models.qwen3_vl.weights import Qwen3VL
from liveedge.native import library

log = logging.getLogger("liveedge.engine")

DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
# Of the largest logit; what another order of sums may change in the type of the device.
VERIFY_TOLERANCE = {"cpu": 1e-4, "cuda": 3e-2}


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that the engine's half is made of."""

    scheduler: Scheduler
    runner: TorchRunner
    preprocess: Preprocess
    compiler: GrammarCompiler
    row_bytes: int  # of a feature row
    max_loading: int  # groups with the loading workers


class Opening:
    """An engine that is about to start. `settings.device` is one that was found."""

    def __init__(
        self,
        folder: Path,
        settings: EngineSettings,
        clock: Clock,
        *,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self.startup_ms: dict[str, float] = {}
        self._folder = folder
        self._settings = settings
        self._clock = clock
        self._device = torch.device(check_device(settings.device))
        with self._stage("vocabulary"):
            self._vocabulary = vocabulary or Vocabulary(folder)
        self._config = load_config(folder)
        shape = model_shape(self._config)
        self.sizing: Sizing = plan_sizes(
            settings, shape, value_bytes=VALUE_BYTES["cuda" if self._is_cuda else "cpu"]
        )
        self.row_bytes = shape.feature_dim * DTYPES[self._device.type].itemsize
        if self._is_cuda:
            free_bytes, _ = torch.cuda.mem_get_info(self._device)
            check_device_memory(settings, read_facts(folder), free_bytes=free_bytes)

    @property
    def _is_cuda(self) -> bool:
        return self._device.type == "cuda"

    def open(self) -> Parts:
        """Read the weights and allocate every pool, on the calling thread."""
        set_threads(self._settings.threads)
        with self._stage("weights"):
            model = load_model(self._folder, device=self._device, dtype=DTYPES[self._device.type])
        with self._stage("memory"):
            compiler = make_compiler(self._vocabulary, self._config)
            runner = self._runner(model, compiler)
        log.info(
            "%s on %s: %d slots of %d tokens (%.0f MB), features %.0f MB, patches up to %.0f MB",
            self._settings.model_id or self._folder.name,
            self._device,
            self.sizing.n_kv_slots,
            self.sizing.max_model_len,
            self.sizing.kv_bytes / 1e6,
            self.sizing.feature_bytes / 1e6,
            self.sizing.patch_bytes / 1e6,
        )
        return Parts(
            scheduler=self._scheduler(),
            runner=runner,
            preprocess=Preprocessor(
                model.config.vision,
                model.pixels,
                memory_bytes=self.sizing.patch_bytes,
                pinned=self._is_cuda,
            ).preprocess,
            compiler=compiler,
            row_bytes=self.row_bytes,
            max_loading=self.sizing.limits.max_loading,
        )

    def _runner(self, model: Qwen3VL, compiler: GrammarCompiler) -> TorchRunner:
        sizing = self.sizing
        try:
            return TorchRunner(
                model,
                sizing=sizing,
                compiler=compiler,
                entropy=lambda: secrets.randbits(63),
                lib=library.load(),
            )
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise SettingsInvalid(
                f"{sizing.n_kv_slots} slots of {sizing.max_model_len} tokens "
                f"({sizing.kv_bytes / 1e6:.0f} MB) and {sizing.feature_bytes / 1e6:.0f} MB of "
                f"features do not fit on {self._device}: lower n_slots, n_windows, max_model_len"
                " or encoder_cache_bytes"
            ) from error

    def _scheduler(self) -> Scheduler:
        sizing = self.sizing
        return Scheduler(
            slots=SlotTable(
                n_slots=sizing.n_slots,
                n_windows=sizing.n_window_slots,
                max_len=sizing.max_model_len,
            ),
            cache=EncoderCache(n_rows=sizing.feature_rows),
            limits=sizing.limits,
            vocabulary=AnswerVocabulary(self._vocabulary),
            verifier=Verifier(
                share=self._settings.verify_share,
                chance=secrets.SystemRandom().random,
                tolerance=VERIFY_TOLERANCE[self._device.type],
            ),
        )

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        started_s = self._clock.monotonic_s()
        yield
        self.startup_ms[name] = (self._clock.monotonic_s() - started_s) * 1000


class AnswerVocabulary:
    """The vocabulary as answers show it: special tokens write nothing, but for the marks of calls."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.eos_ids = vocabulary.eos_ids

    def token_bytes(self, token_id: int) -> bytes:
        if token_id in self._vocabulary.silent_ids:
            return b""
        return self._vocabulary.token_bytes(token_id)


def make_compiler(vocabulary: Vocabulary, config: Qwen3VLConfig) -> GrammarCompiler:
    """Costs nothing before the first grammar: reading a large vocabulary takes a second."""
    return GrammarCompiler(
        tokens=(vocabulary.token_bytes(token) for token in range(vocabulary.size)),
        special_ids=vocabulary.silent_ids,
        eos_ids=vocabulary.eos_ids,
        encode=vocabulary.encode_plain,
        n_logits=config.text.vocab_size,
    )


def set_threads(asked: int | None) -> None:
    """How many threads torch uses for work of the calling thread, whatever others set later."""
    own = torch.get_num_threads()  # first: a thread that never asked follows the last setter
    torch.set_num_threads(own if asked is None else asked)


def check_device(found: str) -> str:
    """The device that `front` found, if torch finds it too."""
    assert found != "auto", "the device is found by `front`, for both halves"
    if found == "cuda" and not torch.cuda.is_available():
        raise SettingsInvalid(
            "there is a CUDA device that torch cannot use; update the driver, or set device=cpu"
        )
    return found
