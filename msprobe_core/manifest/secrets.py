"""Secrets among names and values that a program was given, which a manifest must not hold.

Whatever looks like one is left out: a comparison that misses a difference costs less than a leaked password.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import lru_cache
from itertools import pairwise

from msprobe_core.manifest.facts import Scalar

NOT_KEPT = "(not kept)"
"""Stands for a value that may be a secret."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_ALWAYS_TEXT = """
    password passwd passphrase pwd secret secrets credential credentials apikey authorization bearer cookie cookies
    privatekey accesskey secretkey connectionstring dsn jwt otp htpasswd netrc kubeconfig
    """
_ALWAYS = frozenset(_ALWAYS_TEXT.split())
"""Words of a name whose value is a secret, whatever it looks like."""

_PAIRS_TEXT = """
    api.key access.key private.key secret.key account.key master.key signing.key encryption.key ssh.key auth.key
    service.key deploy.key license.key auth.token access.token refresh.token id.token session.token bearer.token
    api.token connection.string sas.url webhook.url client.secret pass.word pass.phrase
    """
_PAIRS = frozenset(_PAIRS_TEXT.split())
"""Pairs of neighbouring words of such a name."""

_OFTEN = frozenset(
    {"token", "tokens", "key", "keys", "pass", "auth", "login", "signature", "sig", "webhook", "session", "pat", "sas"}
)
"""Words of a name whose text is a secret, but whose numbers are not: ``num_key_value_heads``, ``pad_token_id``."""

_HARMLESS = re.compile(r"<[^<>]{0,40}>|<\|[^<>]{0,40}\|>|\[[A-Z_0-9]{1,12}\]|\d{1,9}|", re.ASCII)
"""Text under such a name that is none: special tokens of a vocabulary, and small numbers."""

_KNOWN = re.compile(
    r"""
    \b(?:hf|api_org|ghp|gho|ghu|ghs|ghr|github_pat|glpat|gldt|glrt|npm|pypi|dckr_pat|dop_v1|shpat|shpss|sq0atp|sq0csp
        |lin_api|figd|ntn|secret|tskey|nvapi|r8|gsk|pplx|xai|sk|pk|rk|ak|whsec|key|tok|token|pat|pul|dp\.pt|EAAC
        |AGE-SECRET-KEY|NRAK|rzp_live|rzp_test|sbp|vercel|fly|phc|phx|dapi|wandb_v1|ctp|rpa|cfat|cfut
        )[-_][A-Za-z0-9_.\-]{8,}
    | \bdapi[0-9a-f]{24,} | \bhv[sbr]\.[A-Za-z0-9_\-]+
    | \b(?:AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|AROA|LTAI)[A-Z0-9a-z]{12,}
    | \bAIza[A-Za-z0-9_\-]{20,}
    | \bya29\.[A-Za-z0-9_\-]+
    | \b1//0[A-Za-z0-9_\-]{20,}
    | \bxox[a-z]-[A-Za-z0-9\-]+ | \bxapp-[A-Za-z0-9\-]+
    | \bSG\.[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]+
    | \beyJ[A-Za-z0-9_\-]{6,}
    | \bLS0tLS1CRUdJTi[A-Za-z0-9+/=]*
    | -----BEGIN\b | \bssh-(?:rsa|ed25519|dss)\s | \bPuTTY-User-Key
    | hooks\.slack\.com/services/ | discord(?:app)?\.com/api/webhooks/ | open\.feishu\.cn/open-apis/bot/
    | oapi\.dingtalk\.com/robot/ | qyapi\.weixin\.qq\.com/cgi-bin/webhook
    | ://[^\s/@:]{0,200}:[^\s/@]{1,400}@ | ://[^\s/@:]{12,400}@
    | \b(?:bearer|basic|digest|negotiate|token)\s+[A-Za-z0-9+/=_.\-]{6,}
    | \b(?:password|passwd|pwd)\s+\S{3,}
    | (?i:\b|_|-)(?i:password|passwd|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key|account[_-]?key
        |shared[_-]?access[_-]?key|private[_-]?key|credential|signature|sig|authorization|auth|client[_-]?secret
        |x-amz-security-token|x-amz-signature|x-goog-signature|access[_-]?token|sessionid|cookie
        )["']?\s*[=:]\s*["']?[^\s"',;&|<>\[\]]{3,}
    """,
    re.VERBOSE | re.ASCII | re.IGNORECASE,
)
"""Forms of tokens, keys and web addresses that are known to be secret."""

_PIECES = re.compile(r"[A-Za-z0-9+_\-=~]{16,}", re.ASCII)
_HEXADECIMAL = re.compile(r"[0-9a-fA-F\-]{24,}", re.ASCII)
_DIGEST_WORDS = frozenset(
    {"commit", "sha", "sha256", "hash", "digest", "revision", "checksum", "git", "build", "version", "md5", "crc"}
)

_DIGITS = re.compile(r"\d+", re.ASCII)

_LEAST_ENTROPY = 3.3
"""Bits per character of a piece of at least 16 characters that is random; English words and names have fewer."""


def cleaned(name: str, value: Scalar) -> Scalar:
    """Return a setting as it may be kept: `NOT_KEPT` for one that may be a secret."""
    if value is None or isinstance(value, bool | float):
        return value
    return NOT_KEPT if is_secret(name, value) else value


@lru_cache(maxsize=1 << 14, typed=True)
def has_secret(name: str, value: Scalar) -> bool:
    """Whether the name of a setting or its value may be one."""
    return is_secret_text(name) or cleaned(name, value) is not value


@lru_cache(maxsize=1 << 14)
def is_secret(name: str, value: int | str) -> bool:
    """Whether a setting may be a secret, judged by the words of its name and by the form of its value."""
    words = _words_of(name)
    if words & _ALWAYS or _has_pair(name):
        return value != ""
    if isinstance(value, int):
        return bool(words & _OFTEN) and abs(value) >= 10**9
    if words & _OFTEN and not _HARMLESS.fullmatch(value):
        return True
    return _is_secret_text(value, words)


@lru_cache(maxsize=1 << 12)
def is_secret_name(name: str) -> bool:
    """Whether the value of an environment variable of this name may be a secret, whatever it looks like."""
    words = _words_of(name)
    return bool(words & (_ALWAYS | _OFTEN)) or _has_pair(name)


@lru_cache(maxsize=1 << 12)
def is_secret_text(text: str) -> bool:
    """Whether some part of a text has the form of a secret."""
    return _is_secret_text(text, frozenset())


def _is_secret_text(text: str, words: frozenset[str]) -> bool:
    if len(text) < 8:
        return False
    if _KNOWN.search(text):
        return True
    return not words & _DIGEST_WORDS and any(_is_random(piece) for piece in _PIECES.findall(text))


def _is_random(piece: str) -> bool:
    if _HEXADECIMAL.fullmatch(piece):
        return any(letter.isdigit() for letter in piece) and len(set(piece)) > 6
    has_digits = any(letter.isdigit() for letter in piece)
    has_both_cases = piece != piece.lower() and piece != piece.upper()
    if not has_digits and not has_both_cases:
        return False
    return any(_is_random_part(part) for part in re.split(r"[_\-+=~]", piece)) or _is_random_part(piece, divided=True)


def _is_random_part(text: str, *, divided: bool = False) -> bool:
    """Whether a text without separators consists of short runs of letters and digits, unlike words and numbers."""
    if len(text) < 16:
        return False
    entropy = _entropy(text)
    num_words = len(_WORDS.findall(text))
    mean_length = len(text) / max(num_words, 1)
    if divided:  # a key may contain the characters at which names are divided
        return entropy >= 3.8 and mean_length < 2.2
    if entropy >= _LEAST_ENTROPY and (mean_length < 2.7 or (len(_DIGITS.findall(text)) >= 3 and mean_length < 4.5)):
        return True
    return len(text) >= 32 and entropy >= 4.2 and mean_length < 4.5


def _entropy(text: str) -> float:
    total = len(text)
    return -sum(count / total * math.log2(count / total) for count in Counter(text).values())


@lru_cache(maxsize=1 << 12)
def _words_of(name: str) -> frozenset[str]:
    return frozenset(_divided(name))


def _divided(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(name)]


@lru_cache(maxsize=1 << 12)
def _has_pair(name: str) -> bool:
    words = _divided(name)
    return any(f"{first}.{second}" in _PAIRS for first, second in pairwise(words))
