"""Windows that another program orders of a training: which steps are recorded, and to where.

An environment variable makes a training record them, so that its command line and its configuration stay the same, and
the processes that it starts inherit the order.
"""

from __future__ import annotations

import os

import msgspec

from msprobe_core.config.schema import Config
from msprobe_core.errors import ConfigError

ORDER_VARIABLE = "MSPROBE_WINDOW"


class WindowOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


def current_window() -> WindowOrder | None:
    """Return the order for this process; ``None`` if there is none.

    Raises:
        ConfigError: the environment variable is not a valid order.
    """
    value = os.environ.get(ORDER_VARIABLE, "").strip()
    if not value:
        return None
    try:
        order = msgspec.json.decode(value, type=WindowOrder)
    except msgspec.MsgspecError as error:
        raise _refusal(value, str(error)) from error
    if not order.steps or order.begin < 0 or min(order.steps) < order.begin:
        raise _refusal(value, "it needs steps, and none before its begin")
    return order


def as_ordered(config: Config) -> Config:
    """Return the configuration with the steps and the directory that are ordered; ``config`` without an order.

    Raises:
        ConfigError: the environment variable is not a valid order.
    """
    order = current_window()
    if order is None:
        return config
    return msgspec.structs.replace(
        config, dump_path=order.directory, step=order.steps, dump_enable=True, is_live=False, twin=None
    )


def _refusal(value: str, reason: str) -> ConfigError:
    return ConfigError(
        f"the environment variable {ORDER_VARIABLE} is {value!r} ({reason}); it is set by "
        "`msprobe bisect-steps`: unset it"
    )
