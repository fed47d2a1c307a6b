"""Level L2: the framework dumps its kernels itself; nothing is intercepted here."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from msprobe_core.capture.described_process import ProcessManifest
from msprobe_core.capture.no_session import NoSession
from msprobe_core.capture.schedule import checked_step
from msprobe_core.capture.window import Model
from msprobe_core.config import Config
from msprobe_core.config.schema import CommonFields, DataMode, Precision, ReduceDevice, TaskOptions
from msprobe_core.errors import ConfigError, ConflictingSettingsError, SessionError
from msprobe_core.model import KernelOptions, Task
from msprobe_core.protocols.capabilities import DescribingFramework, KernelChecker, KernelDumper
from msprobe_core.protocols.framework import Framework

_logger = logging.getLogger(__name__)

_TASKS = (Task.STATISTICS, Task.TENSOR)
_SIDES = (DataMode.ALL, DataMode.INPUT, DataMode.OUTPUT)
_UNUSED_OPTIONS = ("scope", "tensor_list", "slice", "request_id", "bench_path")
_UNUSED_FIELDS = ("load", "custom_apis", "writer", "tensor_format")

_REGEX = re.compile(r"name-regex\((.*)\)", re.DOTALL)


def kernel_options(config: Config) -> KernelOptions:
    """Return the options for the framework's kernel dump.

    Raises:
        ConfigError: a setting does not apply to kernel dumps.
    """
    options = config.options
    if config.task not in _TASKS:
        raise ConflictingSettingsError(
            f"the task '{config.task.value}' does not apply at level L2; use statistics or tensor"
        )
    for fields, given, absent in ((_UNUSED_OPTIONS, options, TaskOptions()), (_UNUSED_FIELDS, config, CommonFields())):
        for name in fields:
            if getattr(given, name) != getattr(absent, name):
                raise ConflictingSettingsError(
                    f"'{name}' does not apply at level L2: the framework dumps by itself; remove it"
                )
    if config.is_live:
        raise ConflictingSettingsError(
            "with 'dump_enable' the file is followed while the program runs, but at level L2 the framework reads its "
            "settings once; remove it, or give it to the constructor"
        )
    modes = options.data_mode or (DataMode.ALL,)
    if len(modes) != 1 or modes[0] not in _SIDES:
        given = ", ".join(mode.value for mode in modes)
        raise ConfigError(f"'data_mode' is {given}, but at level L2 it must be one of all, input, output")
    for pattern in options.list:
        _check_pattern(pattern)
    mode = options.summary_mode
    return KernelOptions(
        directory=config.directory,
        task=config.task,
        steps=config.step,
        ranks=config.rank,
        kernels=options.list,
        sides=modes[0].value,
        statistics=(mode,) if isinstance(mode, str) else mode,
        on_device=options.device is ReduceDevice.DEVICE,
        is_precise=options.precision is Precision.HIGH,
        is_async=config.async_dump,
    )


def _check_pattern(text: str) -> None:
    """Raise if an element of ``list`` is neither a name nor ``name-regex(...)`` with a regular expression."""
    if not text.strip():
        raise ConfigError("'list' has an empty text; give names or types of kernels, or name-regex(...)")
    if not text.startswith("name-regex"):
        return
    found = _REGEX.fullmatch(text)
    if found is None or not found[1]:
        raise ConfigError(f"'list' has {text!r}, which is not closed or holds nothing; write name-regex(.*MatMul.*)")
    try:
        re.compile(found[1])
    except re.error as error:
        raise ConfigError(f"'list' has {text!r}, which is no regular expression ({error})") from error


class KernelSession(NoSession):
    """Takes the place of a `Session` at level L2, where there is nothing to start or stop.

    What it inherits does nothing: the framework dumps whole steps, values are saved at level debug, and gradients are
    recorded with the task ``grad_probe``, at no level.
    """

    is_finished = False
    """The framework ends by itself, after the last selected step."""

    def __init__(self, config: Config, framework: Framework, dumper: KernelDumper) -> None:
        """Have the framework dump, unless ``dump_enable`` is false.

        Args:
            config: What to dump.
            framework: The framework that runs the kernels.
            dumper: The same object, as a `KernelDumper`.

        Raises:
            ConfigError: a setting does not apply to kernel dumps.
            SessionError: the framework has been initialised already, which is too late.
            StoreError: a file that the framework needs cannot be written.
        """
        self.framework = framework
        self._options = kernel_options(config)
        if isinstance(framework, KernelChecker):
            framework.check_kernels(self._options)
        self._dump = dumper.dump_kernels(self._options) if config.dump_enable else None
        self._has_manifest = config.manifest
        self._manifest: ProcessManifest | None = None

    def start(self, models: Sequence[Any], *, token_range: Any = None, **arguments: Any) -> None:
        """Begin to count steps; the dump itself has begun before, and continues after ``stop``.

        Raises:
            SessionError: an argument has no meaning for kernels, or an object is not a model.
        """
        # Kernels have their own names, the framework knows the rank, and requests are not selected here.
        del arguments
        if token_range is not None:
            raise SessionError("start() got a token_range, which does not apply at level L2; leave it out")
        for model in models:
            if not self.framework.is_model(model):
                raise SessionError(
                    f"start() got {type(model).__name__}, which is not a model of {self.framework.name}; at level L2 "
                    "none is needed"
                )
        if self._dump is not None:
            self._describe(models)
            self._dump.begin()

    def _describe(self, models: Sequence[Any]) -> None:
        """Write the manifest beside the kernels of this process, once; it says what is known at that time."""
        if self._manifest is not None or not self._has_manifest or not isinstance(self.framework, DescribingFramework):
            return
        rank = self.framework.rank()
        if self._options.ranks and (rank or 0) not in self._options.ranks:
            return
        directory = self._options.directory / f"rank_{rank or 0}"
        named = [Model("" if len(models) == 1 else str(place), model) for place, model in enumerate(models)]
        self._manifest = ProcessManifest(directory, self.framework, named, rank)

    def step(self) -> None:
        """Have the framework count the next step."""
        self._complete_manifest()
        if self._dump is not None:
            self._dump.next_step()

    def begin_at(self, step: int) -> None:
        """Have the framework count from ``step``.

        Raises:
            SessionError: ``step`` is not an integer >= 0, or the framework cannot set its step.
        """
        checked = checked_step(step)
        if self._dump is not None:
            self._dump.begin_at(checked)

    def dump_module(self, module: Any, name: str) -> None:
        """Refuse: a kernel dump does not know the module of a kernel.

        Raises:
            SessionError: always.
        """
        del module
        raise SessionError(f"module_dump({name!r}): kernels are dumped at level L2; select them with 'list'")

    def close(self) -> None:
        """End; the framework reports if nothing was dumped."""
        self._complete_manifest()
        dump, self._dump = self._dump, None
        if dump is not None:
            dump.finish()

    def _complete_manifest(self) -> None:
        if self._manifest is not None:
            self._manifest.complete()
            self._manifest = None
            self._has_manifest = False

    def abandon(self) -> None:
        """Drop the dump without a report, in a forked child."""
        self._dump = self._manifest = None
