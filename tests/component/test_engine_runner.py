"""The runner: native and torch give the same outcomes, packed or alone, and failures stay apart."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from liveedge.core.errors import InternalError, ResponseFormatUnsupported
from liveedge.engine.compute.runner import KEPT_TOKENS, NATIVE_ROWS, TorchRunner
from liveedge.engine.decide.plan import (
    Compare,
    Compared,
    DecodeBatch,
    EncodeBatch,
    PrefillChunk,
    Sampled,
    SampleSpec,
)
from liveedge.engine.decide.slots import Copy
from liveedge.engine.form.forms import AnswerForm, ChoiceForm, JsonForm
from liveedge.engine.form.grammar import GrammarCompiler, Matcher
from liveedge.engine.interface import EngineSettings
from liveedge.engine.memory.sizing import model_shape, plan_sizes
from liveedge.engine.process.start import make_compiler
from liveedge.engine.request import SamplingParams
from liveedge.models.loader import load_model
from liveedge.models.qwen3_vl.vocabulary import Vocabulary
from tests.checkpoints import make_checkpoint
from tests.compiler import built_library

CPU = torch.device("cpu")
NONE = np.zeros(0, dtype=np.int64)
GREEDY = SampleSpec(SamplingParams(), None)
KINDS = ["native", "torch"]


@pytest.fixture(scope="module")
def lib() -> ctypes.CDLL:
    return built_library()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("runner") / "tiny", deepstack=(0, 1))


class Rig:
    """A runner and what it needs."""

    def __init__(self, folder: Path, lib: ctypes.CDLL | None, **settings: Any) -> None:
        self.model = model = load_model(folder, device=CPU, dtype=torch.float32)
        asked = EngineSettings(
            **({"n_slots": 4, "max_model_len": 1200, "encoder_cache_bytes": 1 << 20} | settings)
        )
        sizing = plan_sizes(asked, model_shape(model.config), value_bytes=4)
        self.runner = TorchRunner(
            model,
            sizing=sizing,
            compiler=make_compiler(Vocabulary(folder), model.config),
            entropy=lambda: 1,
            lib=lib,
        )
        self.chosen: dict[str, int] = {}  # the newest token
        self.length: dict[str, tuple[int, int]] = {}  # slot and tokens in it

    def prefill(self, *chunks: PrefillChunk) -> list[Any]:
        found = self.runner.prefill(chunks)
        for chunk, outcome in zip(chunks, found, strict=True):
            self.length[chunk.request_id] = (chunk.slot, chunk.stop)
            if isinstance(outcome, Sampled):
                self.chosen[chunk.request_id] = outcome.token
        return found

    def decode(self, *request_ids: str) -> list[Any]:
        rows = [self.length[request_id] for request_id in request_ids]
        lengths = np.array([length for _, length in rows])
        batch = DecodeBatch(
            request_ids=request_ids,
            slots=np.array([slot for slot, _ in rows]),
            lengths=lengths,
            tokens=np.array([self.chosen[request_id] for request_id in request_ids]),
            positions=lengths,
        )
        found = self.runner.decode(batch)
        for request_id, outcome in zip(request_ids, found, strict=True):
            if isinstance(outcome, Sampled):
                slot, length = self.length[request_id]
                self.length[request_id] = (slot, length + 1)
                self.chosen[request_id] = outcome.token
        return found

    def answer(self, request_id: str, n_tokens: int) -> list[int]:
        """The first token, which was chosen already, and those that follow it."""
        tokens = [self.chosen[request_id]]
        while len(tokens) < n_tokens:
            tokens.append(self.decode(request_id)[0].token)
        return tokens


@pytest.fixture(params=KINDS)
def rig(request: pytest.FixtureRequest, folder: Path) -> Rig:
    return Rig(folder, request.getfixturevalue("lib") if request.param == "native" else None)


def chunk(
    request_id: str,
    ids: Sequence[int],
    *,
    slot: int = 0,
    start: int = 0,
    sample: SampleSpec | None = GREEDY,
    compare: Compare | None = None,
) -> PrefillChunk:
    return PrefillChunk(
        request_id=request_id,
        slot=slot,
        start=start,
        ids=np.array(ids),
        positions=np.array([np.arange(start, start + len(ids))] * 3),
        visual_index=NONE,
        visual_rows=NONE,
        sample=sample,
        compare=compare,
    )


def words(seed: int, n: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 300, n).tolist()


def test_the_library_is_used_where_it_is_and_never_where_it_is_not(
    folder: Path, lib: ctypes.CDLL
) -> None:
    assert Rig(folder, lib).runner.is_native
    assert not Rig(folder, None).runner.is_native


def test_native_and_torch_choose_the_same_tokens(folder: Path, lib: ctypes.CDLL) -> None:
    answers = []
    for found in (lib, None):
        rig = Rig(folder, found)
        ids = [words(seed, 30 + 7 * seed) for seed in range(3)]
        rig.prefill(*(chunk(str(i), ids[i][:20], slot=i, sample=None) for i in range(3)))
        rig.prefill(*(chunk(str(i), ids[i][20:], slot=i, start=20) for i in range(3)))
        together = [[rig.chosen[str(i)] for i in range(3)]]
        together += [[s.token for s in rig.decode("0", "1", "2")] for _ in range(20)]
        answers.append(together)
    assert answers[0] == answers[1]


def test_pieces_packed_give_what_each_gives_alone(rig: Rig) -> None:
    ids = {name: words(seed, 12 + seed) for seed, name in enumerate("abc")}
    rig.prefill(*(chunk(name, ids[name], slot=slot) for slot, name in enumerate("abc")))
    together = {name: rig.answer(name, 6) for name in "abc"}
    for name in "abc":
        rig.prefill(chunk(name, ids[name], slot=3))
        assert rig.answer(name, 6) == together[name]


def test_a_packed_pass_may_hold_more_than_one_native_call(folder: Path, lib: ctypes.CDLL) -> None:
    outcomes = []
    for found in (lib, None):
        rig = Rig(folder, found)
        sizes = (300, 300, NATIVE_ROWS)  # the first alone, the second alone, the third alone
        pieces = [chunk(str(i), words(i, n), slot=i) for i, n in enumerate(sizes)]
        outcomes.append([outcome.token for outcome in rig.prefill(*pieces)])
    assert outcomes[0] == outcomes[1]


def test_a_piece_larger_than_the_native_batch_goes_to_torch_into_the_same_memory(
    folder: Path, lib: ctypes.CDLL
) -> None:
    answers = []
    for found in (lib, None):
        rig = Rig(folder, found, prefill_chunk=1024)
        rig.prefill(chunk("a", words(1, NATIVE_ROWS + 1)))
        answers.append(rig.answer("a", 5))
    assert answers[0] == answers[1]


def encode(rig: Rig, sizes: Sequence[tuple[int, int]]) -> int:
    """Encode random groups of these sizes into the first rows; how many rows that is."""
    vision = rig.model.config.vision
    generator = torch.Generator().manual_seed(5)
    patches, rows, begin = [], [], 0
    for height, width in sizes:
        n_patches = height * width // vision.patch_size**2
        patches.append(torch.randn(n_patches, vision.patch_dim, generator=generator))
        n_tokens = n_patches // vision.merge_size**2
        rows.append(np.arange(begin, begin + n_tokens))
        begin += n_tokens
    keys = tuple(map(str, range(len(sizes))))
    rig.runner.encode(
        EncodeBatch(keys=keys, patches=tuple(patches), rows=tuple(rows), sizes=tuple(sizes))
    )
    return begin


def test_visual_tokens_are_the_same_in_both_ways(folder: Path, lib: ctypes.CDLL) -> None:
    answers = []
    for found in (lib, None):
        rig = Rig(folder, found)
        n = encode(rig, [(64, 64), (64, 64)])
        base = chunk("a", words(2, n + 9))
        ids = base.ids.copy()
        ids[4 : 4 + n] = rig.model.config.image_token_id
        seen = PrefillChunk(
            request_id="a",
            slot=0,
            start=0,
            ids=ids,
            positions=base.positions,
            visual_index=np.arange(4, 4 + n),
            visual_rows=np.arange(n)[::-1].copy(),
            sample=GREEDY,
        )
        rig.prefill(seen, chunk("b", words(3, 5), slot=1))
        answers.append([rig.answer("a", 8), rig.answer("b", 8)])
    assert answers[0] == answers[1]


def test_groups_of_unequal_sizes_get_the_features_they_get_alone(rig: Rig) -> None:
    sizes = [(64, 64), (32, 96), (64, 64), (96, 32)]
    n = encode(rig, sizes)
    packed = rig.runner._features[:n].clone()
    vision = rig.model.config.vision
    generator = torch.Generator().manual_seed(5)
    begin = 0
    for height, width in sizes:
        n_patches = height * width // vision.patch_size**2
        patches = torch.randn(n_patches, vision.patch_dim, generator=generator)
        n_tokens = n_patches // vision.merge_size**2
        rows = np.arange(500, 500 + n_tokens)
        rig.runner.encode(
            EncodeBatch(keys=("x",), patches=(patches,), rows=(rows,), sizes=((height, width),))
        )
        alone = rig.runner._features[500 : 500 + n_tokens]
        torch.testing.assert_close(packed[begin : begin + n_tokens], alone, atol=1e-5, rtol=1e-4)
        begin += n_tokens


def test_a_copied_prefix_goes_on_like_the_original(rig: Rig) -> None:
    ids = words(4, 25)
    rig.prefill(chunk("a", ids, slot=0))
    expected = rig.answer("a", 5)
    rig.runner.copy(Copy(0, 2, 20))
    rig.prefill(chunk("b", ids[20:], slot=2, start=20))
    assert rig.answer("b", 5) == expected


# Verification


def kept_answer(rig: Rig, n_tokens: int) -> tuple[list[int], list[int]]:
    """A prompt and its answer, the logits of which are kept."""
    ids = words(6, 15)
    rig.prefill(chunk("a", ids, sample=SampleSpec(SamplingParams(), None, keep_logits=True)))
    return ids, rig.answer("a", n_tokens)


def test_computed_again_a_true_answer_has_no_difference(rig: Rig) -> None:
    ids, answer = kept_answer(rig, 6)
    rows = tuple((len(ids) - 1 + i, i) for i in range(6))
    again = chunk("v", ids + answer, slot=1, sample=None, compare=Compare("a", rows))
    plain = chunk("b", words(7, 4), slot=2)
    found, other = rig.prefill(again, plain)
    assert isinstance(found, Compared)
    assert isinstance(other, Sampled)
    assert found.n_rows == 6
    assert found.differing == ()
    assert found.max_difference <= 1e-5 * found.scale
    assert found.scale > 0


def test_another_prompt_computed_in_its_place_shows_where_it_differs(rig: Rig) -> None:
    ids, answer = kept_answer(rig, 4)
    rows = tuple((len(ids) - 1 + i, i) for i in range(4))
    wrong = chunk("v", words(8, 15) + answer, slot=1, sample=None, compare=Compare("a", rows))
    (found,) = rig.prefill(wrong)
    assert isinstance(found, Compared)
    assert found.max_difference > 0.01 * found.scale
    for number, then, now in found.differing:
        assert then == answer[number]
        assert now != then


def test_only_the_first_tokens_are_kept_and_none_after_the_request_ended(rig: Rig) -> None:
    ids, answer = kept_answer(rig, KEPT_TOKENS + 4)
    rows = tuple((len(ids) - 1 + i, i) for i in range(KEPT_TOKENS))
    again = chunk("v", ids + answer, slot=1, sample=None, compare=Compare("a", rows))
    (found,) = rig.prefill(again)
    assert isinstance(found, Compared)
    assert found.n_rows == KEPT_TOKENS
    rig.runner.forget(["a"])
    (found,) = rig.prefill(again)
    assert isinstance(found, InternalError)
    assert "no logits of a are kept" in str(found)


def test_nothing_is_kept_of_requests_that_did_not_ask(rig: Rig) -> None:
    rig.prefill(chunk("a", words(9, 5)))
    compare = Compare("a", ((4, 0),))
    (found,) = rig.prefill(chunk("v", words(9, 5), slot=1, sample=None, compare=compare))
    assert isinstance(found, InternalError)


# Failures stay with their request


def test_a_schema_that_cannot_be_held_fails_its_own_request_alone(rig: Rig) -> None:
    refused = SampleSpec(SamplingParams(), JsonForm({"type": "object", "not": {"type": "string"}}))
    first, second = rig.prefill(
        chunk("a", words(1, 5), sample=refused), chunk("b", words(2, 5), slot=1)
    )
    assert isinstance(first, ResponseFormatUnsupported)
    assert isinstance(second, Sampled)


def test_the_next_owner_of_a_spoilt_slot_gets_what_it_gets_elsewhere(rig: Rig) -> None:
    rig.prefill(*(chunk(name, words(1, 9), slot=slot) for slot, name in enumerate("abc")))
    rig.runner._kv.values[:, 1] = float("nan")
    assert [isinstance(found, InternalError) for found in rig.decode("a", "b", "c")] == [0, 1, 0]
    prompts = {name: words(n, n) for name, n in (("d", 5), ("e", 4), ("f", 7))}
    rig.prefill(*(chunk(name, ids, slot=i) for i, (name, ids) in enumerate(prompts.items())))
    found = [rig.decode("d", "e", "f")[1] for _ in range(3)]
    rig.prefill(chunk("g", prompts["e"], slot=3))
    assert found == [rig.decode("g")[0] for _ in range(3)]
    assert all(isinstance(outcome, Sampled) for outcome in found)


def test_one_spoilt_slot_fails_its_own_request_alone(rig: Rig) -> None:
    rig.prefill(*(chunk(name, words(1, 5), slot=slot) for slot, name in enumerate("abc")))
    expected = [s.token for s in rig.decode("a", "c")]
    rig.prefill(*(chunk(name, words(1, 5), slot=slot) for slot, name in enumerate("abc")))
    rig.runner._kv.keys[0, 1, 0, 2] = float("nan")
    found = rig.decode("a", "b", "c")
    assert isinstance(found[1], InternalError)
    assert [found[0].token, found[2].token] == expected


def test_greedy_sampled_and_bound_requests_share_a_step(rig: Rig) -> None:
    form = JsonForm({"enum": ["door", "lamp"]})
    specs = [
        GREEDY,
        SampleSpec(SamplingParams(temperature=1.0, seed=3), None),
        SampleSpec(SamplingParams(logprobs=True, top_logprobs=2), None),
        SampleSpec(SamplingParams(), form),
    ]
    names = [str(i) for i in range(4)]
    pieces = [chunk(n, words(i, 6), slot=i, sample=specs[i]) for i, n in enumerate(names)]
    assert all(isinstance(outcome, Sampled) for outcome in rig.prefill(*pieces))
    greedy, _, logged, _ = rig.decode(*names)
    assert greedy.top == ()
    assert next(token for token, _ in logged.top) == logged.token


class Noting(GrammarCompiler):
    """Notes where a mask is asked for that nobody began before the pass."""

    def __init__(self, inner: GrammarCompiler, late: list[bool]) -> None:
        self._inner = inner
        self._late = late

    def matcher(self, form: AnswerForm) -> Matcher:
        made, late = self._inner.matcher(form), self._late

        class NotingMatcher(Matcher):
            def forbidden(self) -> NDArray[np.bool_]:
                late.append(self.ahead is None)
                return super().forbidden()

        sizes = {"n_tokens": made._n_tokens, "n_logits": made._n_logits}
        return NotingMatcher(made.library, **sizes)


def test_every_mask_is_begun_before_the_pass_that_needs_it(rig: Rig) -> None:
    late: list[bool] = []
    rig.runner._compiler = Noting(rig.runner._compiler, late)
    bound = SampleSpec(SamplingParams(), ChoiceForm(("door", "lamp and door")))
    drawn = SampleSpec(SamplingParams(temperature=1.0, seed=1), ChoiceForm(("x" * 40,)))
    rig.prefill(
        chunk("a", words(1, 5), sample=bound),
        chunk("b", words(2, 5), slot=1),
        chunk("c", words(3, 5), slot=2, sample=drawn),
    )
    assert late == [False] * 2
    rig.decode("a", "b", "c")
    assert late == [False] * 4


def test_a_closed_runner_computes_nothing_more(folder: Path, lib: ctypes.CDLL) -> None:
    rig = Rig(folder, lib)
    rig.prefill(chunk("a", words(1, 5)))
    rig.runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        rig.decode("a")
