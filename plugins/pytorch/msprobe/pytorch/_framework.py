"""The PyTorch implementation of the core's framework protocol."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed
import torch.overrides
from torch import Tensor, nn

from msprobe.pytorch._apis import ApiTable
from msprobe.pytorch._arrivals import note_stream, wait_for
from msprobe.pytorch._calls import ApiCalls
from msprobe.pytorch._collectives import Collectives
from msprobe.pytorch._compiled import CompiledRegions, StepsAside
from msprobe.pytorch._foreign_functions import foreign_patches
from msprobe.pytorch._functions import CHECKS, ApiMode, BackwardEngine, FastPathCheck
from msprobe.pytorch._gradients import watch_gradient
from msprobe.pytorch._manifest import Describing
from msprobe.pytorch._modules import ModuleHooks, Visits, modules_to_watch
from msprobe.pytorch._monitor import Monitoring
from msprobe.pytorch._monitor_measures import Measuring
from msprobe.pytorch._monitored_training import Trained
from msprobe.pytorch._operators import OperatorMode, OperatorTable
from msprobe.pytorch._perturb import perturb
from msprobe.pytorch._placements import distribution_of
from msprobe.pytorch._quiet import RecordingGuard
from msprobe.pytorch._raise import RaisedModules
from msprobe.pytorch._random import watch_random
from msprobe.pytorch._redistributions import redistributions
from msprobe.pytorch._reduce import TorchReducer, readable
from msprobe.pytorch._replaying import Replaying
from msprobe.pytorch._slots import observe
from msprobe.pytorch._state import ModuleState, has_state
from msprobe.pytorch._swapped_tensors import swap_patch
from msprobe.pytorch._torch_releases import is_compiling
from msprobe.pytorch._traced import TracedRegions
from msprobe.pytorch._transforms import is_wrapped, shape_of, transforms_of
from msprobe_core.interception import AliasSearch, NothingPending, PlacedAttachment, WatchHooks
from msprobe_core.plugin import (
    Argument,
    Attachment,
    AttachOptions,
    CallFixer,
    CallRecorder,
    CallWatcher,
    ConfigError,
    KernelDump,
    KernelOptions,
    ModuleCompiler,
    NamedModel,
    Perturbation,
    RandomDraw,
    Reducer,
    Removable,
    RiskLevel,
    TensorContent,
    TensorMeta,
    TrainingState,
)
from msprobe_core.store import create_file

_logger = logging.getLogger(__name__)

_PLAIN_TYPES = (Tensor, nn.Parameter)

NO_CALLS = (
    "no function of PyTorch was called on the thread that called start(), so no API is recorded; on other threads APIs "
    "are recorded while a module runs there that start() was given: call start(model)"
)

_MAX_METAS = 1 << 14
"""Maximum number of cached descriptions: a step has a few dozen different ones, but sequence lengths may vary."""


class PyTorchFramework(Monitoring, Measuring, Describing, Replaying):
    """See `msprobe_core.plugin.Framework`."""

    name = "pytorch"
    tensor_suffix = ".pt"
    sees_operators = True
    hidden_frames = (str(Path(__file__).parent), str(torch.overrides.__file__))

    def __init__(self) -> None:
        self._dtypes: dict[torch.dtype, str] = {}
        self._metas: dict[tuple[torch.dtype, tuple[int, ...], bool], TensorMeta] = {}
        self._apis: dict[tuple[RiskLevel, tuple[str, ...]], ApiTable] = {}
        self._aliases = AliasSearch()
        self._said: set[str] = set()

    def is_tensor(self, value: object) -> bool:
        """Whether ``value`` is a ``torch.Tensor``."""
        return isinstance(value, Tensor)

    def is_model(self, value: object) -> bool:
        """Whether ``value`` is a ``torch.nn.Module``."""
        return isinstance(value, nn.Module)

    def rank(self) -> int | None:
        """Return the rank in the process group or, before there is one, the launcher's rank."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank()
        launched = os.environ.get("RANK", "")
        return int(launched) if launched.isdecimal() and "WORLD_SIZE" in os.environ else None

    def describe(self, tensor: Any) -> TensorMeta:
        """Describe a tensor without reading it."""
        kind = type(tensor)
        if kind not in _PLAIN_TYPES or tensor.is_nested or is_wrapped(tensor):
            return self._describe_anew(tensor)
        key = tensor.dtype, tensor.shape, tensor.requires_grad
        meta = self._metas.get(key)
        if meta is None:
            if len(self._metas) == _MAX_METAS:
                self._metas.clear()
            meta = self._metas[key] = self._describe_anew(tensor)
        return meta

    def _describe_anew(self, tensor: Any) -> TensorMeta:
        dtype = self._dtypes.get(tensor.dtype)
        if dtype is None:
            dtype = self._dtypes[tensor.dtype] = str(tensor.dtype)
        kind = type(tensor)
        name = "torch.Tensor" if kind in _PLAIN_TYPES else f"{kind.__module__}.{kind.__qualname__}"
        shape = () if tensor.is_nested else tuple(int(size) for size in tensor.shape)
        distribution = None if kind in _PLAIN_TYPES else distribution_of(tensor)
        transforms = None
        if is_wrapped(tensor):
            shape, transforms = shape_of(tensor), transforms_of(tensor)
        return TensorMeta(name, dtype, shape, tensor.requires_grad, distribution, transforms)

    def takes_gradient(self, tensor: Any) -> bool:
        """Whether the tensor requires a gradient."""
        return tensor.requires_grad

    def describe_argument(self, value: Any) -> Argument | None:
        """Describe a size, dtype, device, layout, memory format, process group or reduce operation."""
        kind = type(value)
        if kind is torch.Size:
            # Symbolic sizes, and the tensors that tracing uses instead, are not numbers.
            return Argument("torch.Size", [size if type(size) is int else type(size).__name__ for size in value])
        if kind in (torch.dtype, torch.layout):
            return Argument(f"torch.{kind.__name__}", str(value))
        if kind is torch.device:
            return Argument("torch.device", f"{value.type}:{value.index}")
        if kind is torch.memory_format:
            return Argument("torch.memory_format", None, {"format": str(value)})
        return _describe_distributed(value)

    def reducer(self) -> Reducer:
        """Return a new reducer."""
        return TorchReducer()

    def attach(self, models: Sequence[NamedModel], options: AttachOptions, recorder: CallRecorder) -> Attachment:
        """Hook modules, enter the function mode, or both, depending on the level."""
        apis = self._apis_for(options)
        operators = OperatorTable(apis, keeps_all=RiskLevel(options.risk_level) is RiskLevel.ALL)
        return _Attachment(models, options, recorder, apis, operators, self._aliases, self._say)

    def _say(self, sentence: str) -> None:
        # Once per process: there may be a window in every step.
        if sentence not in self._said:
            self._said.add(sentence)
            _logger.warning("%s", sentence)

    def _apis_for(self, options: AttachOptions) -> ApiTable:
        # Cached: building it takes milliseconds, and there may be a window in every step.
        key = (RiskLevel(options.risk_level), tuple(options.custom_op_namespaces))
        if key not in self._apis:
            self._apis[key] = ApiTable(*key)
        return self._apis[key]

    def quiet(self, on_failure: Callable[[str, Exception], None]) -> RecordingGuard:
        """Return a block that is hidden from PyTorch's modes and raises nothing."""
        return RecordingGuard(on_failure)

    def for_training(self, models: Sequence[nn.Module], optimizer: Any) -> Trained:
        """Return what knows the trainer of these models."""
        return Trained(models, optimizer)

    def watch_gradient(self, tensor: Any, on_gradient: Callable[[Any], None]) -> Callable[[], None] | None:
        """Hook the tensor if it is a leaf, and otherwise its autograd node."""
        return watch_gradient(tensor, on_gradient)

    def narrow(self, tensor: Any, ranges: Mapping[int, tuple[int, int]]) -> Any:
        """Return a view of a slice; ``None`` for a tensor without plain elements, or with only a shard of them."""
        with RecordingGuard():
            values = readable(tensor)
            if values is None or values.shape != tensor.shape:
                return None
            for dim, (begin, end) in ranges.items():
                values = values.narrow(dim, begin, end - begin)
            return values

    def watch(self, models: Sequence[NamedModel], watcher: CallWatcher) -> Removable:
        """Observe the modules that the watcher wants."""
        return WatchHooks("Module", modules_to_watch(models), watcher, observe)

    def watch_data(self, models: Sequence[NamedModel], watcher: CallWatcher) -> Removable:
        """Observe the modules that the watcher wants, but not while compiled code runs, which would be compiled too."""
        return _DataWatch(models, watcher)

    def watch_random(
        self, draws: Callable[[RandomDraw], Any], *, has_dropout: bool = False, has_seeding: bool = False
    ) -> Callable[[], None]:
        """Patch random functions and, for dropout, its kernels."""
        return watch_random(draws, has_dropout=has_dropout, has_seeding=has_seeding)

    def perturb(self, models: Sequence[NamedModel], perturbation: Perturbation, seed: int) -> Removable:
        """Install a dispatch mode, or module hooks."""
        return perturb(models, perturbation, seed)

    def dump_kernels(self, options: KernelOptions) -> KernelDump:
        """Reject, like ``check_kernels``."""
        self.check_kernels(options)

    def check_kernels(self, options: KernelOptions) -> NoReturn:
        """Reject: PyTorch's kernels are dumped by the tools of the device.

        Raises:
            ConfigError: always; the message names the tools.
        """
        names = ", ".join(repr(name) for name in options.kernels) or "some APIs"
        raise ConfigError(
            "level L2 dumps kernels, which PyTorch does not do by itself. On Ascend put torch_npu.npu.init_dump(), "
            "set_dump(<configuration of the dump>) and finalize_dump() around the call; which kernels a call starts, "
            f"torch.profiler shows on every device. For inputs and outputs of {names} take level L1 with the task "
            "'tensor' and 'list'"
        )

    def training_state(self, models: Sequence[Any], others: Sequence[Any]) -> TrainingState:
        """Copy the state of a training to the host."""
        return ModuleState(models, others)

    def has_state(self, value: Any) -> bool:
        """Whether its class has ``state_dict`` and ``load_state_dict``."""
        return has_state(value)

    def raised_modules(self, models: Sequence[NamedModel]) -> RaisedModules:
        """Return what raises single modules of these models."""
        return RaisedModules(models)

    def module_compiler(self, models: Sequence[NamedModel]) -> ModuleCompiler:
        """Return what compiles single modules of these models."""
        from msprobe.pytorch._compile_check import CompiledModules  # hardly ever needed

        return CompiledModules(models)

    def fix_calls(self, fixer: CallFixer, models: Sequence[NamedModel]) -> Removable:  # noqa: ARG002
        """Replace results of calls."""
        from msprobe.pytorch._fix import FixedCalls  # hardly ever needed

        return FixedCalls(ApiTable(RiskLevel.ALL, ()), fixer)

    def load(self, path: Path, like: Any) -> Any:
        """Return the tensor that ``torch.save`` wrote to ``path``, as a replacement for ``like``.

        Not with ``torch.load``: before PyTorch 2.6 a file can make it run code, even with ``weights_only``.
        """
        from msprobe_core.store import open_tensor  # not needed for recording

        return self.rebuild(open_tensor(path).content(), like)

    def rebuild(self, content: TensorContent, like: Any) -> Any:
        """Return the tensor with these elements, as a replacement for ``like``."""
        dtype = getattr(torch, content.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"this PyTorch has no dtype {content.dtype}")
        loaded: Any = None
        with RecordingGuard():
            # Not frombuffer, which rejects empty buffers.
            stored = torch.from_numpy(np.asarray(content.data))
            loaded = stored.view(dtype).reshape(content.shape).to(like.device)
        return _in_place_of(like, loaded)

    def snapshot(self, tensor: Any) -> Any:
        """Return a contiguous detached copy on the tensor's own device; ``None`` if it has no plain elements."""
        with RecordingGuard():
            values = readable(tensor)
            return None if values is None else note_stream(values.clone(memory_format=torch.contiguous_format))

    def content(self, snapshot: Any) -> TensorContent:
        """Return the bytes of a copy, fetched from its device."""
        values: Any = wait_for(snapshot).resolve_conj().resolve_neg().cpu().contiguous()
        dtype = str(values.dtype).removeprefix("torch.")
        return TensorContent(dtype, tuple(values.shape), memoryview(values.reshape(-1).view(torch.uint8).numpy()))

    def save(self, snapshot: Any, path: Path) -> None:
        """Write a copy with ``torch.save``."""
        with create_file(path) as file:
            torch.save(wait_for(snapshot), file)

    def wait_for_devices(self) -> None:
        """Wait for every device that this process uses; see `msprobe_core.plugin.DeviceGauge`."""
        for backend in _backends_in_use():
            backend.synchronize()

    def peak_device_bytes(self) -> int | None:
        """Return the sum of the allocators' peaks over all devices, each at its own time."""
        peaks = [
            backend.max_memory_allocated(index)
            for backend in _backends_in_use()
            for index in range(backend.device_count())
        ]
        return sum(peaks) if peaks else None


