"""On a CUDA device: the same answers as on the CPU, and from graphs the same as without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from liveedge.engine.compute.attention import attend_behind
from liveedge.engine.compute.graphs import USES, DecodeGraphs, open_graphs
from liveedge.engine.compute.kv import KvMemory, KvShape
from liveedge.engine.decide.plan import DecodeBatch
from liveedge.models.buffers import BufferPool
from liveedge.models.qwen3_vl.config import TextConfig, VisionConfig
from liveedge.models.qwen3_vl.text import TextModel
from liveedge.models.qwen3_vl.vision import VisionTower

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

N_SLOTS, MAX_LEN, START = 6, 900, 40
TEXT = TextConfig(
    vocab_size=1009,
    hidden_size=256,
    intermediate_size=512,
    n_layers=4,
    n_heads=4,
    n_kv_heads=2,
    head_dim=64,
    rope_theta=1e6,
    mrope_section=(12, 10, 10),
    max_position=2048,
    init_std=0.06,
)
VISION = VisionConfig(
    depth=4,
    hidden_size=128,
    intermediate_size=256,
    n_heads=4,
    out_hidden_size=256,
    n_positions=256,
    deepstack_layers=(1, 2),
    init_std=0.06,
)


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """float32 is float32: no tensor cores with fewer bits."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def text_model(device: str, dtype: torch.dtype) -> TextModel:
    torch.manual_seed(1)
    model = TextModel(TEXT).requires_grad_(requires_grad=False).eval()
    return model.to(device, dtype)


def memory(device: str, dtype: torch.dtype, text: TextModel) -> KvMemory:
    """Every slot holds the keys of its own START random tokens."""
    shape = KvShape(
        n_layers=TEXT.n_layers,
        n_slots=N_SLOTS,
        n_kv_heads=TEXT.n_kv_heads,
        max_len=MAX_LEN,
        head_dim=TEXT.head_dim,
        spare_places=1,
    )
    kv = KvMemory(shape, prefill_chunk=64, device=torch.device(device), dtype=dtype)
    ids = torch.randint(0, TEXT.vocab_size, (N_SLOTS, START), generator=torch.Generator())
    positions = torch.arange(START, device=device).expand(3, 1, START)
    with torch.inference_mode():
        for slot in range(N_SLOTS):
            attend = kv.piece(slot=slot, start=0, n_tokens=START)
            text(text.embed(ids[slot : slot + 1].to(device)), positions, attend)
    return kv


def greedy(
    step: object, text: TextModel, kv: KvMemory, slots: Sequence[int], n: int
) -> list[list[int]]:
    """Tokens of each slot, by graphs or by the ordinary step."""
    tokens = np.arange(1, 1 + len(slots))
    found = []
    for number in range(n):
        lengths = np.full(len(slots), START + number)
        batch = DecodeBatch(
            request_ids=tuple(map(str, slots)),
            slots=np.array(slots),
            lengths=lengths,
            tokens=tokens,
            positions=lengths,
        )
        with torch.inference_mode():
            best = (
                step.step(batch)[1]
                if isinstance(step, DecodeGraphs)
                else ordinary(text, kv, batch).argmax(-1).tolist()
            )
        found.append(best)
        tokens = np.array(best)
    return found


def ordinary(text: TextModel, kv: KvMemory, batch: DecodeBatch) -> Tensor:
    device = kv.keys.device
    attend = kv.tokens(slots=batch.slots.tolist(), lengths=batch.lengths.tolist())
    positions = torch.from_numpy(batch.positions).to(device)[None, :, None].expand(3, -1, 1)
    hidden = text(text.embed(torch.from_numpy(batch.tokens).to(device)[:, None]), positions, attend)
    return text.logits(hidden[:, 0])


