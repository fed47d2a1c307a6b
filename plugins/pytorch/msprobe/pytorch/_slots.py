"""Observe module calls without a hook: through the slot in which a module stores its compiled call.

``nn.Module.__call__`` calls ``_compiled_call_impl`` if it is set. PyTorch and many programs check the hooks of a
module, and then compute differently, reject it or copy them: fused layers, TorchScript, export, CUDA graphs,
quantization. They do not check this slot, and copying, pickling or saving a module omits it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules import module as _of_all_modules

from msprobe.pytorch._torch_releases import export
from msprobe_core.interception import After, Before, Handle, Hook

_SLOT = "_compiled_call_impl"
_CALL = nn.Module._wrapped_call_impl.__code__


def compiled_call_of(module: nn.Module) -> Callable[..., Any] | None:
    """Return the callable that ``module.compile()`` installed; ``None`` if the module is not compiled."""
    call = getattr(module, _SLOT, None)
    return call.compiled if isinstance(call, _Slot) else call


def is_observed(module: nn.Module) -> bool:
    """Whether calls of a module are observed."""
    return isinstance(module.__dict__.get(_SLOT), _Slot)


def observe(module: nn.Module, before: Before | None, after: After | None) -> Observation:
    """See `msprobe_core.interception.modules.Observe`."""
    observation = Observation(module, before, after)
    observation.begin()
    return observation


class Observation:
    """Calls functions when calls of one module begin and end; see `msprobe_core.interception.modules.Observe`."""

    def __init__(self, module: nn.Module, before: Before | None, after: After | None) -> None:
        """Prepare; ``begin`` installs it."""
        self._module = module
        self._observer = _Observer(before, after)
        self._slot: _Slot | None = None

    def begin(self) -> None:
        """Call the functions from now on."""
        content = self._module.__dict__  # not setattr, which classes may override
        slot = content.get(_SLOT)
        if not isinstance(slot, _Slot):
            # Reuse an existing slot: code that reads a model may restore the previous one.
            compiled, slot = slot, self._slot or _Slot(self._module)
            slot.compiled = compiled
            content[_SLOT] = slot
        self._slot = slot
        slot.observers = (*slot.observers, self._observer)

    def remove(self) -> None:
        """Stop calling them, except at the end of calls that have begun."""
        content = self._module.__dict__
        slot = content.get(_SLOT)
        if not isinstance(slot, _Slot):
            return  # the module has been compiled in the meantime
        slot.observers = tuple(observer for observer in slot.observers if observer is not self._observer)
        if slot.observers:
            return
        if slot.compiled is None:
            del content[_SLOT]
        else:
            content[_SLOT] = slot.compiled


class _Observer(NamedTuple):
    before: Before | None
    after: After | None


class _Slot:
    """Replaces a module's compiled call."""

    __slots__ = ("_module", "compiled", "observers")

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.compiled: Callable[..., Any] | None = None
        self.observers: tuple[_Observer, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module, and the observers before and after it."""
        caller = sys._getframe(1)
        # A data-parallel replica has the attributes of its original module, including that module's slot.
        module: Any = caller.f_locals["self"] if caller.f_code is _CALL else self._module
        if export._is_compiling_flag:
            return (self.compiled or module._call_impl)(*args, **kwargs)
        call = _Call(module, self.observers)
        output = None
        try:
            if self.compiled is None and (module._forward_pre_hooks or _of_all_modules._global_forward_pre_hooks):
                call.begin_after_hooks()
            else:
                args, kwargs = call.begin(args, kwargs)
            output = (self.compiled or module._call_impl)(*args, **kwargs)
        finally:
            output = call.end(output)
        return output

    def __deepcopy__(self, memo: object) -> None:
        return None  # of a module whose class copies the contents itself

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


class _Call:
    """One call of a module that is observed."""

    __slots__ = ("_args", "_handle", "_has_begun", "_kwargs", "_module", "_observers")

    def __init__(self, module: nn.Module, observers: tuple[_Observer, ...]) -> None:
        self._module = module
        self._observers = observers
        self._args: tuple[Any, ...] = ()
        self._kwargs: dict[str, Any] = {}
        self._has_begun = False
        self._handle: Handle | None = None

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Call the observers, and return the arguments that they return."""
        self._has_begun = True
        for before, _ in self._observers:
            if before is not None and (changed := before(self._module, args, kwargs)) is not None:
                args, kwargs = changed
        self._args, self._kwargs = args, kwargs
        return args, kwargs

    def begin_after_hooks(self) -> None:
        """Begin after the hooks of the user, which may change the arguments, in a hook that is then removed."""
        _waiting.calls.append(self)
        # Not the module's own method, which scripted modules reject.
        self._handle = nn.Module.register_forward_pre_hook(self._module, Hook(self._arrive), with_kwargs=True)

    def _arrive(self, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Another thread, or a hook of the user, may also call the module.
        if _waiting.calls[-1:] != [self]:
            return None
        self._leave_hooks()
        return self.begin(args, kwargs)

    def _leave_hooks(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
            _waiting.calls.remove(self)

    def end(self, output: Any) -> Any:
        """Call the observers, and return the result that they return; ``output`` is ``None`` if the call has raised."""
        self._leave_hooks()
        if self._has_begun:
            for _, after in self._observers:
                if after is not None and (changed := after(self._module, self._args, self._kwargs, output)) is not None:
                    output = changed
        return output


class _Waiting(threading.local):
    """The calls of a thread that are waiting for hooks of the user, innermost last."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []


_waiting = _Waiting()
