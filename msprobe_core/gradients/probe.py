"""The task ``grad_probe``: signs and statistics of the gradients that optimizers use.

Everything is computed where the gradients are, right before the optimizer's step, and changes none of them. Results on
a device are fetched when the next step begins, and files are written by another thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from msprobe_core.capture.features.feature import Feature, Host
from msprobe_core.config.schema import GradLevel
from msprobe_core.errors import MsprobeError, PluginError, SessionError, clip
from msprobe_core.gradients.probe_layout import (
    COUNTED_SHARE,
    counted_file,
    rank_directory,
    sign_file,
    summary_file,
    summary_steps,
)
from msprobe_core.guard import kept, reason_of
from msprobe_core.model import Digest
from msprobe_core.protocols.capabilities import MeasuringFramework, MonitoringFramework, UpdatingFramework
from msprobe_core.protocols.framework import Framework, Reducer
from msprobe_core.protocols.trainer_tools import TrainerFramework
from msprobe_core.store.atomic_file import whole_file, write_csv
from msprobe_core.store.background import BackgroundQueue
from msprobe_core.store.layout import make_directory

_logger = logging.getLogger(__name__)

_MAX_FAILURES_SAID = 20


class ProbedFramework(Framework, MonitoringFramework, MeasuringFramework, UpdatingFramework, Protocol):
    """What the probe needs of a framework."""


@dataclass
class _Gradient:
    """What is kept of one gradient.

    Attributes:
        name: Of the parameter.
        shape: Of what this rank has of it.
        digest: Statistics, and the checksum at level L0.
        is_positive: Snapshot of whether each element is above zero; ``None`` at level L0, or if it cannot be read.
        is_counted: Snapshot of whether each element counts.
        shares: Share of elements up to each bound, and of zeros, as 0-d tensors; at level L2.
        size_bytes: Of both snapshots.
    """

    name: str
    shape: tuple[int, ...]
    digest: Digest
    is_positive: Any = None
    is_counted: Any = None
    shares: list[Any] = field(default_factory=list[Any])
    size_bytes: int = 0


@dataclass
class _Step:
    number: int
    reducer: Reducer
    gradients: dict[str, _Gradient] = field(default_factory=dict[str, _Gradient])


@dataclass
class _Watched:
    """Models or optimizers that are observed.

    Attributes:
        parameters: Returns the parameters that they have now, by name.
        gradient_of: Returns the gradient of a parameter; ``None`` if there is none.
        updated: Ids of the tensors that were updated in this step.
        has_updates: Whether any parameter was ever updated.
    """

    parameters: Callable[[], Mapping[str, Any]]
    gradient_of: Callable[[Any], Any]
    updated: set[int] = field(default_factory=set[int])
    has_updates: bool = False


class GradientProbe(Feature):
    """Observes the steps of an optimizer; see the module."""

    def __init__(self, host: Host) -> None:
        """Prepare; nothing is observed before ``monitor``.

        Raises:
            PluginError: the framework's plugin does not support this task.
        """
        framework: Any = host.framework
        for needed in (MonitoringFramework, MeasuringFramework, UpdatingFramework):
            if not isinstance(framework, needed):
                raise PluginError(f"the task 'grad_probe' is not available for {framework.name}; choose another task")
        self._framework: ProbedFramework = cast("Any", host.framework)
        self._config = host.config
        self._options = host.config.options
        self._queue = BackgroundQueue()
        self._watched: _Watched | None = None
        self._unwatch: Callable[[], None] | None = None
        self._next = 0
        self._open: _Step | None = None
        self._sealed: _Step | None = None
        self._directory: Path | None = None
        self._found: set[str] = set()
        self._said: set[str] = set()

    def records_step(self, step: int) -> bool:  # noqa: ARG002
        """Record no calls."""
        return False

    # --- what is observed -------------------------------------------------------------------------------------------

    def monitor(self, targets: Sequence[Any], optimizer: Any, step: int) -> bool:
        """Observe the steps of an optimizer from now on; what was observed before ends."""
        self._end_watch()
        if not self._config.selects_rank(self._framework.rank() or 0):
            return True
        if optimizer is None and targets and self._framework.updated_by(targets[0]) is not None:
            targets, optimizer = (), targets[0] if len(targets) == 1 else list(targets)
        for each in targets:
            if not self._framework.is_model(each):
                raise SessionError(
                    f"monitor() got {type(each).__name__}, which is neither a model nor an optimizer of "
                    f"{self._framework.name}; give one of them"
                )
        if not targets and optimizer is None:
            raise SessionError("monitor() got nothing; give the model or the optimizer")
        self._next = step
        if optimizer is None:
            self._watch_all(targets)
        else:
            self._watch_one(targets, optimizer)
        return True

    def _watch_all(self, models: Sequence[Any]) -> None:
        framework = self._framework
        gradient_of = partial(framework.gradient_of, is_main=True)
        self._watched = watched = _Watched(partial(_parameters_of, framework, models), gradient_of)

        def before(updated: Sequence[Any]) -> None:
            own = {id(each) for each in watched.parameters().values()} & {id(each) for each in updated}
            if own & watched.updated:  # an optimizer begins its next step
                self._end_step()
            if own:
                watched.updated |= own
                self._before_update(lambda parameter: id(parameter) in own)

        def after() -> None:
            if watched.updated and all(id(each) in watched.updated for each in watched.parameters().values()):
                self._end_step()

        self._unwatch = framework.watch_all_updates(before, after)

    def _watch_one(self, models: Sequence[Any], optimizer: Any) -> None:
        framework: Any = self._framework
        tools = framework
        if models and isinstance(self._framework, TrainerFramework):
            tools = self._framework.for_training(list(models), optimizer)
        parameters: Callable[[], Mapping[str, Any]] = partial(framework.updated_by, optimizer)
        if models:
            parameters = partial(_parameters_of, framework, models)
        if framework.updated_by(optimizer) is None and not models:
            raise SessionError(f"monitor() got {type(optimizer).__name__}, which is no optimizer; give the optimizer")
        self._watched = _Watched(parameters, partial(tools.gradient_of, is_main=True))
        self._unwatch = tools.watch_updates(optimizer, self._before_update, self._end_step)

    def _end_watch(self) -> None:
        watched, self._watched = self._watched, None
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is None or watched is None:
            return
        unwatch()
        self._end_step()
        self._fetch()
        if not watched.has_updates:
            _logger.warning(
                "grad_probe: no optimizer's step was seen that updates what monitor() was given; call "
                "debugger.monitor(model, optimizer) before the first step"
            )
        missing = [
            each for each in self._options.param_list if not any(fnmatchcase(name, each) for name in self._found)
        ]
        if missing and watched.has_updates:
            _logger.warning(
                "grad_probe: %d of the names in 'param_list' fit no parameter with a gradient, such as %r",
                len(missing), missing[0],
            )  # fmt: skip

    # --- steps ------------------------------------------------------------------------------------------------------

    def _before_update(self, is_updated: Callable[[Any], bool] | None = None) -> None:
        watched = self._watched
        if watched is None:
            return
        watched.has_updates = True
        with self._framework.quiet(self._note_failure):
            if self._open is None:
                self._fetch()
                self._open = _Step(self._next, self._framework.reducer())
            if not self._config.selects_step(self._open.number):
                return
            for name, parameter in watched.parameters().items():
                if self._selects(name) and (is_updated is None or is_updated(parameter)):
                    gradient = watched.gradient_of(parameter)
                    if gradient is not None:
                        self._open.gradients[name] = self._taken(name, gradient, self._open.reducer)

    def _selects(self, name: str) -> bool:
        wanted = self._options.param_list
        return not wanted or any(fnmatchcase(name, each) for each in wanted)

    def _taken(self, name: str, gradient: Any, reducer: Reducer) -> _Gradient:
        """Enqueue what is kept of a gradient."""
        framework, level = self._framework, self._options.grad_level
        self._found.add(name)
        taken = _Gradient(name, framework.describe(gradient).shape, Digest())
        reducer.statistics(gradient, taken.digest)
        if level is GradLevel.L0:
            reducer.checksum(gradient, taken.digest)
            return taken
        elements = framework.elements(gradient)
        if elements is None:
            return taken
        values = elements.float()
        taken.shape = tuple(int(size) for size in values.shape)
        sizes = abs(values)
        is_counted = sizes > COUNTED_SHARE * (sizes * sizes).mean().sqrt()
        taken.is_positive = framework.snapshot(values > 0)
        taken.is_counted = framework.snapshot(is_counted)
        taken.size_bytes = 2 * int(np.prod(taken.shape, dtype=np.int64))
        if level is GradLevel.L2:
            taken.shares = [(values <= bound).float().mean() for bound in self._options.bounds]
            taken.shares.append((values == 0).float().mean())
        return taken

    def _end_step(self) -> None:
        if self._watched is not None:
            self._watched.updated.clear()
        step, self._open = self._open, None
        if step is None:
            return
        self._next = step.number + 1
        if step.gradients:
            self._fetch()
            self._sealed = step
            waiting = [share for each in step.gradients.values() for share in each.shares]
            if step.reducer.is_complete and self._framework.are_on_host(waiting):
                self._fetch()

    def _fetch(self) -> None:
        """Fetch the results of the step that has ended, and have its files written."""
        step, self._sealed = self._sealed, None
        if step is None:
            return
        with self._framework.quiet(self._note_failure):
            step.reducer.collect()
            gradients = list(step.gradients.values())
            shares = iter(self._framework.floats([share for each in gradients for share in each.shares]))
            for each in gradients:
                each.shares = [next(shares) for _ in each.shares]
            job = partial(self._write, self._rank_directory(), step.number, gradients)
            self._queue.submit(job, sum(each.size_bytes for each in gradients))
        self._report()

    # --- files ------------------------------------------------------------------------------------------------------

    def _rank_directory(self) -> Path:
        if self._directory is None:
            self._directory = rank_directory(self._config.directory, self._framework.rank() or 0)
            make_directory(self._directory, below=self._config.directory)
            if earlier := summary_steps(self._directory):
                _logger.warning(
                    "%s: has %d steps of an earlier run; steps that this run records too are replaced, others stay",
                    self._directory, len(earlier),
                )  # fmt: skip
        return self._directory

    def _write(self, directory: Path, step: int, gradients: Sequence[_Gradient]) -> None:
        """Write the files of a step, its table last."""
        for each in gradients:
            for snapshot, place, packs in (
                (each.is_positive, sign_file, False),
                (each.is_counted, counted_file, True),
            ):
                if snapshot is not None:
                    path = place(directory, step, each.name)
                    make_directory(path.parent, below=self._config.directory)
                    content = self._framework.content(snapshot)
                    if content is not None:
                        flags = np.frombuffer(content.data, np.bool_)
                        array: Any = np.packbits(flags) if packs else np.reshape(flags, content.shape)
                        with whole_file(path) as file:
                            np.save(file, array, allow_pickle=False)
            each.is_positive = each.is_counted = None
        level = self._options.grad_level
        rows = [_columns(level, self._options.bounds), *(_row(each, level) for each in gradients)]
        write_csv(summary_file(directory, step), rows, errors="backslashreplace")

    def _report(self) -> None:
        if self._queue.has_failed:
            try:
                self._queue.wait()
            except Exception as error:  # noqa: BLE001  # of disks; the training has nothing to do with it
                self._note_failure("writing gradients", kept(error))

    def _note_failure(self, where: str, error: Exception) -> None:
        reason = clip(str(error)) if isinstance(error, MsprobeError) else f"{where}: {reason_of(error)}"
        if reason not in self._said and len(self._said) < _MAX_FAILURES_SAID:
            self._said.add(reason)
            _logger.warning("grad_probe lacks a part of step %d (%s); training goes on", self._next, reason)

    def close(self) -> None:
        """Write what is left."""
        self._end_watch()
        try:
            self._queue.wait()
        except Exception as error:  # noqa: BLE001  # of disks
            self._note_failure("writing gradients", kept(error))
        self._queue.close()


def _parameters_of(framework: MonitoringFramework, models: Sequence[Any]) -> Mapping[str, Any]:
    """Return the parameters of models; of several, names begin with their position."""
    return {
        f"{number}.{name}" if len(models) > 1 else name: parameter
        for number, model in enumerate(models)
        for name, parameter in framework.parameters_of(model).items()
    }


def _columns(level: GradLevel, bounds: Sequence[float]) -> list[str]:
    common = ["max", "min", "norm", "shape"]
    if level is GradLevel.L0:
        return ["param_name", "MD5", *common]  # published under this name; it is a CRC-32
    if level is GradLevel.L1:
        return ["param_name", *common]
    return ["param_name", *intervals(bounds), "=0", *common]


def intervals(bounds: Sequence[float]) -> list[str]:
    """Return the columns of a distribution over the intervals between bounds."""
    texts = [f"{bound:g}" for bound in bounds]
    lower, upper = ["-inf", *texts], [*texts, "inf"]
    return [f"({low}, {high}{')' if high == 'inf' else ']'}" for low, high in zip(lower, upper, strict=True)]


def _row(gradient: _Gradient, level: GradLevel) -> list[object]:
    stats = gradient.digest.stats
    numbers = ("", "", "") if stats is None else (stats.max, stats.min, stats.l2_norm)
    common: list[object] = ["" if each is None else each for each in numbers]
    common.append(str(list(gradient.shape)))
    if level is GradLevel.L0:
        return [gradient.name, gradient.digest.checksum or "", *common]
    if level is GradLevel.L1:
        return [gradient.name, *common]
    *up_to, zeros = gradient.shares or [float("nan")]
    edges = [0.0, *up_to, 1.0]
    shares = [max(0.0, high - low) for low, high in pairwise(edges)]
    return [gradient.name, *shares, zeros, *common]
