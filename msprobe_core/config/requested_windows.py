"""Windows that another program requests of a training: which steps are recorded, and to where.

An environment variable makes a training record them, so that its command line and its configuration stay the same, and
the processes that it starts inherit the request.
"""

from __future__ import annotations

import os

import msgspec

from msprobe_core.config.schema import Config
from msprobe_core.errors import ConfigError

REQUEST_VARIABLE = "MSPROBE_WINDOW"


class WindowRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The windows that a process is to record; it ends after the last one.

    Attributes:
        directory: Where they are recorded to, whatever directory the program's own configuration has.
        steps: Numbers of the steps; not empty.
        begin: Number of the first step of the process: that of the checkpoint that it goes on from.
    """

    directory: str
    steps: tuple[int, ...]
    begin: int = 0

    def encoded(self) -> str:
        """Return the value of the environment variable."""
        return msgspec.json.encode(self).decode()


def requested_window() -> WindowRequest | None:
    """Return the request for this process; ``None`` if there is none.

    Raises:
        ConfigError: the environment variable is not a valid request.
    """
    value = os.environ.get(REQUEST_VARIABLE, "").strip()
    if not value:
        return None
    try:
        request = msgspec.json.decode(value, type=WindowRequest)
    except msgspec.MsgspecError as error:
        raise _refusal(value, str(error)) from error
    if not request.steps or request.begin < 0 or min(request.steps) < request.begin:
        raise _refusal(value, "it needs steps, and none before its begin")
    return request


def as_requested(config: Config) -> Config:
    """Return the configuration with the steps and the directory that are requested; ``config`` without a request.

    Raises:
        ConfigError: the environment variable is not a valid request.
    """
    request = requested_window()
    if request is None:
        return config
    return msgspec.structs.replace(
        config, dump_path=request.directory, step=request.steps, dump_enable=True, is_live=False, twin=None
    )


def _refusal(value: str, reason: str) -> ConfigError:
    return ConfigError(
        f"the environment variable {REQUEST_VARIABLE} is {value!r} ({reason}); it is set by "
        "`msprobe bisect-steps`: unset it"
    )
