"""Whether the answers of a language model go wrong: loops, garbage, NaN; token by token, in bounded memory.

A loop is a text that repeats exactly and goes on doing so. Tables, rulers and listings repeat too, but for less long:
how often a healthy text would be called a loop was measured, see `LEAST_TOKENS`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum

from msprobe_core.errors import MsprobeError
from msprobe_core.findings import Finding
from msprobe_core.monitor.alarm_action import AlarmAction
from msprobe_core.rl.rl_codes import AnswersCode

_logger = logging.getLogger(__name__)

MAX_PERIOD = 512
"""Longest period of a loop, in tokens."""

LEAST_COPIES = 3
LEAST_TOKENS = 192
"""A text of fewer tokens is no loop, however it repeats: rulers, tables of zeros and padding in healthy code and data.
``bench/responses.py`` measures the false alarms of this number."""

LEAST_TOKENS_AT_END = 160
"""The same for a text that repeats up to its end, where an answer was cut off or gave up."""

_GRAM = 8
_RING = 1024
_BASE = 1_000_003
_MODULUS = (1 << 61) - 1
_LEAVING = pow(_BASE, _GRAM, _MODULUS)

GARBAGE_WINDOW = 64
GARBAGE_BELOW = -5.0
"""Mean log-prob of the tokens of a window. Drawn from a healthy model it is minus the entropy, about -1; of tokens that
have nothing to do with the distribution it is minus the logarithm of the vocabulary, -10 and less."""


class AnomalyKind(str, Enum):
    """What is wrong with an answer."""

    LOOP = "loop"
    GARBAGE = "garbage"
    NAN = "nan"


_CODES = {
    AnomalyKind.LOOP: AnswersCode.LOOP, AnomalyKind.GARBAGE: AnswersCode.GARBAGE, AnomalyKind.NAN: AnswersCode.NAN
}  # fmt: skip


@dataclass(frozen=True)
class Anomaly:
    """What is wrong with an answer, and from where on.

    Attributes:
        kind: What is wrong.
        begin: Number of the token at which it begins.
        tokens: How many tokens it holds for so far.
        period: Of a loop, how many tokens repeat; otherwise 0.
        level: Of garbage, the mean log-prob; otherwise 0.
    """

    kind: AnomalyKind
    begin: int
    tokens: int
    period: int = 0
    level: float = 0.0

    @property
    def said(self) -> Finding:
        """A sentence without its end, as a finding."""
        fields = {"begin": self.begin, "tokens": self.tokens, "period": self.period, "level": self.level}
        if self.period:
            fields["copies"] = self.tokens / self.period
        return Finding(_CODES[self.kind], fields=fields)

    @property
    def text(self) -> str:
        """A sentence without its end."""
        return self.said.text


class LoopDetector:
    """Finds the period of the end of a sequence, for one token after the other."""

    def __init__(self) -> None:
        """Begin a sequence."""
        self._ring = [0] * _RING
        self._last: dict[int, int] = {}
        self._count = self._hash = self._period = self._run = 0

    def feed(self, token: int) -> int:
        """Add a token; return how many tokens at the end repeat, 0 if they do not."""
        ring, i = self._ring, self._count
        self._count = i + 1
        leaving = ring[(i - _GRAM) & (_RING - 1)] if i >= _GRAM else 0
        ring[i & (_RING - 1)] = token
        self._hash = found = (self._hash * _BASE + token + 1 - (leaving + 1 if i >= _GRAM else 0) * _LEAVING) % _MODULUS
        period = self._period
        if period:
            if ring[(i - period) & (_RING - 1)] == token:
                self._run += 1
                self._last[found] = i
                return self._run + period
            self._period = 0
        if i + 1 >= _GRAM:
            distance = i - self._last.get(found, -_RING)
            if distance <= MAX_PERIOD:
                self._period, self._run = distance, _GRAM
            self._last[found] = i
            if len(self._last) > 4 * MAX_PERIOD:
                self._last = {gram: at for gram, at in self._last.items() if i - at <= MAX_PERIOD}
        return 0

    @property
    def period(self) -> int:
        """Tokens that repeat; 0 if none do."""
        return self._period

    @property
    def length(self) -> int:
        """Tokens at the end that are copies of the period."""
        return self._run + self._period if self._period else 0

    @property
    def begin(self) -> int:
        """Number of the token at which the first copy begins."""
        return self._count - self.length


class _Request:
    def __init__(self) -> None:
        self.loop = LoopDetector()
        self.count = 0
        self.window: list[float] = [0.0] * GARBAGE_WINDOW
        self.sum = 0.0
        self.num_known = 0
        self.found: Anomaly | None = None


class ResponseGuard:
    """Watches answers while they are generated: each token costs about a microsecond, each request a few kilobytes."""

    def __init__(
        self,
        *,
        least_tokens: int = LEAST_TOKENS,
        garbage_below: float = GARBAGE_BELOW,
        action: AlarmAction | None = None,
    ) -> None:
        """Begin.

        Args:
            least_tokens: Length of a loop.
            garbage_below: Mean log-prob of 64 tokens that is too low.
            action: What an anomaly of a request that goes on does besides, such as `msprobe_core.rl.ArmedDump`.
        """
        self._action = action
        self._least = max(least_tokens, 2 * _GRAM)
        self._below = garbage_below
        self._requests: dict[Hashable, _Request] = {}

    def feed(
        self, request: Hashable, tokens: Sequence[int], log_probs: Sequence[float | None] | None = None
    ) -> Anomaly | None:
        """Add tokens of a request; return the first anomaly of it, once.

        Args:
            request: Identity of the request.
            tokens: Its next tokens.
            log_probs: Their log-probs, as far as they are known.
        """
        own = self._requests.setdefault(request, _Request())
        before = own.found
        for number, token in enumerate(tokens):
            length = own.loop.feed(int(token))
            if length >= self._least and own.found is None and length >= LEAST_COPIES * own.loop.period:
                own.found = _loop(own.loop)
            if log_probs is not None and number < len(log_probs):
                self._level(own, log_probs[number])
            own.count += 1
        if own.found is None or before is not None:
            return None
        self._act(request, own.found)
        return own.found

    def _act(self, request: Hashable, found: Anomaly) -> None:
        """Do what was asked for; a failure of it never reaches the engine."""
        if self._action is None:
            return
        try:
            answer = self._action.ask()
        except (MsprobeError, OSError) as error:
            _logger.warning("request %s %s, and what was to be done about it failed: %s", request, found.text, error)
            return
        if answer is not None:
            _logger.warning("request %s %s; %s", request, found.text, answer.next_step)

    def finish(self, request: Hashable) -> Anomaly | None:
        """Forget a request; return what was found of it, or a shorter loop that it ends with."""
        own = self._requests.pop(request, None)
        if own is None or own.found is not None:
            return None if own is None else own.found
        least = min(self._least, LEAST_TOKENS_AT_END)
        is_loop = own.loop.length >= max(least, LEAST_COPIES * own.loop.period) and own.loop.period > 0
        return _loop(own.loop) if is_loop else None

    def _level(self, own: _Request, value: float | None) -> None:
        if value is None or own.found is not None:
            return
        if math.isnan(value):
            own.found = Anomaly(AnomalyKind.NAN, own.count, 1)
            return
        place = own.num_known % GARBAGE_WINDOW
        bounded = max(float(value), -100.0)
        own.sum += bounded - own.window[place]
        own.window[place] = bounded
        own.num_known += 1
        if own.num_known >= GARBAGE_WINDOW and own.sum < self._below * GARBAGE_WINDOW:
            begin = max(0, own.count - GARBAGE_WINDOW + 1)
            own.found = Anomaly(AnomalyKind.GARBAGE, begin, GARBAGE_WINDOW, level=own.sum / GARBAGE_WINDOW)


def _loop(loop: LoopDetector) -> Anomaly:
    return Anomaly(AnomalyKind.LOOP, loop.begin, loop.length, loop.period)
