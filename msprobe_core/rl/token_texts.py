"""The text of token ids, by the ``tokenizer.json`` that comes with a model; no tokenizer's library is needed."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.errors import DumpError
from msprobe_core.untrusted.files import read_plain

TOKENIZER_FILE = "tokenizer.json"
"""File of the library `tokenizers`, which models of the Hugging Face Hub have beside their weights."""

_SPACE = "\u2581"
"""What SentencePiece writes for a space."""


class _Added(msgspec.Struct, frozen=True):
    id: int
    content: str


class _Model(msgspec.Struct, frozen=True):
    vocab: dict[str, int] | list[tuple[str, float]]


class _Tokenizer(msgspec.Struct, frozen=True):
    model: _Model
    added_tokens: list[_Added] = []
    decoder: Any = None
    pre_tokenizer: Any = None


class _Spelling(Enum):
    """How a vocabulary spells the bytes of its words."""

    BYTES = "a letter for each byte"
    PIECES = "SentencePiece"


class TokenTexts:
    """Texts of tokens, each as it stands among the others."""

    def __init__(self, path: Path) -> None:
        """Read a tokenizer.

        Args:
            path: The file, or the directory of its model.

        Raises:
            DumpError: the file is missing, or is no ``tokenizer.json`` with a vocabulary.
        """
        path = path / TOKENIZER_FILE if path.is_dir() else path
        try:
            content = msgspec.json.decode(read_plain(path), type=_Tokenizer)
        except OSError as error:
            raise DumpError(f"{path}: cannot be read ({error.strerror})") from error
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise DumpError(f"{path}: is no {TOKENIZER_FILE} with a vocabulary ({error})") from error
        vocab = content.model.vocab
        words = vocab.items() if isinstance(vocab, dict) else ((word, i) for i, (word, _) in enumerate(vocab))
        self._words: Mapping[int, str] = {number: word for word, number in words}
        self._added = {added.id: added.content for added in content.added_tokens}
        is_of_bytes = "ByteLevel" in f"{content.decoder} {content.pre_tokenizer}"
        self._spelling = _Spelling.BYTES if is_of_bytes else _Spelling.PIECES

    def texts(self, ids: Iterable[int]) -> list[str]:
        """Return the text of each token; the letter that several tokens share is with the last of them."""
        decoder = getincrementaldecoder("utf-8")(errors="replace")
        return [decoder.decode(self._bytes(number)) for number in ids]

    def _bytes(self, number: int) -> bytes:
        if (added := self._added.get(number)) is not None:
            return added.encode(errors="replace")
        word = self._words.get(number)
        if word is None:
            return f"<{number}>".encode()
        if self._spelling is _Spelling.BYTES:
            return b"".join(_BYTES[c] if c in _BYTES else c.encode(errors="replace") for c in word)
        return _SINGLE.get(word) or word.replace(_SPACE, " ").encode(errors="replace")


def _letters_of_bytes() -> dict[str, bytes]:
    """Return the bytes by the letters that vocabularies of bytes spell them with.

    Printable letters of Latin-1 stand for themselves, and the others for 256 and the following code points: as in
    `bytes_to_unicode` of GPT-2 (openai/gpt-2, src/encoder.py).
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): bytes([byte]) for byte in printable} | {
        chr(256 + i): bytes([byte]) for i, byte in enumerate(others)
    }


_BYTES = _letters_of_bytes()
_SINGLE = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
"""What SentencePiece has for bytes that are in none of its words."""
