"""Texts of many pages: counted in parts as they are counted whole, given up early, in nobody's way."""

from __future__ import annotations

import threading
import unicodedata
from functools import cached_property
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from liveedge.core.clock import SystemClock
from liveedge.models.qwen3_vl.prompt import PromptBuilder, TextTooLong
from liveedge.models.qwen3_vl.vocabulary import PIECE_CHARS, SHRINKS, Vocabulary

SHIPPED = Path(str(files("liveedge"))) / "assets" / "workcell-tiny"
ODD = (
    "'s",
    "'LL",
    " ",
    "  ",
    "\n",
    "\r\n ",
    "\t",
    "é",
    "e\u0301",
    "각",
    "1",
    "90",
    "!?",
    "<|im_end|>",
)
PROMPTS = PromptBuilder(SHIPPED)
WORDS = ("door", "is", "the", "open", "Belt", "a", "x")


class Watched(Vocabulary):
    """Notes what is encoded."""

    @cached_property
    def encoded(self) -> list[str]:
        return []

    def encode_plain(self, text: str) -> list[int]:
        self.encoded.append(text)
        return super().encode_plain(text)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(SHIPPED)


@pytest.fixture
def watched() -> Watched:
    return Watched(SHIPPED)


@pytest.mark.parametrize("seed", range(20))
def test_the_parts_of_a_long_text_have_the_tokens_of_the_whole(watched: Watched, seed: int) -> None:
    random = Random(seed)
    pieces = [random.choice((*ODD, *WORDS, *(f" {word}" for word in WORDS))) for _ in range(12_000)]
    text = "".join(pieces)
    ids = watched.encode_unless_longer(text, len(text) * 4)
    assert len(watched.encoded) > 2
    assert "".join(watched.encoded) == text
    assert ids == watched.encode_plain(text)


def test_a_text_without_a_seam_is_counted_whole(watched: Watched) -> None:
    text = "1" * 3 * PIECE_CHARS
    assert watched.encode_unless_longer(text, len(text)) == [watched.encode_plain("1")[0]] * len(
        text
    )


def test_counting_ends_where_the_limit_is_passed(watched: Watched) -> None:
    text = "is the door open " * 20_000
    assert watched.encode_unless_longer(text, 3000) is None
    assert sum(map(len, watched.encoded)) < 2.1 * PIECE_CHARS


def test_a_little_more_than_the_limit_is_counted_to_its_end(vocabulary: Vocabulary) -> None:
    text = "is the door open " * 5000
    whole = vocabulary.encode_plain(text)
    for limit in (len(whole), len(whole) - 1):
        assert vocabulary.encode_unless_longer(text, limit) == whole
    assert vocabulary.encode_unless_longer(text, len(whole) // 2) is None


def test_a_prompt_with_much_more_text_than_fits_is_given_up_whatever_its_parts() -> None:
    page = "is the door open " * 400
    messages = [{"role": "user", "content": page}] * 20
    ids = PROMPTS.build(messages).ids.tolist()
    n_text = sum(not PROMPTS.vocabulary.is_special(token) for token in ids)
    for limit in (n_text, n_text - 1):
        assert PROMPTS.build(messages, max_text_tokens=limit).ids.tolist() == ids
    with pytest.raises(TextTooLong):
        PROMPTS.build(messages, max_text_tokens=n_text // 2)


@settings(max_examples=300, deadline=None)
@given(text=st.lists(st.one_of(st.text(), st.sampled_from(ODD))).map("".join))
def test_no_text_has_fewer_tokens_than_its_bytes_need(text: str) -> None:
    vocabulary = PROMPTS.vocabulary
    most = vocabulary.most_bytes(len(vocabulary.encode_plain(text)))
    assert most is not None
    assert len(text.encode()) <= most


def test_the_longest_words_of_the_vocabulary_reach_the_bound_without_passing_it(
    vocabulary: Vocabulary,
) -> None:
    tokens = [vocabulary.token_bytes(n) for n in range(vocabulary.size)]
    longest = max(len(t) for n, t in enumerate(tokens) if not vocabulary.is_special(n))
    assert vocabulary.most_bytes(100) == 100 * longest * SHRINKS["NFC"]


def test_nothing_shrinks_further_when_it_is_composed() -> None:
    """Each character in its longest spelling: its marks apart, and each part by its longest name."""
    everything = [chr(n) for n in range(0x110000) if not 0xD800 <= n < 0xE000]
    longest: dict[str, int] = {}
    for character in everything:
        same = unicodedata.normalize("NFC", character)
        longest[same] = max(longest.get(same, 0), len(character.encode()))
    for character in everything:
        parts = unicodedata.normalize("NFD", character)
        spelled = sum(longest.get(part, len(part.encode())) for part in parts)
        composed = unicodedata.normalize("NFC", character)
        assert spelled <= SHRINKS["NFC"] * len(composed.encode()), hex(ord(character))


def test_other_threads_run_while_a_long_text_is_counted(vocabulary: Vocabulary) -> None:
    """A server counts tokens beside its event loop, which must not stand still for it."""
    text, clock = "".join(Random(1).choices("abcdefgh ", k=255_000)), SystemClock()
    beats: list[float] = []
    stopping = threading.Event()

    def beat() -> None:
        while not clock.wait(stopping, 0.0005):
            beats.append(clock.monotonic_s())

    def standstill() -> float:
        """The longest time without a beat, as a share of the counting."""
        beats.clear()
        began_s = clock.monotonic_s()
        vocabulary.encode_plain(text)
        ended_s = clock.monotonic_s()
        marks = [began_s, *(at for at in list(beats) if began_s < at < ended_s), ended_s]
        return max(b - a for a, b in pairwise(marks)) / (ended_s - began_s)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        assert (
            min(standstill() for _ in range(5)) < 0.5
        )  # a busy machine has standstills of its own
    finally:
        stopping.set()
        thread.join()


PIECES = st.sampled_from(
    ["<", "|", "<|", "<|im_", "end", "start", "|>", " ", "\n", "<|im_end|>", "a"]
)


@settings(max_examples=400, deadline=None)
@given(parts=st.lists(st.lists(PIECES, max_size=6).map("".join), min_size=1, max_size=4))
def test_no_text_of_a_user_becomes_a_special_token(parts: list[str]) -> None:
    prompts = PROMPTS
    content = [{"type": "text", "text": part} for part in parts]
    messages = [{"role": "user", "content": content}]
    special = [t for t in prompts.build(messages).ids.tolist() if prompts.vocabulary.is_special(t)]
    bare = prompts.build([{"role": "user", "content": "a"}]).ids.tolist()
    assert special == [t for t in bare if prompts.vocabulary.is_special(t)]