def _in_place_of(like: Tensor, loaded: Tensor) -> Tensor:
    """Return a tensor that takes a gradient where ``like`` does."""
    with RecordingGuard():
        loaded = loaded.detach().requires_grad_(like.requires_grad)
    if like.requires_grad and not like.is_leaf and torch.is_grad_enabled():
        # No leaf either: the module may write to it in place.
        with torch._C.DisableTorchFunction():
            loaded = loaded.clone()
    return loaded


class _DataWatch(NothingPending):
    """Watches calls of modules outside of compiled and traced code."""

    def __init__(self, models: Sequence[NamedModel], watcher: CallWatcher) -> None:
        self._models, self._watcher = models, watcher
        self._hooks: WatchHooks | None = None
        self._regions = (CompiledRegions([self], _say_nothing), TracedRegions([self], _say_nothing))
        self._watch()
        for regions in self._regions:
            regions.install()

    def _watch(self) -> None:
        self._hooks = WatchHooks("Module", modules_to_watch(self._models), self._watcher, observe)

    def step_aside(self) -> Callable[[], None]:
        """See `msprobe.pytorch._compiled.StepsAside`."""
        self._unwatch()
        return self._watch

    def _unwatch(self) -> None:
        hooks, self._hooks = self._hooks, None
        if hooks is not None:
            hooks.detach()

    def detach(self) -> None:
        """Remove everything."""
        for regions in reversed(self._regions):
            regions.remove()
        self._unwatch()


