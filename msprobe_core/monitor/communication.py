"""What collectives and point-to-point calls are given and return, and who calls them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.capture.passing_recorder import PASSED_OVER, PassedOver, PassingRecorder
from msprobe_core.capture.recorded_call import as_results
from msprobe_core.capture.values import ValueBuilder
from msprobe_core.interception.stacks import StackCache
from msprobe_core.model import Value
from msprobe_core.monitor.plan import Communication
from msprobe_core.monitor.readings import Step
from msprobe_core.monitor.sinks import Sink
from msprobe_core.monitor.training import Take
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.protocols.capabilities import CommunicatingFramework
from msprobe_core.protocols.framework import Framework, Removable
from msprobe_core.store.atomic_file import write_json

_logger = logging.getLogger(__name__)

CALLERS_FILE = "cc_callers.json"

_FRAME = re.compile(r"File (?P<file>.{0,1000}), line (?P<line>\d+), in ", re.DOTALL)
_MOST_CALLERS = 10_000


class Callers(msgspec.Struct, kw_only=True):
    """One place from which an operation is called.

    Attributes:
        operation: Name of the function.
        callers: ``file[line]`` of each frame, the innermost first.
        calls: How often.
    """

    operation: str
    callers: Sequence[str]
    calls: int = 0


class CallerLog(Sink):
    """Writes the callers of communication."""

    def __init__(self, directory: Path) -> None:
        """Begin without callers.

        Args:
            directory: Of the file; may not exist yet.
        """
        self._path = directory / CALLERS_FILE
        self._found: dict[tuple[str, tuple[str, ...]], Callers] = {}
        self._num_written = 0

    def note(self, operation: str, callers: tuple[str, ...]) -> None:
        """Count a call."""
        key = operation, callers
        if key not in self._found and len(self._found) < _MOST_CALLERS:
            self._found[key] = Callers(operation=operation, callers=callers)
        if key in self._found:
            self._found[key].calls += 1

    def add(self, step: Step) -> None:
        """Write the file if there are new callers.

        Raises:
            StoreError: it cannot be written.
        """
        del step
        if len(self._found) > self._num_written:
            self.close()

    def close(self) -> None:
        """Write the file.

        Raises:
            StoreError: it cannot be written.
        """
        write_json(self._path, list(self._found.values()))
        self._num_written = len(self._found)


class CommunicationCall:
    """A call of which something is taken; implements `msprobe_core.plugin.Call`."""

    __slots__ = ("caller", "name", "step")

    wants_forward = True
    wants_gradients = False

    def __init__(self, name: str, caller: str, step: int) -> None:
        self.name = name
        self.caller = caller
        self.step = step


class CommunicationRecorder(PassingRecorder):
    """Receives communication; a `msprobe_core.plugin.CallRecorder`."""

    def __init__(
        self,
        framework: Framework,
        frames: Sequence[str],
        take: Take,
        plan: Communication,
        log: CallerLog | None,
        on_failure: Callable[[str, Exception], None],
    ) -> None:
        """Begin a step.

        Args:
            framework: Knows its tensors.
            frames: Beginnings of the paths of files that are between a caller and every operation.
            take: Reads a tensor.
            plan: What to take, and of which callers.
            log: Takes the callers instead, if there is one.
            on_failure: Called with what could not be read, and why.
        """
        super().__init__(on_failure)
        self._values = ValueBuilder(framework, on_failure, tensors_only=True)
        self._stacks = StackCache([*framework.hidden_frames, *frames])
        self._callers: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._take = take
        self._plan = plan
        self._log = log
        self._num_calls: dict[str, int] = {}
        self._step = 0

    def restart(self) -> None:
        """Begin a new step: count calls from 0 again, and expect no more results of earlier ones."""
        self._num_calls.clear()
        self._step += 1

    def open_api(
        self, prefix: str, name: str, owner: str | None = None, *, is_recomputed: bool = False
    ) -> CommunicationCall | PassedOver:
        """Begin an operation."""
        del prefix, owner, is_recomputed
        number = self._num_calls.get(name, 0)
        self._num_calls[name] = number + 1
        callers = self._callers_of(self._stacks.capture())
        parts = self._plan.cc_codeline
        if parts and not any(part in caller for part in parts for caller in callers):
            return PASSED_OVER
        if self._log is not None:
            self._log.note(name, callers)
            return PASSED_OVER
        return CommunicationCall(f"{name}.{number}", callers[0] if callers else "", self._step)

    def _callers_of(self, frames: tuple[str, ...]) -> tuple[str, ...]:
        found = self._callers.get(frames)
        if found is None:
            matches = map(_FRAME.match, frames)
            found = tuple(f"{match['file']}[{match['line']}]" for match in matches if match is not None)
            self._callers[frames] = found
        return found

    def record_inputs(
        self, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any], unset: Sequence[Any] = ()
    ) -> None:
        """Take what an operation is given."""
        del unset
        if self._plan.cc_pre_hook:
            self._take_all(call, "pre", "input", [*args, *kwargs.values()])

    def record_outputs(self, call: Any, output: Any, unset: Sequence[Any] = ()) -> None:
        """Take what an operation leaves, when it has been waited for."""
        del unset
        self._take_all(call, "post", "output", as_results(output))

    def _take_all(self, call: Any, place: str, side: str, values: Sequence[Any]) -> None:
        if not isinstance(call, CommunicationCall) or call.step != self._step:
            return
        found: list[Any] = []

        def leaf(tensor: Any, _path: str) -> Value:
            found.append(tensor)
            return None

        self._values.positional(values, leaf)
        for number, tensor in enumerate(found):
            name = f"{call.name}.{side}" if len(found) == 1 else f"{call.name}.{side}_{number}"
            labels = {"place": place, "caller": call.caller}
            self._take.tensor(Quantity.COMMUNICATION, name, tensor, stage=0, labels=labels)


class CommunicationWatch:
    """The interception of communication, in place during collected steps."""

    def __init__(
        self,
        framework: Framework,
        plan: Communication,
        take: Take,
        log: CallerLog | None,
        on_failure: Callable[[str, Exception], None],
    ) -> None:
        """Attach nothing yet.

        Args:
            framework: Intercepts calls.
            plan: What to take.
            take: Receives the tensors.
            log: Receives the callers instead, if there is one.
            on_failure: Called with what could not be read, and why.
        """
        self._framework: CommunicatingFramework | None = None
        self._attached: Removable | None = None
        frames: Sequence[str] = ()
        if plan.enable and isinstance(framework, CommunicatingFramework):
            self._framework = framework
            frames = framework.communication_frames
        elif plan.enable:
            _logger.warning(
                "the monitor cannot see communication of %s: 'cc_distribution' has no effect", framework.name
            )
        self._recorder = CommunicationRecorder(framework, frames, take, plan, log, on_failure)

    def begin_step(self) -> None:
        """Count calls from 0, and attach if nothing is attached."""
        self._recorder.restart()
        if self._framework is not None and self._attached is None:
            self._recorder.is_open = True
            self._attached = self._framework.watch_communication(self._recorder)

    def detach(self) -> None:
        """Remove the interception."""
        attached, self._attached = self._attached, None
        self._recorder.is_open = False
        if attached is not None:
            attached.detach()
            attached.release()
