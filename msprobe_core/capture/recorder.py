"""The recorder, to which a framework's interception reports calls; its parts convert calls to entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msprobe_core import names
from msprobe_core.capture.backward_collector import BackwardCollector
from msprobe_core.capture.batch_builder import BatchBuilder
from msprobe_core.capture.call_selector import CallSelector
from msprobe_core.capture.call_tree import CallTree
from msprobe_core.capture.forward_window import ForwardWindow
from msprobe_core.capture.parameter_gradients import ParameterGradients
from msprobe_core.capture.recorded_call import PASSED_OVER, RecordedCall, as_results
from msprobe_core.capture.selection import Selection
from msprobe_core.capture.slices import Slices
from msprobe_core.capture.step_record import StepRecord
from msprobe_core.capture.tensor_reader import TensorReader, TensorSink
from msprobe_core.capture.values import ValueBuilder
from msprobe_core.interception.stacks import StackCache
from msprobe_core.model import Phase, Role
from msprobe_core.protocols.framework import Framework
from msprobe_core.protocols.storage import Processor


class Recorder:
    """Collects the entries of one step; implements `msprobe_core.plugin.CallRecorder`.

    All methods may be called from any thread: the module stack is per thread, a lock guards everything else.
    """

    def __init__(
        self,
        framework: Framework,
        processor: Processor,
        selection: Selection,
        *,
        stacks: StackCache | None,
        tracks_parents: bool,
        expands_modules: bool,
        keeps_values: bool = True,
        keep_tensor: TensorSink | None,
        slices: Slices | None = None,
    ) -> None:
        """Begin without entries.

        Args:
            framework: Describes tensors and provides the reducer.
            processor: Computes the digest of each tensor.
            selection: Which calls are recorded.
            stacks: Formats the stack of forward calls; ``None`` records no stacks.
            tracks_parents: Whether the nesting of calls is recorded.
            expands_modules: Whether a module selected by ``list`` includes everything called inside it (level mix).
            keeps_values: Whether tensors and arguments are recorded; if not, only calls, stacks and nesting.
            keep_tensor: Stores whole tensors; ``None`` records digests only.
            slices: Part of each tensor to record in its place; ``None`` records whole tensors.
        """
        self.record = StepRecord()
        self.reader = TensorReader(framework, processor, selection, keep_tensor=keep_tensor, slices=slices)
        self.forwards: ForwardWindow | None = None  # ``token_range``; None: no restriction
        self.is_single = False  # whether only one module is recorded, which reports through `SingleModuleRecorder`
        self.has_fixed_parameters = (
            False  # whether a module's parameters are recorded with its first call of a step only
        )
        self._with_parameters: set[str] = set()
        self._selection = selection
        self._tree = CallTree(self.record, tracks_parents=tracks_parents)
        self._selector = CallSelector(selection, self._tree, stacks, expands_modules=expands_modules)
        self._backwards = BackwardCollector(
            framework, selection, self.record, self._tree, self.reader, keeps_values=keeps_values
        )
        self._parameters = ParameterGradients(
            selection, self.record, self._tree, self.reader, keeps_values=keeps_values
        )
        self._batches = BatchBuilder(self.record, self._tree, self.reader, self._backwards, self._parameters)
        self._values = ValueBuilder(framework, self.reader.note_failure)
        # Indexed by whether the call is in a backward pass.
        self._takes_inputs, self._takes_parameters, self._takes_outputs = (
            tuple(keeps_values and selection.takes(phase, side) for phase in (Phase.FORWARD, Phase.BACKWARD))
            for side in (Role.INPUT, Role.PARAMETERS, Role.OUTPUT)
        )
        self._lock = self.record.lock
        # Bind the methods of parts directly: a delegating method would add a call for every recorded value.
        self.open_call = self._tree.innermost
        self.nesting = self._tree.nesting
        self.nest_in = self._tree.nest_in
        self.input_gradients = self._backwards.input_gradients
        self.output_gradients = self._backwards.output_gradients
        self.expect_gradients = self._backwards.expect_gradients
        self.record_gradient = self._backwards.record_gradient
        self.expect_parameter_gradients = self._parameters.expect
        self.note_failure = self.reader.note_failure
        self.drain = self._batches.drain
        self.drain_complete = self._batches.drain_complete

    @property
    def is_open(self) -> bool:
        """Whether values are still taken."""
        return self.record.is_open

    @property
    def is_outside_modules(self) -> bool:
        """Whether the nesting is recorded and no module call of this thread is open."""
        return self._tree.tracks_parents and not self._tree.stack()

    @property
    def clock(self) -> int:
        """Current position in the order of reports."""
        return self.record.clock

    def set_clock(self, moment: int, floor: int | None = None) -> None:
        """Set the position in the order for the next reports; see `CallRecorder`."""
        self.record.clock, self.record.floor = moment, floor

    # --- calls ------------------------------------------------------------------------------------------------

    def _passes_over(self, *, is_single: bool = False) -> bool:
        if not self.record.is_open or (self.is_single and not is_single):
            return True
        return self.forwards is not None and not self.forwards.is_inside

    def open_api(
        self, prefix: str, name: str, owner: str | None = None, *, is_recomputed: bool = False
    ) -> RecordedCall:
        """Begin a call of an API; ``owner`` names what it belongs to outside of all modules."""
        if self._passes_over():
            return PASSED_OVER
        tree = self._tree
        with self._lock:
            call = tree.new_call(f"{prefix}.{name}", tree.owner(owner))
            tree.place(call, is_recomputed)
            self._selector.select(call)
            if tree.tracks_parents:
                tree.undecided.add(call.name)
        return call

    def open_operator(
        self, prefix: str, name: str, around: RecordedCall | None, *, is_in_backward: bool = False
    ) -> RecordedCall:
        """Begin an operator below the APIs; it belongs to ``around``, in a backward pass to its backward."""
        key = f"{names.operator_prefix(prefix, is_in_backward=is_in_backward)}.{name}"
        if self._passes_over() or around is PASSED_OVER or (around is not None and around.key == key):
            return PASSED_OVER  # an operator that the program calls directly is recorded as an API
        tree = self._tree
        with self._lock:
            if around is not None and around.step != self.record.number:
                around = None
            call = tree.new_call(key, around if around is not None or is_in_backward else tree.owner(None))
            call.is_in_backward = is_in_backward
            tree.place(call, is_recomputed=False)
            if is_in_backward:
                call.is_recomputed = False  # it computes new values, even if ``around`` is a recompute
                if around is None:
                    call.micro_step = tree.micro_steps().in_backward
            self._selector.select_operator(call)
            if tree.tracks_parents:
                tree.undecided.add(call.name)
        return call

    def open_module(
        self, prefix: str, path: str, type_name: str, *, is_recomputed: bool = False, is_single: bool = False
    ) -> RecordedCall:
        """Begin a call of a module; ``is_single`` says that it is the one module of `SingleModuleRecorder`."""
        if self._passes_over(is_single=is_single):
            return PASSED_OVER
        stem = names.module_stem(prefix, path, type_name)
        stack = self._tree.stack()
        with self._lock:
            call = self._tree.new_module_call(stem, stack[-1] if stack else None)
            self._tree.place(call, is_recomputed)
            self._selector.select(call)
            if call.wants_gradients:
                self._parameters.covered.add(stem)
        stack.append(call)
        return call

    def pass_over_call(self) -> RecordedCall:
        """Begin a call that is neither recorded nor numbered, and is never a parent."""
        return PASSED_OVER

    def record_inputs(
        self, call: RecordedCall, args: Sequence[Any], kwargs: Mapping[str, Any], unset: Sequence[Any] = ()
    ) -> None:
        """Record the arguments with their current values."""
        entry = call.entry
        if entry is None or not self._takes_inputs[call.is_in_backward]:
            return
        taker = self.reader.taker
        entry.inputs = self._values.positional(args, taker(call.name, "input", unset))
        entry.input_kwargs = self._values.named(kwargs, taker(call.name, "kwargs", unset)) if kwargs else {}

    def record_parameters(self, call: RecordedCall, parameters: Mapping[str, Any]) -> None:
        """Record the module's own parameters."""
        if call.entry is not None and self._takes_parameters[False]:
            stem = call.stem or call.name
            if self.has_fixed_parameters and stem in self._with_parameters:
                return
            self._with_parameters.add(stem)
            call.entry.parameters = self._values.named(parameters, self.reader.taker(call.name, "parameters"))

    def record_outputs(self, call: RecordedCall, output: Any, unset: Sequence[Any] = ()) -> None:
        """Record the result of the call."""
        if call.entry is not None and self._takes_outputs[call.is_in_backward]:
            taker = self.reader.taker(call.name, "output", unset)
            call.entry.outputs = self._values.positional(as_results(output), taker)

    def close(self, call: RecordedCall, *, keep: bool = True) -> None:
        """End the call; without ``keep`` it is discarded."""
        if call.stem is not None:
            self._tree.leave(call)
        record, check = self.record, self.reader.check
        with self._lock:
            if call.step != record.number:
                return
            self._selection.end(call.name)
            self._tree.end(call, keep=keep)
            if not keep:
                if check is not None:
                    check.forget(call.name)
                return
            if call.entry is not None:
                record.add(call.entry, call.parent)
                call.entry = None
                if check is not None:
                    self.reader.judge(call.name)
            record.offer_backlog()

    def record_parameter_gradient(
        self, stem: str, name: str, gradient: Any, contribution: Any = None, *, is_single: bool = False
    ) -> None:
        """Record the accumulated gradient of one parameter, and the contribution of the current backward if given."""
        if (self.is_single and not is_single) or (self.forwards is not None and not self.forwards.covers_parameters):
            return
        self._parameters.record(stem, name, gradient, contribution)

    # --- steps ------------------------------------------------------------------------------------------------

    def next_step(self) -> None:
        """Begin a new step: all indices start at 0, and late gradients of the old step are ignored."""
        with self._lock:
            self.record.next_step()
            self._with_parameters.clear()
            for part in (self._tree, self._backwards, self._parameters, self._batches):
                part.reset()
            self._selection.restart()

    def begin_micro_step(self, number: int) -> None:
        """Set the micro-step of the calls that follow outside of other calls, until the next one or the next step."""
        with self._lock:
            self._tree.micro_step = number

    def shut(self) -> None:
        """Stop recording."""
        self.record.is_open = False
