"""Texts of tokens by a `tokenizer.json`, whatever its vocabulary is spelt in."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msprobe_core.errors import DumpError
from msprobe_core.rl.token_texts import TokenTexts


def tokenizer(path: Path, **content: object) -> TokenTexts:
    (path / "tokenizer.json").write_text(json.dumps(content))
    return TokenTexts(path)


def test_letters_stand_for_bytes(tmp_path: Path) -> None:
    vocab = {"Ġhello": 0, "ä\u00b8": 1, "ĸ": 2, "Ċ": 3}
    added = [{"id": 9, "content": "<|end|>"}]
    texts = tokenizer(tmp_path, model={"vocab": vocab}, decoder={"type": "ByteLevel"}, added_tokens=added)
    assert texts.texts([0, 1, 2, 3, 9, 77]) == [" hello", "", "世", "\n", "<|end|>", "<77>"]


def test_sentence_pieces_and_their_bytes(tmp_path: Path) -> None:
    vocab = [["<unk>", 0.0], ["▁the", -1.0], ["<0xE4>", -2.0], ["<0xB8>", -2.0], ["<0x96>", -2.0], ["<0xZZ>", -9.0]]
    texts = tokenizer(tmp_path, model={"type": "Unigram", "vocab": vocab})
    assert texts.texts([1, 2, 3, 4, 5]) == [" the", "", "", "世", "<0xZZ>"]


def test_broken_letters_are_marked(tmp_path: Path) -> None:
    texts = tokenizer(tmp_path, model={"vocab": {"ä": 0, "x": 1}}, pre_tokenizer={"type": "ByteLevel"})
    assert texts.texts([0, 1]) == ["", "�x"]


@given(st.text(max_size=30))
def test_the_tokens_of_a_text_are_the_text(text: str) -> None:
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = {word: i for i, word in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=words, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    with tempfile.TemporaryDirectory() as place:
        made.save(str(Path(place) / "tokenizer.json"))
        ids = made.encode(text).ids
        assert "".join(TokenTexts(Path(place)).texts(ids)) == text


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {}}', '{"model": {"vocab": {"a": "b"}}}', "[" * 10_000])
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DumpError, match=r"tokenizer\.json"):
        TokenTexts(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="cannot be read"):
        TokenTexts(tmp_path)
