"""One piece of work on its way through the engine: an answer, a window's next prefix, or an answer
computed again to check it. Owned by the scheduler; torch-free."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from liveedge.engine.decide.detokenizer import TextStream
from liveedge.engine.decide.plan import Compared, Sampled
from liveedge.engine.decide.turns import Rank
from liveedge.engine.interface import FeatureGroup, PreparedRequest
from liveedge.engine.request import Delta, MediaUse, Timings, TokenLogprob, Usage


class Vocabulary(Protocol):
    """What the scheduler must know of tokens."""

    @property
    def eos_ids(self) -> Collection[int]: ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token as text; empty for a special token."""
        ...


@dataclass(slots=True)
class Marks:
    """Monotonic times of one request, in seconds."""

    submitted_s: float
    admitted_s: float | None = None
    loaded_s: float | None = None  # the last needed group arrived
    first_token_s: float | None = None
    encode_s: float = 0.0  # sums of the steps that worked for this request
    encode_before_loaded_s: float = 0.0
    prefill_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Warming:
    """Ends when the prefix is resident; the slot becomes the window's."""

    window_id: str


@dataclass(frozen=True, slots=True)
class Verifying:
    """Ends when the first tokens of an answer were computed again."""

    answer_id: str
    cold: PreparedRequest  # every group to be encoded again
    first: int  # place in the prompt that predicted the answer's first token
    n_rows: int  # tokens of the answer that are compared
    origin: str  # how the answer had been computed, in words


Background: TypeAlias = Warming | Verifying


@dataclass(slots=True, eq=False)
class Sequence:
    """State of one piece of work: waiting (no slot), prefilling (no token yet) or decoding."""

    prepared: PreparedRequest
    order: int  # of arrival; from its slot on, among those with a slot
    marks: Marks
    background: Background | None = None  # None: an answer
    slot: int | None = None
    n_ready: int = 0  # tokens with keys and values in the slot
    n_reused: int = 0
    started: bool = False  # a piece of its own was prefilled
    held: tuple[str, ...] = ()  # groups held in the encoder cache
    warm: frozenset[str] = frozenset()  # groups that needed no encoding
    tokens: list[int] = field(default_factory=list)  # the answer so far
    stream: TextStream = field(default_factory=TextStream)
    pending: list[TokenLogprob] = field(default_factory=list)
    n_pending: int = 0
    n_sampled: int = 0  # tokens of the answer, the one that ended it included
    keep_logits: bool = False  # the answer was chosen to be verified
    n_expected: int = 0  # prompt tokens to compute, as guessed on arrival
    n_computed: int = 0  # prompt tokens computed
    n_encoded: int = 0  # groups encoded for this
    busy_s: float = 0.0  # its share of the device's time
    compared: list[Compared] = field(default_factory=list)  # what verifying it found

    @property
    def tenant(self) -> int:
        """Whose it is, as far as that matters here: the first token of a prompt carries it
        (`decide.prefix`)."""
        return int(self.prepared.identity[0])

    @property
    def request_id(self) -> str:
        return self.prepared.request.request_id

    @property
    def phase(self) -> Literal["waiting", "prefilling", "decoding"]:
        if self.slot is None:
            return "waiting"
        return "decoding" if self.tokens else "prefilling"

    @property
    def rank(self) -> Rank:
        if self.background is not None:
            return Rank.WARM
        batch = self.prepared.request.priority == "batch"
        return Rank.BATCH if batch else Rank.INTERACTIVE

    @property
    def place(self) -> tuple[Rank, int]:
        """By rank, then by arrival."""
        return (self.rank, self.order)

    @property
    def deadline_s(self) -> float | None:
        return self.prepared.request.deadline_s

    @property
    def fresh_until_s(self) -> float | None:
        """Until its first token exists an answer may become too stale to be given."""
        return None if self.n_sampled else self.prepared.request.fresh_until_s

    @property
    def limit_s(self) -> float | None:
        """When it ends unless it got further."""
        limits = [t for t in (self.deadline_s, self.fresh_until_s) if t is not None]
        return min(limits, default=None)

    @property
    def n_left(self) -> int:
        """Prompt tokens that are not in the slot."""
        return self.prepared.n_tokens - self.n_ready

    def needed(self) -> list[FeatureGroup]:
        """Groups with visual tokens that are not in the slot yet, in order."""
        return [group for group in self.prepared.groups if group.stop > self.n_ready]

    def take(self, sampled: Sampled, vocabulary: Vocabulary) -> None:
        """Add one token that is not the end of the answer."""
        self.tokens.append(sampled.token)
        self.n_pending += 1
        if self.prepared.request.sampling.logprobs:
            self.pending.append(token_logprob(sampled, vocabulary))

    def delta(self, text: str) -> Delta:
        """Text that became certain, with every token since the last one."""
        event = Delta(text=text, n_tokens=self.n_pending, logprobs=tuple(self.pending))
        self.pending = []
        self.n_pending = 0
        return event

    def usage(self) -> Usage:
        prepared = self.prepared
        return Usage(
            prompt_tokens=prepared.n_tokens,
            completion_tokens=len(self.tokens),
            image_tokens=prepared.image_tokens,
            cached_tokens=self.n_reused,
            media=tuple(
                MediaUse(key=key, n_tokens=0 if i else group.n_tokens, warm=self.is_warm(group))
                for group in prepared.groups
                for i, key in enumerate(dict.fromkeys(frame.key for frame in group.frames))
            ),
        )

    def is_warm(self, group: FeatureGroup) -> bool:
        return group.stop <= self.n_reused or group.key in self.warm

    def timings(self, now_s: float) -> Timings:
        marks = self.marks
        admitted_s = now_s if marks.admitted_s is None else marks.admitted_s
        first_s = now_s if marks.first_token_s is None else marks.first_token_s
        load_s = 0.0
        if marks.loaded_s is not None:
            load_s = max(0.0, marks.loaded_s - admitted_s - marks.encode_before_loaded_s)
        return Timings(
            queue_ms=(admitted_s - marks.submitted_s) * 1000,
            preprocess_ms=load_s * 1000,
            encode_ms=marks.encode_s * 1000,
            prefill_ms=marks.prefill_s * 1000,
            first_token_ms=(first_s - marks.submitted_s) * 1000,
            decode_ms=(now_s - first_s) * 1000,
            total_ms=(now_s - marks.submitted_s) * 1000,
        )


def token_logprob(sampled: Sampled, vocabulary: Vocabulary) -> TokenLogprob:
    data = vocabulary.token_bytes(sampled.token)
    return TokenLogprob(
        token=data.decode("utf-8", "replace"),
        token_bytes=data,
        logprob=sampled.logprob,
        top=tuple(
            (other.decode("utf-8", "replace"), other, logprob)
            for other, logprob in (
                (vocabulary.token_bytes(token), logprob) for token, logprob in sampled.top
            )
        ),
    )