def _say_nothing(_: str) -> None:
    """The recording says it."""


class _Attachment(PlacedAttachment[ApiCalls]):
    """Everything that is in place between ``start`` and ``stop``."""

    def __init__(
        self,
        models: Sequence[NamedModel],
        options: AttachOptions,
        recorder: CallRecorder,
        apis: ApiTable,
        operators: OperatorTable,
        aliases: AliasSearch,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(recorder, RecordingGuard, ApiCalls)
        self._models = models
        self._options = options
        self._apis = apis
        self._operators = operators
        self._aliases = aliases
        self._say = say
        self._hooks: ModuleHooks | None = None
        self._mode: ApiMode | None = None
        self.install_all()

    def install(self) -> None:
        """Install the interceptions that the level needs."""
        level, aside = self._options.level, list[StepsAside]()
        if level.has_apis:
            collectives = Collectives(self.recorder, self.unsettled, self.calls.unset_memory.forget)
            self.place(collectives.install, collectives.remove)
        if level.has_modules:
            hooks = self._hooks = ModuleHooks(self._models, self.recorder, self.unsettled, self._say, self._visit)
            self.place(hooks.install, hooks.remove)
            aside.append(hooks)
        swaps = swap_patch(self.calls, None if self._hooks is None else self._hooks.parameters)
        self.place(swaps.install, swaps.remove)
        if level.has_apis:
            if self._options.aten:
                operators = OperatorMode(self.recorder, self._operators, self.calls)
                self.place(operators.install, operators.detach)
                aside.append(operators)
                moved = redistributions(self.recorder, operators, self._aliases)
                self.place(moved.install, moved.remove)
            mode = ApiMode(self.recorder, self._apis, self.calls)
            self.place(mode.push, mode.remove)
            self._mode = mode
            if not level.has_modules:
                visits = Visits(self._models, mode.visit)
                self.place(visits.install, visits.remove)
                aside.append(visits)
            checks = [FastPathCheck(mode, name) for name in CHECKS]
            for patch in (BackwardEngine(mode), *checks, foreign_patches(self.calls, self._aliases)):
                self.place(patch.install, patch.remove)
            aside.append(mode)
        for regions in (CompiledRegions(aside, self._say), TracedRegions(aside, self._say)):
            self.place(regions.install, regions.remove)

    def detach(self) -> None:
        """Take everything out, the last first, and keep no memory known."""
        super().detach()
        self.calls.unset_memory.clear()
        if self._mode is not None and not self._mode.has_seen_calls:
            self._say(NO_CALLS)

    def _visit(self) -> Callable[[], None] | None:
        return None if self._mode is None else self._mode.visit()

    def release(self) -> None:
        """Stop reporting gradients of parameters."""
        if self._hooks is not None:
            self._hooks.release()

    def is_compiling(self) -> bool:
        """Whether ``torch.compile`` is reading the calling code."""
        return is_compiling()


def _backends_in_use() -> list[Any]:
    """Return the modules of the kinds of devices that this process has begun to use, such as ``torch.cuda``."""
    modules = [getattr(torch, name, None) for name in ("cuda", "npu", "xpu")]
    return [module for module in modules if module is not None and module.is_initialized()]


def _describe_distributed(value: Any) -> Argument | None:
    if not torch.distributed.is_available():
        return None
    if isinstance(value, torch.distributed.ProcessGroup):
        ranks = torch.distributed.get_process_group_ranks(value)
        group_id = f"{zlib.crc32(str(ranks).encode()):08x}"
        return Argument("torch.ProcessGroup", None, {"group_ranks": ranks, "group_id": group_id})
    if isinstance(value, torch.distributed.ReduceOp | torch.distributed.ReduceOp.RedOpType):
        return Argument("torch.distributed.ReduceOp", str(value))
    return None
