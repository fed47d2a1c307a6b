"""How often healthy texts are called anomalous answers, how often planted loops are found, and what a token costs.

The corpus is what is at hand: source code, documentation, JSON and licences of installed packages, and made tables of
numbers, base64, sequences of DNA, lists and verse; at least two million tokens. Tokens are pieces of words as a
byte-pair encoding would make them: at most five letters, three digits, or four equal signs.

    python bench/responses.py
"""

from __future__ import annotations

import base64
import random
import re
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from msprobe_core.rl.response_guard import LEAST_COPIES, Anomaly, LoopDetector, ResponseGuard

PIECE = re.compile(r" ?[^\W\d_]{1,5}|\d{1,3}|\s{1,8}|([^\w\s])\1{0,3}|_")
LENGTH = 512
"""Tokens of an answer."""

_VERSE = ["the moon", "a star", "the sea", "my heart", "the rain", "a bird", "the night", "one leaf", "the wind"]
_VERBS = ["sings", "falls", "sleeps", "returns", "burns", "waits", "wanders", "is gone", "answers", "hides"]


def pieces(text: str) -> list[int]:
    """Return tokens of a text."""
    return [hash(found[0]) & 0xFFFFF for found in PIECE.finditer(text)]


def files(suffixes: Sequence[str], most: int) -> Iterator[str]:
    """Yield texts of installed packages, up to so many characters."""
    total = 0
    roots = {
        Path(torch.__file__).parents[1],
        Path(sysconfig.get_path("purelib")),
        Path(sysconfig.get_path("stdlib")),
        Path("/usr/share/doc"),
    }
    paths = [path for root in sorted(roots) for path in root.rglob("*") if path.suffix in suffixes]
    random.Random(suffixes[0]).shuffle(paths)
    for path in paths:
        if path.is_file() and total < most:
            text = path.read_text("utf-8", "replace")[:40_000]
            total += len(text)
            yield text


def corpus(scale: float = 1.0) -> dict[str, list[str]]:
    """Return texts by their kind."""
    most = int(1_500_000 * scale)
    own = random.Random(1)
    count = int(150 * scale) + 1
    table = [
        "\n".join(" | ".join(f"{own.gauss(0, 10):8.3f}" for _ in range(8)) for _ in range(60)) for _ in range(count)
    ]
    zeros = ["\n".join(" ".join(str(int(own.random() < 0.1)) for _ in range(16)) for _ in range(60)) for _ in table]
    return {
        "code": list(files([".py"], 2 * most)),
        "C and headers": list(files([".h", ".hpp", ".c"], most)),
        "prose": list(files([".md", ".rst", ".txt"], most)),
        "JSON": list(files([".json"], most)),
        "tables": table,
        "sparse matrices": zeros,
        "base64": [base64.b64encode(own.randbytes(3000)).decode() for _ in range(count)],
        "DNA": ["".join(own.choice("ACGT") for _ in range(4000)) for _ in range(count)],
        "lists": ["\n".join(f"{i}. {own.choice(_VERSE)}: {own.randint(0, 999)}" for i in range(200)) for _ in table],
        "verse": [
            "\n".join(f"{own.choice(_VERSE)} {own.choice(_VERBS)}," + "\n" * (i % 4 == 3) for i in range(200))
            for _ in table
        ],
    }


def answers_of(texts: Sequence[str]) -> Iterator[list[int]]:
    """Yield texts in parts of the length of an answer."""
    for text in texts:
        tokens = pieces(text)
        for begin in range(0, max(1, len(tokens) - LENGTH // 2), LENGTH):
            yield tokens[begin : begin + LENGTH]


def planted(healthy: Sequence[int], period: int, own: random.Random) -> list[int]:
    """Return an answer that begins as a healthy one, and then repeats what it said last."""
    unit = list(healthy[:period])
    return [*healthy[: own.randint(period, 2 * period)], *(unit * (1024 // period + 4))[: max(256, 4 * period)]]


def longest_loop(answer: Sequence[int]) -> int:
    """Return the length of the longest loop, of at least as many copies as the guard wants."""
    loop = LoopDetector()
    return max((n for token in answer if (n := loop.feed(token)) >= LEAST_COPIES * loop.period), default=0)


@dataclass
class Half:
    """One half of the corpus: a threshold that is chosen by one is measured on the other."""

    answers: int = 0
    alarms: int = 0
    loops: list[int] = field(default_factory=list)

    def add(self, found: Anomaly | None, loop: int) -> None:
        """Count an answer, and keep the longest loops."""
        self.answers, self.alarms = self.answers + 1, self.alarms + (found is not None)
        self.loops = sorted([*self.loops, loop], reverse=True)[:6]


def main() -> None:
    """Print the rates."""
    scale = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    guard, own = ResponseGuard(), random.Random(2)
    total = answers = alarms = 0
    spent, some = 0.0, list[list[int]]()
    halves = [Half(), Half()]
    for kind, texts in corpus(scale).items():
        count = wrong = 0
        for number, text in enumerate(texts):  # by whole files, so that the halves have none in common
            half = halves[number % 2]
            for answer in answers_of([text]):
                begin = time.process_time()
                found = guard.feed(0, answer) or guard.finish(0)
                guard.finish(0)
                spent += time.process_time() - begin
                count, wrong = count + len(answer), wrong + (found is not None)
                answers += 1
                half.add(found, longest_loop(answer))
                if len(answer) == LENGTH and own.random() < 0.1:
                    some.append(answer)
        print(f"{kind:16} {count:9,} tokens, {wrong} alarms")
        total, alarms = total + count, alarms + wrong
    print(f"{alarms} alarms in {answers:,} answers of {total:,} tokens; {spent / total * 1e6:.2f} us of CPU per token")
    for name, half in zip(("first", "second"), halves, strict=True):
        print(f"{name} half: {half.alarms} alarms in {half.answers:,} answers, longest loops {half.loops}")
    found = 0
    for number in range(1000):
        answer = planted(own.choice(some), own.choice([1, 2, 3, 4, 7, 12, 30, 64, 150, 300, 500]), own)
        guard.feed(number, answer)
        found += guard.finish(number) is not None
    print(f"{found} of 1000 planted loops are found")


if __name__ == "__main__":
    main()
