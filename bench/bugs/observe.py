"""Run one side as peers observe it.

Two runs of the same program: one under PyTorch's `DebugMode` with its hashes of tensors, one with hooks that keep the
outputs of modules, and the gradients and parameters at each update, as a script of a user's own would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._debug_mode import DebugMode
from torch.utils._debug_mode._utils import _get_op_name

from bench.bugs.bug import Bug, Side, Variant
from bench.bugs.observed import GRADIENT, OUTPUT, PARAMETER, Observed, Value
from bench.bugs.program import Program
from bench.faults.kernels import OtherKernels


def observe(subject: Bug | Variant, side: Side, kernels: str, steps: int | None) -> Observed:
    """Run a side twice in this process."""

    def run(program: Program, observed: Callable[[], Any]) -> list[Any]:
        seen: list[Any] = []
        for step in range(steps or program.num_steps):
            # The kernels are below what observes, as they are below the recorder.
            with OtherKernels() if kernels == "other" else nullcontext(), observed() as one:
                program.step(step)
            seen.append(one)
        return seen

    torch.manual_seed(0)
    logs = run(subject.make(side), _logged)
    torch.manual_seed(0)
    program = subject.make(side)
    return Observed(logs, run(program, partial(_hooked, program.model)))


def _mark_backward(*_: object) -> dict[str, bool]:
    return {"backward": torch._C._current_autograd_node() is not None}


@contextmanager
def _logged() -> Iterator[list[Any]]:
    """Yield a list that has the log of the block at its end, with names in place of what cannot be pickled."""
    calls: list[Any] = []
    mode = DebugMode(record_nn_module=True)
    with mode, DebugMode.log_tensor_hashes(), DebugMode.dispatch_hooks(log_hook=_mark_backward):
        yield calls
    for call in mode.logs:
        if hasattr(call, "op"):
            call.op = _get_op_name(call.op)
    calls += mode.logs


@contextmanager
def _hooked(model: torch.nn.Module) -> Iterator[list[Value]]:
    """Yield a list that hooks append to."""
    values: list[Value] = []

    def output(path: str, _: object, __: object, result: Any) -> None:
        for number, tensor in enumerate(_tensors(result)):
            values.append(Value(OUTPUT, path, str(number), tensor.detach().clone()))

    def parameters(kind: str, *_: object) -> None:
        # Gradients are made from the last module to the first.
        for name, parameter in reversed(list(model.named_parameters())):
            tensor = parameter.grad if kind == GRADIENT else parameter
            if tensor is not None:
                values.append(Value(kind, name.rpartition(".")[0], name, tensor.detach().clone()))

    with ExitStack() as stack:
        handles = [module.register_forward_hook(partial(output, path)) for path, module in model.named_modules()]
        handles.append(register_optimizer_step_pre_hook(partial(parameters, GRADIENT)))
        handles.append(register_optimizer_step_post_hook(partial(parameters, PARAMETER)))
        for handle in handles:
            stack.callback(handle.remove)
        yield values


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (list, tuple)):
        for one in result:
            yield from _tensors(one)
    elif isinstance(result, dict):
        yield from _tensors(list(result.values()))
