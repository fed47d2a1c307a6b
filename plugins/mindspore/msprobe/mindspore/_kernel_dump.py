"""Level L2: MindSpore's own kernel dump in static graphs, configured by a file that an environment variable names.

MindSpore reads the file once: on Ascend when communication or the device is initialised, on the CPU when it compiles
its first graph. Fields and values: MindSpore 2.10, *Using Dump in the Graph Mode*.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.plugin import ConfigError, KernelOptions, SessionError, StoreError, Task
from msprobe_core.store import create_file, make_directory

_logger = logging.getLogger(__name__)

VARIABLE = "MINDSPORE_DUMP_CONFIG"
"""Environment variable with the path of the settings."""

OTHER_VARIABLE = "MS_ACL_DUMP_CFG_PATH"
"""Another dump mechanism on Ascend, which must not be enabled at the same time."""

FILE_NAME = "kernel_kbyk_dump.json"

_CATEGORIES = {
    "max": "max", "min": "min", "mean": "avg", "l2norm": "l2norm", "count": "count",
    "negative zero count": "negative zero count", "positive zero count": "positive zero count",
    "zero count": "zero count", "nan count": "nan count", "negative inf count": "negative inf count",
    "positive inf count": "positive inf count", "hash": "hash",
}  # fmt: skip
"""MindSpore's names of statistics."""

_USUAL = ("max", "min", "mean", "l2norm")
_LAST_WITH_PLAIN_MD5 = (2, 7, 0)
_SIDES = {"all": 0, "input": 1, "output": 2}
_NUM_DEVICES = 8
"""Number of devices of one machine; MindSpore requires a list of them."""


class Common(msgspec.Struct, kw_only=True):
    """What is dumped, and where."""

    dump_mode: int
    path: str
    net_name: str = "Net"
    iteration: str
    saved_data: str
    input_output: int
    kernels: list[str]
    support_device: list[int]
    statistic_category: list[str]


class EndToEnd(msgspec.Struct, kw_only=True):
    """How it is dumped."""

    enable: bool
    trans_flag: bool = True
    stat_calc_mode: str
    device_stat_precision_mode: str


class DumpSettings(msgspec.Struct, kw_only=True):
    """Content of the settings file."""

    common_dump_settings: Common
    e2e_dump_settings: EndToEnd


def dump_settings(options: KernelOptions, version: str) -> DumpSettings:
    """Return MindSpore's settings for ``options``.

    Args:
        options: What to dump.
        version: Version of MindSpore.

    Raises:
        ConfigError: there is no such statistic.
    """
    keeps_tensors = options.task is Task.TENSOR
    return DumpSettings(
        common_dump_settings=Common(
            dump_mode=1 if options.kernels else 0,
            path=str(options.directory),
            iteration="|".join(map(str, options.steps)) or "all",
            saved_data="tensor" if keeps_tensors else "statistic",
            input_output=_SIDES[options.sides],
            kernels=list(options.kernels),
            support_device=list(options.ranks or range(_NUM_DEVICES)),
            statistic_category=[] if keeps_tensors else _categories(options.statistics, version),
        ),
        e2e_dump_settings=EndToEnd(
            enable=not options.is_async,
            stat_calc_mode="device" if options.on_device else "host",
            device_stat_precision_mode="high" if options.is_precise else "low",
        ),
    )


def _categories(statistics: tuple[str, ...], version: str) -> list[str]:
    md5 = "md5" if _numbers(version) <= _LAST_WITH_PLAIN_MD5 else "hash:md5"
    known = {**_CATEGORIES, "md5": md5}
    if statistics == ("statistics",):
        statistics = _USUAL
    for name in statistics:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ConfigError(
                f"'summary_mode' has {name!r}; {hint}At level L2 it is statistics, or a list of {', '.join(known)}"
            )
    return list(dict.fromkeys(known[name] for name in statistics))


