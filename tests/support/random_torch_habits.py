"""What trainings do besides forward, backward and step, for programs made by chance."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from random_torch_layers import BATCH, WIDTH
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

HABITS: dict[str, type[Habit]] = {}


class Habit:
    """Does something at some points of a training; does nothing where it does not say."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self.numbers = numbers

    def __init_subclass__(cls) -> None:
        HABITS[cls.__name__] = cls

    def prepare(self, run: Any) -> None:
        """Before the optimizer is made."""

    def around_step(self, run: Any) -> AbstractContextManager[Any]:
        """Around everything of a step, in the window and outside."""
        return nullcontext()

    def around_forward(self, run: Any) -> AbstractContextManager[Any]:
        """Around one forward and its loss."""
        return nullcontext()

    def around_backward(self, run: Any) -> AbstractContextManager[Any]:
        """Around one backward."""
        return nullcontext()

    def loss(self, run: Any, loss: Tensor) -> Tensor:
        """Return another loss."""
        return loss

    def before_update(self, run: Any) -> None:
        """When all gradients are there."""

    def after_step(self, run: Any) -> None:
        """At the end of a step, in the window."""


class Clip(Habit):
    def before_update(self, run):
        if self.numbers[0] % 2:
            run.log(nn.utils.clip_grad_norm_(run.model.parameters(), 0.5, foreach=self.numbers[1] % 2 == 0 or None))
        else:
            nn.utils.clip_grad_value_(run.model.parameters(), 0.1)


class Autocast(Habit):
    def around_forward(self, run):
        return torch.autocast("cpu", torch.bfloat16, cache_enabled=self.numbers[0] % 2 == 0)


class Average(Habit):
    """An average of the model, made before the first window or in it, which is also run."""

    def prepare(self, run):
        self.average = copy.deepcopy(run.model) if self.numbers[0] % 2 else None

    def after_step(self, run):
        if self.average is None:
            self.average = copy.deepcopy(run.model)
        with torch.no_grad():
            for mine, theirs in zip(self.average.parameters(), run.model.parameters(), strict=True):
                mine.lerp_(theirs, 0.5)
        run.log(self.average.eval()(run.x))
        run.log(*self.average.parameters())


class Pickle(Habit):
    def after_step(self, run):
        if self.numbers[0] % 2:
            buffer = io.BytesIO()
            torch.save(run.model.state_dict(), buffer)
            buffer.seek(0)
            run.model.load_state_dict(torch.load(buffer))
        else:
            try:
                run.log(pickle.loads(pickle.dumps(run.model))(run.x))
            except (AttributeError, TypeError, RuntimeError, pickle.PicklingError):
                run.log("not pickled")


class Evaluate(Habit):
    def after_step(self, run):
        run.model.eval()
        with torch.inference_mode() if self.numbers[0] % 2 else torch.no_grad():
            run.log(run.model(run.x))
        run.model.train()


class TwoBackwards(Habit):
    def around_backward(self, run):
        @contextmanager
        def twice():
            run.loss.backward(retain_graph=True)
            yield

        return twice()


class Penalty(Habit):
    """A penalty on the gradient with respect to the input."""

    def loss(self, run, loss):
        if not run.x.requires_grad:
            return loss
        (gradient,) = torch.autograd.grad(loss, run.x, create_graph=True, allow_unused=True)
        return loss if gradient is None else loss + gradient.square().sum() * 0.1


class InputGradient(Habit):
    def around_forward(self, run):
        run.x.requires_grad_()
        return nullcontext()

    def before_update(self, run):
        run.log(run.x.grad)


class BackwardOnThread(Habit):
    def prepare(self, run):
        run.backward = lambda loss: _on_thread(loss.backward)


class ForwardOnThread(Habit):
    def prepare(self, run):
        run.forward = lambda x: _on_thread(lambda: run.model(x))


def _on_thread(work):
    results = []

    def run():
        try:
            results.append((work(), None))
        except Exception as error:  # noqa: BLE001  # raised again where the thread is waited for
            results.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    ((result, error),) = results
    if error is not None:
        raise error
    return result


class Functions(Habit):
    """A function mode that counts what it sees."""

    def around_step(self, run):
        return self._mode(run) if self.numbers[0] % 2 else nullcontext()

    def around_forward(self, run):
        return nullcontext() if self.numbers[0] % 2 else self._mode(run)

    def _mode(self, run):
        class Mode(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                if run.is_inside:
                    run.log(getattr(func, "__name__", str(func)), len(args), *sorted(kwargs or {}))
                return func(*args, **(kwargs or {}))

        return Mode()


class Operators(Habit):
    """A dispatch mode that counts what it sees."""

    def around_forward(self, run):
        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                run.log(str(func))
                return func(*args, **(kwargs or {}))

        return Mode()


class Packed(Habit):
    """Saved tensors are packed."""

    def around_forward(self, run):
        def pack(tensor):
            run.log(tuple(tensor.shape))
            return tensor.clone()

        if self.numbers[0] % 2:
            return torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed)
        return torch.autograd.graph.save_on_cpu()


class Anomalies(Habit):
    def around_step(self, run):
        return torch.autograd.detect_anomaly(check_nan=False)


class GradientHooks(Habit):
    def prepare(self, run):
        for i, parameter in enumerate(run.model.parameters()):
            if i % 2 == self.numbers[0] % 2:
                parameter.register_hook(lambda gradient: gradient * 0.5)
            elif not gradient_is_sparse(run.model, parameter):
                parameter.register_post_accumulate_grad_hook(lambda parameter: run.log(parameter.grad))


