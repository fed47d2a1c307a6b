"""Adapters of the recorder: for a single module, and for module names without wrappers."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from msprobe_core.names import class_without_wrapper, module_stem, without_wrappers

if TYPE_CHECKING:
    from msprobe_core.capture.recorder import Recorder
    from msprobe_core.protocols.recording import Call


class _RecorderAdapter:
    """The members of `CallRecorder` that an adapter passes through unchanged."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.open_api = recorder.open_api
        self.open_operator = recorder.open_operator
        self.open_call = recorder.open_call
        self.record_inputs = recorder.record_inputs
        self.record_parameters = recorder.record_parameters
        self.record_outputs = recorder.record_outputs
        self.close = recorder.close
        self.input_gradients = recorder.input_gradients
        self.output_gradients = recorder.output_gradients
        self.expect_gradients = recorder.expect_gradients
        self.record_gradient = recorder.record_gradient
        self.nesting = recorder.nesting
        self.nest_in = recorder.nest_in
        self.set_clock = recorder.set_clock
        self.note_failure = recorder.note_failure

    @property
    def is_open(self) -> bool:
        """See `CallRecorder`."""
        return self._recorder.is_open

    @property
    def is_outside_modules(self) -> bool:
        """See `CallRecorder`."""
        return self._recorder.is_outside_modules

    @property
    def clock(self) -> int:
        """See `CallRecorder`."""
        return self._recorder.clock


class SingleModuleRecorder(_RecorderAdapter):
    """Recorder for the hooks of the one module of `module_dump`; a `CallRecorder`.

    Its reports are recorded, while the recorder ignores all other reports. A framework also sets these hooks on the
    modules inside; their calls are ignored here.
    """

    def __init__(self, recorder: Recorder, name: str) -> None:
        super().__init__(recorder)
        self._name = name
        self._stem: str | None = None
        self.expect_parameter_gradients = recorder.expect_parameter_gradients

    def open_module(self, prefix: str, path: str, type_name: str, *, is_recomputed: bool = False) -> Call:
        """Begin a call of the module."""
        if path != self._name:
            return self._recorder.pass_over_call()
        self._stem = module_stem(prefix, path, type_name)
        return self._recorder.open_module(prefix, path, type_name, is_recomputed=is_recomputed, is_single=True)

    def record_parameter_gradient(self, stem: str, name: str, gradient: Any, contribution: Any = None) -> None:
        """Record the gradient of one of the module's own parameters."""
        if stem == self._stem:
            self._recorder.record_parameter_gradient(stem, name, gradient, contribution, is_single=True)


class UnwrappingRecorder(_RecorderAdapter):
    """Recorder for the hooks of wrapped models, which names modules as in the model without wrappers; a `CallRecorder`.

    A wrapper itself keeps its class name, so that it does not collide with the module that it wraps.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._stems: dict[str, str] = {}

    def open_module(self, prefix: str, path: str, type_name: str, *, is_recomputed: bool = False) -> Call:
        """Begin a call of a module, under its name without wrappers."""
        stem = module_stem(prefix, path, type_name)
        path, type_name = without_wrappers(path), class_without_wrapper(type_name)
        self._stems[stem] = module_stem(prefix, path, type_name)
        return self._recorder.open_module(prefix, path, type_name, is_recomputed=is_recomputed)

    def expect_parameter_gradients(self, stem: str, parameters: Collection[str]) -> None:
        """Set which parameters of a module report gradients."""
        self._recorder.expect_parameter_gradients(self._stem_of(stem), parameters)

    def record_parameter_gradient(self, stem: str, name: str, gradient: Any, contribution: Any = None) -> None:
        """Record the gradient of a module's parameter."""
        self._recorder.record_parameter_gradient(self._stem_of(stem), name, gradient, contribution)

    def _stem_of(self, stem: str) -> str:
        if stem not in self._stems:  # the module has not been called
            prefix, *path, type_name = stem.split(".")
            self._stems[stem] = module_stem(prefix, without_wrappers(".".join(path)), class_without_wrapper(type_name))
        return self._stems[stem]