@pytest.mark.parametrize("slots", [(2,), (0, 1, 2), (0, 2, 3, 4, 5)])
def test_graphs_choose_what_the_ordinary_step_chooses_and_what_a_cpu_chooses(
    slots: tuple[int, ...],
) -> None:
    answers = []
    for device in ("cuda", "cpu"):
        text = text_model(device, torch.float32)
        kv = memory(device, torch.float32, text)
        answers.append(greedy(None, text, kv, slots, 2 * USES))
    text = text_model("cuda", torch.float32)
    kv = memory("cuda", torch.float32, text)
    graphs = open_graphs(text, kv, n_rows=N_SLOTS)
    answers.append(greedy(graphs, text, kv, slots, 2 * USES))
    assert answers[0] == answers[1] == answers[2]
    assert graphs.n_graphs == 1
    assert graphs.n_replayed == USES + 1
    assert graphs.n_failed == 0


def test_a_recorded_step_gives_the_bits_of_the_step_it_was_recorded_from() -> None:
    text = text_model("cuda", torch.bfloat16)
    kv = memory("cuda", torch.bfloat16, text)
    graphs = open_graphs(text, kv, n_rows=N_SLOTS)
    lengths = np.full(3, START)
    batch = DecodeBatch(
        request_ids=("a", "b", "c"),
        slots=np.array([0, 2, 5]),
        lengths=lengths,
        tokens=np.array([5, 6, 7]),
        positions=lengths,
    )
    with torch.inference_mode():
        results = [graphs.step(batch)[0].clone() for _ in range(USES + 2)]
    assert graphs.n_replayed == 3
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_graphs_of_many_shapes_share_their_memory_and_do_not_disturb_each_other() -> None:
    text = text_model("cuda", torch.float32)
    kv, twin = (memory("cuda", torch.float32, text) for _ in range(2))
    graphs = open_graphs(text, kv, n_rows=N_SLOTS)
    for slots in ((0,), (1, 2), (0, 1, 2, 3, 4)) * 2:
        assert greedy(graphs, text, kv, slots, USES + 4) == greedy(
            None, text, twin, slots, USES + 4
        )
    assert graphs.n_graphs == 3


@pytest.mark.parametrize("start", [1, 17, 300])
def test_flash_attention_behind_a_prefix_equals_attention_under_a_mask(start: int) -> None:
    n = 50
    generator = torch.Generator("cuda").manual_seed(start)
    q = torch.randn(1, 8, n, 128, device="cuda", generator=generator)
    k, v = (torch.randn(1, 4, start + n, 128, device="cuda", generator=generator) for _ in "kv")
    mask = torch.ones(n, start + n, dtype=torch.bool, device="cuda").tril(start)
    exact = attend_behind(q, k, v, mask)  # float32: under the mask
    found = attend_behind(q.bfloat16(), k.bfloat16(), v.bfloat16(), mask)
    torch.testing.assert_close(found.float(), exact, atol=2e-2, rtol=2e-2)


def test_the_vision_tower_gives_what_it_gives_on_a_cpu() -> None:
    torch.manual_seed(2)
    tower = VisionTower(VISION).requires_grad_(requires_grad=False).eval()
    patches = [torch.randn(rows * columns, VISION.patch_dim) for rows, columns in ((8, 6), (4, 4))]
    grids = ((8, 6), (4, 4))
    with torch.inference_mode():
        expected = tower.forward_packed(list(zip(patches, grids, strict=True)))
        tower.to("cuda")
        moved = [one.to("cuda") for one in patches]
        found = tower.forward_packed(list(zip(moved, grids, strict=True)))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.tokens.cpu(), theirs.tokens, atol=1e-4, rtol=1e-3)
        for own, other in zip(ours.deepstack, theirs.deepstack, strict=True):
            torch.testing.assert_close(own.cpu(), other, atol=1e-4, rtol=1e-3)


def test_patches_lie_in_memory_that_the_device_reads_directly() -> None:
    pool = BufferPool(max_bytes=1 << 20, pinned=True)
    lent = pool.take(100, 16)
    assert lent.is_pinned()
    lent.fill_(3.0)
    assert lent.to("cuda", non_blocking=True).sum().item() == 4800.0
    del lent
    pool.take(100, 16)
    assert pool.n_reused == 1