def gradient_is_sparse(model, parameter):
    return any(getattr(each, "sparse", False) and each.weight is parameter for each in model.modules())


class HooksInTheMiddle(Habit):
    """Hooks that come while a window is open, and go again."""

    def around_forward(self, run):
        modules = list(run.model.modules())
        module = modules[self.numbers[0] % len(modules)]
        kinds = [
            lambda: module.register_forward_hook(lambda module, args, output: _times(output, 1.5)),
            lambda: module.register_forward_pre_hook(lambda module, args: _times(args, 0.5)),
            lambda: module.register_full_backward_hook(lambda *_: None),
            lambda: nn.modules.module.register_module_forward_hook(lambda *_: run.log("hook")),
            lambda: nn.modules.module.register_module_forward_pre_hook(lambda *_: run.log("hook")),
        ]

        @contextmanager
        def hook():
            if isinstance(module, torch.jit.ScriptModule):
                yield
                return
            handle = kinds[self.numbers[1] % len(kinds)]()
            try:
                yield
            finally:
                handle.remove()

        return hook()


def _times(value, factor):
    if isinstance(value, Tensor) and value.is_floating_point():
        return value * factor
    return type(value)(_times(each, factor) for each in value) if type(value) in (tuple, list) else value


class Freeze(Habit):
    def after_step(self, run):
        for i, parameter in enumerate(run.model.parameters()):
            if i % 3 == self.numbers[0] % 3:
                parameter.requires_grad_(not parameter.requires_grad)


class Convert(Habit):
    """Parameters are swapped for others, or get other data."""

    def around_step(self, run):
        @contextmanager
        def swapping():
            if not hasattr(torch.__future__, "set_swap_module_params_on_conversion"):
                yield
                return
            torch.__future__.set_swap_module_params_on_conversion(self.numbers[0] % 2 == 0)
            try:
                yield
            finally:
                torch.__future__.set_swap_module_params_on_conversion(False)

        return swapping()

    def after_step(self, run):
        run.optimizer.zero_grad()
        run.loss = None
        run.model.double()
        run.model.float()


class Replace(Habit):
    """A parameter is another from now on, as pruning and quantization do."""

    def after_step(self, run):
        for module in run.model.modules():
            if type(module) is nn.Linear:
                module.weight = nn.Parameter(module.weight.detach() * 0.9)


class Decay(Habit):
    def before_update(self, run):
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter.mul_(0.99)
                if self.numbers[0] % 2:
                    parameter.data.add_(0.001)


class Fails(Habit):
    """A forward that raises in the middle, and is caught."""

    def after_step(self, run):
        modules = [module for module in run.model.modules() if not isinstance(module, torch.jit.ScriptModule)]
        module = modules[self.numbers[0] % len(modules)]

        def fail(*_):
            raise ValueError("planted")

        handle = module.register_forward_hook(fail) if self.numbers[1] % 2 else module.register_forward_pre_hook(fail)
        try:
            run.model(run.x)
        except ValueError as error:
            run.log(str(error))
        handle.remove()


class Scaler(Habit):
    def prepare(self, run):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def loss(self, run, loss):
        return self.scaler.scale(loss)

    def before_update(self, run):
        self.scaler.unscale_(run.optimizer)
        run.log(self.scaler.get_scale())

    def after_step(self, run):
        self.scaler.update()


class Samples(Habit):
    """Gradients of each sample."""

    def after_step(self, run):
        parameters = {name: parameter.detach() for name, parameter in run.model.named_parameters()}

        def loss(parameters, x):
            return torch.func.functional_call(run.model, parameters, (x,)).square().mean()

        try:
            gradients = torch.func.grad(loss)(parameters, run.x.detach())
        except RuntimeError as error:
            run.log(str(error).splitlines()[0])
            return
        run.log(*gradients.values())


class Class(Habit):
    """The input is of a tensor class of the user."""

    def around_forward(self, run):
        class Own(Tensor):
            pass

        run.x = run.x.as_subclass(Own)
        return nullcontext()


class Memory(Habit):
    """The memory format and the strides of parameters change."""

    def prepare(self, run):
        with torch.no_grad():
            for parameter in run.model.parameters():
                if parameter.dim() == 2:
                    parameter.set_(parameter.t().contiguous().t())


class Annotated(Habit):
    def around_step(self, run):
        return torch.autograd.profiler.record_function("step")


class Deterministic(Habit):
    def around_step(self, run):
        @contextmanager
        def deterministic():
            torch.use_deterministic_algorithms(True, warn_only=True)
            try:
                yield
            finally:
                torch.use_deterministic_algorithms(False)

        return deterministic()


class Device(Habit):
    def around_step(self, run):
        return torch.device("cpu")


class Script(Habit):
    """The model, or a part of it, is scripted or traced in the window."""

    def after_step(self, run):
        linear = next((module for module in run.model.modules() if type(module) is nn.Linear), None)
        if linear is None:
            return
        kinds = [
            lambda: torch.jit.script(linear)(torch.ones(linear.in_features)),
            lambda: torch.jit.trace(linear, torch.ones(linear.in_features))(torch.zeros(linear.in_features)),
            lambda: torch.fx.symbolic_trace(linear)(torch.ones(linear.in_features)),
        ]
        run.log(kinds[self.numbers[0] % len(kinds)]())


class OwnDraws(Habit):
    """A generator of its own, and the global one."""

    def after_step(self, run):
        generator = torch.Generator().manual_seed(run.step)
        run.log(torch.randn(BATCH, WIDTH, generator=generator), torch.randperm(5), torch.rand(2).exponential_())