def _numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version; for a pre-release those of its release."""
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in (version.split(".") + ["0"] * 3)[:3])


def write_settings(options: KernelOptions) -> Path:
    """Write the settings into the directory of the dump; return their path.

    Raises:
        ConfigError: there is no such statistic.
        StoreError: it cannot be written.
    """
    content = msgspec.json.format(msgspec.json.encode(dump_settings(options, _version())), indent=2)
    make_directory(options.directory)
    path = options.directory / FILE_NAME
    part = path.with_name(f"{FILE_NAME}.{os.getpid()}")  # all processes of a job write it
    with create_file(part) as file:
        file.write(content)
    try:
        part.replace(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror}); give another 'dump_path'") from error
    return path


def _version() -> str:
    try:
        return metadata.version("mindspore")
    except metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get("mindspore"), "__version__", "9"))  # built from source


def set_variables(path: Path, environment: MutableMapping[str, str]) -> None:
    """Set the path of the settings in the environment of a process."""
    old = environment.get(VARIABLE)
    if old and Path(old) != path:
        _logger.warning("%s was %s; it is %s now, and the dump that was set there is not made", VARIABLE, old, path)
    environment[VARIABLE] = str(path)
    if environment.pop(OTHER_VARIABLE, None) is not None:
        _logger.warning("%s is removed from the environment: it cannot be used together with level L2", OTHER_VARIABLE)


def check_machine(options: KernelOptions, devices: Path = Path("/dev")) -> None:
    """Check, before a program starts, that MindSpore can make this dump here; warn about an earlier dump.

    Args:
        options: What to dump.
        devices: Directory of the machine's devices.

    Raises:
        ConfigError: there is no Ascend device, and MindSpore would terminate the program at its first graph.
    """
    if options.task is Task.STATISTICS and not any(devices.glob("davinci*")):
        raise ConfigError(f"there is no Ascend device here, and {_ONLY_TENSORS}")
    for directory in sorted(options.directory.glob("rank_*"))[:1]:
        _warn_of_earlier(directory)


def _warn_of_earlier(directory: Path) -> None:
    _logger.warning(
        "%s is of an earlier run; kernels of both will be mixed, and cannot be distinguished: give another "
        "'dump_path'", directory,
    )  # fmt: skip


_ONLY_TENSORS = (
    "on the CPU MindSpore dumps whole tensors of kernels and no statistics; set the task 'tensor' (comparing computes "
    "the statistics)"
)


def dump_kernels(options: KernelOptions) -> KernelDump:
    """Make MindSpore dump the kernels of this process; see `msprobe_core.plugin.KernelDumper`."""
    import mindspore

    return KernelDump(mindspore, options, os.environ)


class KernelDump:
    """A kernel dump by MindSpore; see `msprobe_core.plugin.KernelDump`."""

    def __init__(self, mindspore: Any, options: KernelOptions, environment: MutableMapping[str, str]) -> None:
        """Configure MindSpore to dump, while it still reads the settings.

        Args:
            mindspore: The framework.
            options: What to dump.
            environment: Environment of this process.

        Raises:
            ConfigError: MindSpore cannot make this dump here.
            StoreError: the settings cannot be written.
        """
        self._mindspore = mindspore
        self._options = options
        self._directory = options.directory / f"rank_{_rank(environment)}"
        self._is_selected = True
        self._step: int | None = None
        """The current step; ``None`` if MindSpore counts by itself."""
        native = getattr(mindspore, "_c_expression", None)
        self._set_count: Callable[[int], None] | None = getattr(native, "_set_init_iter", None)  # not in all releases
        self._on_cpu = on_cpu = mindspore.get_context("device_target") == "CPU"
        _check_context(mindspore, options, on_cpu=on_cpu)
        if on_cpu and options.ranks and _rank(environment) not in options.ranks:
            # MindSpore uses `support_device` on Ascend only.
            self._is_selected = False
            return
        if self._directory.is_dir():
            _warn_of_earlier(self._directory)
        self._warn_if_late(environment, on_cpu=on_cpu)
        set_variables(write_settings(options), environment)

    def _warn_if_late(self, environment: Mapping[str, str], *, on_cpu: bool) -> None:
        if environment.get(VARIABLE) == str(self._options.directory / FILE_NAME):
            return  # the program was started so
        if not on_cpu and _has_communication(self._mindspore):
            _logger.warning(
                "communication is initialised already, so MindSpore may not dump; construct the debugger before "
                "communication.init(), or start the program with %s", _COMMAND,
            )  # fmt: skip

    def begin(self) -> None:
        """Count steps like the program, if that is known to work: MindSpore itself counts runs of graphs."""
        if self._on_cpu and self._step is None and self._set_count is not None:
            self.begin_at(0)

    def next_step(self) -> None:
        """Increment the step."""
        if self._step is not None:
            self.begin_at(self._step + 1)

    def begin_at(self, step: int) -> None:
        """Set MindSpore's number of graph runs, until the next step.

        Raises:
            SessionError: this MindSpore does not support it.
        """
        if self._set_count is None:
            raise SessionError("set_init_step(): this MindSpore counts the steps of a dump of kernels by itself")
        self._set_count(step)
        if self._on_cpu:
            self._step = step

    def finish(self) -> None:
        """Warn if nothing was dumped."""
        if not self._is_selected or self._options.is_async or self._has_files():
            return
        _logger.warning(
            "no kernel was dumped to %s. MindSpore dumps kernels of compiled graphs only (GRAPH_MODE, or @jit), those "
            "that 'list' selects, and reads its settings once: construct the debugger before the first graph is "
            "compiled and before communication.init(), or start the program with %s",
            self._directory, _COMMAND,
        )  # fmt: skip

    def _has_files(self) -> bool:
        return next(self._directory.glob("*/*/*/*"), None) is not None


_COMMAND = "`msprobe kernel-dump CONFIG -- python train.py`"


def _rank(environment: Mapping[str, str]) -> int:
    text = environment.get("RANK_ID", "")
    return int(text) if text.isdecimal() else 0


def _check_context(mindspore: Any, options: KernelOptions, *, on_cpu: bool) -> None:
    """Raise if MindSpore cannot make this dump in its current configuration.

    Raises:
        ConfigError: with what to change.
    """
    if on_cpu and options.task is Task.STATISTICS:
        raise ConfigError(_ONLY_TENSORS)
    if mindspore.get_context("jit_level") == "O2":
        raise ConfigError("MindSpore dumps no kernels at jit_level O2; set jit_level O0 or O1")


def _has_communication(mindspore: Any) -> bool:
    state = getattr(getattr(mindspore, "communication", None), "GlobalComm", None)
    return bool(getattr(state, "INITED", False))
