"""From a checkpoint folder and settings to the parts of an engine, with the time of each stage.

The first half (configuration, tokenizer, sizes) runs where `Opening` is made; the second half
(weights and memory) runs in `open`, on the engine thread.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from liveedge.core.clock import Clock
from liveedge.core.errors import LiveEdgeError, SettingsInvalid
from liveedge.engine.encoder_cache import EncoderCache
from liveedge.engine.grammar import GrammarCompiler
from liveedge.engine.interface import EngineSettings, ModelInfo
from liveedge.engine.loader import Loader
from liveedge.engine.plan import LoadJob
from liveedge.engine.runner import TorchRunner
from liveedge.engine.scheduler import Scheduler
from liveedge.engine.schema_gate import SchemaGate
from liveedge.engine.sizing import ModelShape, Sizing, plan_sizes
from liveedge.engine.slots import SlotTable
from liveedge.models.loader import load_model
from liveedge.models.qwen3_vl.config import Qwen3VLConfig
from liveedge.models.qwen3_vl.processor import Preprocessor
from liveedge.models.qwen3_vl.prompt import PromptBuilder
from liveedge.models.qwen3_vl.vocabulary import Vocabulary
from liveedge.models.qwen3_vl.weights import Qwen3VL
from liveedge.models.registry import family_of

log = logging.getLogger("liveedge.engine")

DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything the engine thread owns."""

    scheduler: Scheduler
    runner: TorchRunner
    loader: Loader


class Opening:
    """An engine that is about to start."""

    def __init__(self, folder: Path, settings: EngineSettings, clock: Clock) -> None:
        self.startup_ms: dict[str, float] = {}
        self._folder = folder
        self._settings = settings
        self._clock = clock
        with self._stage("tokenizer"):
            family = family_of(folder)
            self.builder: PromptBuilder = family.open_prompts(folder)
        self._device = choose_device(settings.device)
        self._dtype = DTYPES[self._device.type]
        shape = model_shape(self.builder.config)
        self.sizing: Sizing = plan_sizes(settings, shape, value_bytes=self._dtype.itemsize)
        self.row_bytes = shape.feature_dim * self._dtype.itemsize
        self.model = self._model_info(supports_video=family.supports_video)
        self.schemas = SchemaGate(self._compile_ahead)
        self._compiler: GrammarCompiler | None = None  # until `open`

    def _model_info(self, *, supports_video: bool) -> ModelInfo:
        pixels, limit = self.builder.pixels, self.sizing.max_frame_px
        return ModelInfo(
            model_id=self._settings.model_id or self._folder.name,
            max_model_len=self.sizing.max_model_len,
            supports_video=supports_video,
            image_max_pixels=min(pixels.image.max_pixels, limit),
            video_max_pixels=min(pixels.video.max_pixels, limit),
            token_px=self.builder.config.vision.factor,
        )

    def open(self, loaded: Callable[[LoadJob, object | LiveEdgeError], None]) -> Parts:
        """Read the weights and allocate every pool, on the calling thread."""
        set_threads(self._settings.threads)
        with self._stage("weights"):
            model = load_model(self._folder, device=self._device, dtype=self._dtype)
        with self._stage("memory"):
            self._compiler = self._make_compiler()
            runner = self._runner(model, self._compiler)
        log.info(
            "%s on %s: %d slots of %d tokens (%.0f MB), features %.0f MB, patches up to %.0f MB",
            self.model.model_id,
            self._device,
            self.sizing.n_slots,
            self.sizing.max_model_len,
            self.sizing.kv_bytes / 1e6,
            self.sizing.feature_bytes / 1e6,
            self.sizing.patch_bytes / 1e6,
        )
        preprocessor = Preprocessor(model.config.vision, model.pixels)
        return Parts(
            scheduler=self._scheduler(),
            runner=runner,
            loader=Loader(
                preprocess=preprocessor.preprocess,
                n_threads=self._settings.load_threads,
                done=loaded,
            ),
        )

    def _runner(self, model: Qwen3VL, compiler: GrammarCompiler) -> TorchRunner:
        sizing = self.sizing
        try:
            return TorchRunner(
                model,
                sizing=sizing,
                compiler=compiler,
                entropy=lambda: secrets.randbits(63),
            )
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise SettingsInvalid(
                f"{sizing.n_slots} slots of {sizing.max_model_len} tokens "
                f"({sizing.kv_bytes / 1e6:.0f} MB) and {sizing.feature_bytes / 1e6:.0f} MB of "
                f"features do not fit on {self._device}: lower n_slots, max_model_len or "
                "encoder_cache_bytes"
            ) from error

    def _scheduler(self) -> Scheduler:
        sizing = self.sizing
        return Scheduler(
            slots=SlotTable(n_slots=sizing.n_slots, max_len=sizing.max_model_len),
            cache=EncoderCache(n_rows=sizing.feature_rows),
            limits=sizing.limits,
            vocabulary=AnswerVocabulary(self.builder.vocabulary),
        )

    def _compile_ahead(self, grammar: str) -> None:
        if self._compiler is not None:
            self._compiler.compile(grammar)

    def _make_compiler(self) -> GrammarCompiler:
        vocabulary = self.builder.vocabulary
        ids = range(vocabulary.size)
        return GrammarCompiler(
            tokens=[vocabulary.token_bytes(token) for token in ids],
            special_ids=[token for token in ids if vocabulary.is_special(token)],
            eos_ids=vocabulary.eos_ids,
            encode=vocabulary.encode_plain,
            n_logits=self.builder.config.text.vocab_size,
        )

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        started_s = self._clock.monotonic_s()
        yield
        self.startup_ms[name] = (self._clock.monotonic_s() - started_s) * 1000


class AnswerVocabulary:
    """The vocabulary as answers show it: special tokens write nothing."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.eos_ids = vocabulary.eos_ids

    def token_bytes(self, token_id: int) -> bytes:
        if self._vocabulary.is_special(token_id):
            return b""
        return self._vocabulary.token_bytes(token_id)


def set_threads(asked: int | None) -> None:
    """How many threads torch uses for work of the calling thread, whatever others set later."""
    own = torch.get_num_threads()  # first: a thread that never asked follows the last setter
    torch.set_num_threads(own if asked is None else asked)


def choose_device(asked: str) -> torch.device:
    """The device that will run; never another one than was asked."""
    has_cuda = torch.cuda.is_available()
    if asked == "cuda" and not has_cuda:
        raise SettingsInvalid("device is cuda and torch finds no CUDA device: use cpu or auto")
    return torch.device("cuda" if has_cuda and asked != "cpu" else "cpu")


def model_shape(config: Qwen3VLConfig) -> ModelShape:
    """What the memory plan must know of a model."""
    text, vision = config.text, config.vision
    return ModelShape(
        n_layers=text.n_layers,
        n_kv_heads=text.n_kv_heads,
        head_dim=text.head_dim,
        feature_dim=text.hidden_size * (1 + len(vision.deepstack_layers)),
        max_position=text.max_position,
        token_px=vision.factor,
    )
