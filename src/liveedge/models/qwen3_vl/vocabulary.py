"""Text to token ids and token ids to bytes, straight from `tokenizer.json`. Torch-free.

A byte-level BPE vocabulary: every token is a known sequence of bytes, so any text can be written
and any answer can be read token by token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from liveedge.core.errors import CheckpointInvalid
from liveedge.models.qwen3_vl.config import CALL_MARKS, Section, read_json

PIECE_CHARS: Final = 8192  # of a long text at once; a few milliseconds
# How many bytes of a text may become one byte before it is cut into tokens. NFC composes: what is
# written as an odd iota (U+1FBE) and two accents, 7 bytes, becomes 2; nothing shrinks to less.
SHRINKS: Final = {None: 1, "NFC": 4}
# Between two words no token goes on, as the tokenizers of the family cut texts (see `_has_seams`).
SEAM: Final = re.compile(r"(?<=[a-zA-Z])(?= [a-zA-Z])")


class Vocabulary:
    """The tokens of a checkpoint. Immutable after construction; any thread."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        content = read_json(path)
        _check_byte_level(content)
        self.tokenizer = _tokenizer(path)
        self.special: dict[str, int] = {
            token["content"]: token["id"]
            for token in content.values.get("added_tokens", [])
            if token["special"]
        }
        self._normalizer = (content.values.get("normalizer") or {}).get("type")
        self._special_ids = frozenset(self.special.values())
        self.eos_ids = _eos_ids(folder, self.special)

    @property
    def size(self) -> int:
        """Ids below this exist; the model's logits may go further, into padding."""
        return int(self.tokenizer.get_vocab_size(with_added_tokens=True))

    def id_of(self, token: str) -> int:
        """The id of a special token that the model family cannot do without."""
        if token not in self.special:
            raise CheckpointInvalid(f"tokenizer.json has no special token {token}")
        return self.special[token]

    def encode_plain(self, text: str) -> list[int]:
        """Ids of text in which special tokens are only letters. Other threads run meanwhile."""
        # A batch of one: the plain call holds the interpreter's lock, for a quarter of a second
        # where a text has 255,000 characters.
        (encoded,) = self.tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoded.ids
        return ids

    def encode_unless_longer(self, text: str, limit: int) -> list[int] | None:
        """The same ids; None where more than `limit` were counted and more text is left."""
        ids: list[int] = []
        for piece in self._pieces(text):
            if len(ids) > limit:
                return None
            ids += self.encode_plain(piece)
        return ids

    def _pieces(self, text: str) -> Iterator[str]:
        """Parts that are encoded alone as they are together."""
        start = 0
        while len(text) - start > PIECE_CHARS and self._has_seams:
            seam = SEAM.search(text, start + PIECE_CHARS)
            if seam is None:
                break
            yield text[start : seam.start()]
            start = seam.start()
        yield text[start:]

    @cached_property
    def _has_seams(self) -> bool:
        cut = self.tokenizer.pre_tokenizer.pre_tokenize_str("a seam")
        added = self.tokenizer.get_added_tokens_decoder().values()
        return [span for _, span in cut] == [(0, 1), (1, 6)] and not any(
            " " in token.content for token in added
        )

    def most_bytes(self, n_tokens: int) -> int | None:
        """A text of more bytes (UTF-8) has more tokens than these, whatever it says. None: unknown,
        for the tokenizer changes texts in a way that is not known here."""
        shrinks = SHRINKS.get(self._normalizer)
        return None if shrinks is None else n_tokens * self._longest_token * shrinks

    @cached_property
    def _longest_token(self) -> int:
        """Bytes; of the special tokens none can be typed."""
        added = {token.content for token in self.tokenizer.get_added_tokens_decoder().values()}
        return max(
            len(token.encode()) if token in added else len(token)  # a character stands for a byte
            for token in self.tokenizer.get_vocab(with_added_tokens=True)
            if token not in self.special
        )

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    @cached_property
    def silent_ids(self) -> frozenset[int]:
        """Special tokens that write nothing in an answer. The marks of a call are read by whoever
        looks for calls, also where a checkpoint lists them as special."""
        return frozenset(n for token, n in self.special.items() if token not in CALL_MARKS)

    def token_bytes(self, token_id: int) -> bytes:
        """What a token writes; empty for the padding ids beyond the vocabulary."""
        return self._bytes[token_id] if token_id < len(self._bytes) else b""

    @cached_property
    def _bytes(self) -> list[bytes]:
        by_character = {character: byte for byte, character in byte_alphabet()}
        added = self.tokenizer.get_added_tokens_decoder()
        table = [b""] * self.size
        for token, token_id in self.tokenizer.get_vocab(with_added_tokens=True).items():
            if token_id in added:
                table[token_id] = added[token_id].content.encode()
            else:
                table[token_id] = bytes(by_character[character] for character in token)
        return table

    @cached_property
    def special_pattern(self) -> re.Pattern[str]:
        """Matches any special token, the longest first."""
        words = sorted(self.special, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, words)) or r"(?!)")


def byte_alphabet() -> Iterator[tuple[int, str]]:
    """Pairs of byte and the printable character that stands for it in byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    yield from ((byte, chr(byte)) for byte in printable)
    others = (byte for byte in range(256) if byte not in printable)
    yield from ((byte, chr(256 + number)) for number, byte in enumerate(others))


def _tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise CheckpointInvalid(f"{path} cannot be loaded: {error}") from error
    tokenizer.encode_special_tokens = True  # the library's name for: they are only text
    return tokenizer


def _check_byte_level(content: Section) -> None:
    kinds = {content.section("model", {}).values.get("type")}
    kinds |= {part.get("type") for part in _parts(content.values.get("pre_tokenizer"))}
    if not {"BPE", "ByteLevel"} <= kinds:
        raise CheckpointInvalid(f"{content.where} is not a byte-level BPE tokenizer")


def _parts(step: dict[str, Any] | None) -> list[dict[str, Any]]:
    if step is None:
        return []
    return step.get("pretokenizers", [step])


def _eos_ids(folder: Path, special: dict[str, int]) -> frozenset[int]:
    """Where an answer ends: the generation settings, else the configuration, else the tokenizer."""
    for name, keys in (
        ("generation_config.json", ("eos_token_id",)),
        ("config.json", ("eos_token_id", "text_config")),
    ):
        if (folder / name).exists():
            found = _find_eos(read_json(folder / name), keys)
            if found:
                return found
    if (folder / "tokenizer_config.json").exists():
        token = read_json(folder / "tokenizer_config.json").values.get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        if text in special:
            return frozenset({special[text]})
    raise CheckpointInvalid(f"{folder}: no file says which token ends an answer (eos_token_id)")


def _find_eos(section: Section, keys: tuple[str, ...]) -> frozenset[int]:
    for key in keys:
        value = section.values.get(key)
        if isinstance(value, dict):
            value = value.get("eos_token_id")
        if isinstance(value, int):
            return frozenset({value})
        if isinstance(value, list) and value:
            return frozenset(value)
    return frozenset()
