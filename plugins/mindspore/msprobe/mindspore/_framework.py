"""The MindSpore implementation of the core's framework protocol."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.communication import GlobalComm, get_rank

from msprobe.mindspore._calls import SPARSE, ApiCalls
from msprobe.mindspore._cells import CellHooks, CellWatch
from msprobe.mindspore._communication import CommunicationPatches
from msprobe.mindspore._device import WITH_ARITHMETIC, check_target, copied, device_target, is_host
from msprobe.mindspore._functions import ApiPatches
from msprobe.mindspore._gradients import takes_gradient, watch_gradient
from msprobe.mindspore._jit import JitPatches, is_tracing
from msprobe.mindspore._kernel_dump import dump_kernels
from msprobe.mindspore._manifest import Describing
from msprobe.mindspore._monitor import Monitoring
from msprobe.mindspore._monitor_measures import Measuring
from msprobe.mindspore._perturb import perturb
from msprobe.mindspore._primitives import PrimitivePatches
from msprobe.mindspore._quiet import RecordingGuard
from msprobe.mindspore._random import watch_random
from msprobe.mindspore._reduce import MindSporeReducer, values_of
from msprobe.mindspore._state import NetState, has_parameters
from msprobe.mindspore._unrecorded_calls import inside
from msprobe.mindspore._unwritten import Unwritten
from msprobe.mindspore.graph.attachment import GraphTaps, check_calls, check_level, graph_mode, prepare
from msprobe.mindspore.graph.values import GraphValues
from msprobe_core.interception import HostValues, PlacedAttachment, Removal
from msprobe_core.plugin import (
    Argument,
    Attachment,
    AttachOptions,
    CallFixer,
    CallRecorder,
    CallScript,
    CallWatcher,
    KernelDump,
    KernelOptions,
    LinearKind,
    NamedModel,
    Perturbation,
    PluginError,
    RaisedModules,
    RandomDraw,
    Reducer,
    Removable,
    ReplayCall,
    Replayed,
    RiskLevel,
    Site,
    TensorContent,
    TensorMeta,
    TrainingState,
    UserCodeError,
)
from msprobe_core.store import DTYPES, widen

_logger = logging.getLogger(__name__)

_TENSORS = (Tensor, *SPARSE, GraphValues, Unwritten)

_DTYPE: Any = ms.common.dtype.Type


class MindSporeFramework(Monitoring, Measuring, Describing):
    """See `msprobe_core.plugin.Framework`."""

    name = "mindspore"
    tensor_suffix = ".npy"
    hidden_frames = (str(Path(__file__).parent), str(Path(str(nn.__file__)).with_name("cell.py")))

    def __init__(self, *, defers: bool | None = None) -> None:
        """Create it.

        Args:
            defers: Whether tensors are reduced as on a device, and fetched at the end of the window; ``None``: if they
                are on one.
        """
        super().__init__()
        self._defers = not is_host() if defers is None else defers
        self._dtypes: dict[Any, str] = {}
        self._apis: dict[RiskLevel, ApiPatches] = {}
        self._said: set[str] = set()
        self._graph_watchers: list[CallWatcher] = []

    def is_tensor(self, value: object) -> bool:
        """Whether ``value`` is a ``mindspore.Tensor``, dense or sparse."""
        return isinstance(value, _TENSORS)

    def is_model(self, value: object) -> bool:
        """Whether ``value`` is a ``mindspore.nn.Cell``."""
        return isinstance(value, nn.Cell)

    def rank(self) -> int | None:
        """Return the rank in the job or, before communication is initialised, the launcher's rank."""
        if GlobalComm.INITED:
            return get_rank()
        launched = os.environ.get("RANK_ID", "")
        is_job = any(name in os.environ for name in ("RANK_SIZE", "MS_WORKER_NUM"))
        return int(launched) if launched.isdecimal() and is_job else None

    def describe(self, tensor: Any) -> TensorMeta:
        """Describe a tensor without reading it."""
        if isinstance(tensor, GraphValues):
            return tensor.meta
        if isinstance(tensor, Unwritten):
            tensor = tensor.tensor
        dtype = self._dtypes.get(tensor.dtype)
        if dtype is None:
            dtype = self._dtypes[tensor.dtype] = str(tensor.dtype)
        is_sparse = isinstance(tensor, SPARSE)
        name = f"mindspore.{type(tensor).__name__}" if is_sparse else "mindspore.Tensor"
        return TensorMeta(name, dtype, tuple(tensor.shape), not is_sparse and takes_gradient(tensor))

    def takes_gradient(self, tensor: Any) -> bool:
        """Whether a backward pass computes a gradient with respect to this tensor."""
        if isinstance(tensor, GraphValues):
            return tensor.takes_gradient
        return not isinstance(tensor, SPARSE) and takes_gradient(tensor)

    def describe_argument(self, value: Any) -> Argument | None:
        """Describe a dtype."""
        if isinstance(value, _DTYPE):
            return Argument("mindspore.dtype", str(value))
        return None

    def why_not_replayed(self, site: Site) -> str | None:
        """Return why calls of this API are not replayed; see `msprobe_core.plugin.ReplayingFramework`."""
        from msprobe.mindspore._replay import why_not_replayed  # not needed for training

        return why_not_replayed(site)

    def replay(self, call: ReplayCall, model: object | None = None, device: str | None = None) -> Replayed:
        """Replay a recorded call; see `msprobe_core.plugin.DeviceReplayingFramework`."""
        from msprobe.mindspore._replay import replay

        if device is not None:
            check_target(device)
        return replay(call, model)

    def linear_in(self, site: Site) -> LinearKind | None:
        """Return how a function is linear; see `msprobe_core.plugin.LinearFramework`."""
        from msprobe.mindspore._replay_table import linear_in

        return linear_in(site.path)

    def replay_devices(self) -> Sequence[str]:
        """Return the device target of this process, unless that is the CPU: it cannot change in a process."""
        return [] if is_host() else [device_target()]

    def script(self, call: ReplayCall) -> CallScript:
        """Write a recorded call as source code; see `msprobe_core.plugin.ScriptingFramework`."""
        from msprobe.mindspore._script import script_of

        return script_of(call)

    def reducer(self) -> Reducer:
        """Return a new reducer."""
        return MindSporeReducer(defers=self._defers)

    def attach(self, models: Sequence[NamedModel], options: AttachOptions, recorder: CallRecorder) -> Attachment:
        """Hook Cells, patch APIs, or both, depending on the level; in GRAPH_MODE, receive values from graphs."""
        graphs = None
        if options.level.has_modules and options.inside_graphs:
            graphs = GraphTaps(models, recorder, self.describe, self._say, tuple(self._graph_watchers))
        apis = self._apis_of(RiskLevel(options.risk_level)) if options.level.has_apis else None
        return _Attachment(models, options, recorder, apis, graphs)

    def _apis_of(self, risk_level: RiskLevel) -> ApiPatches:
        # Cached: building them takes milliseconds, and there may be a window in every step.
        if risk_level not in self._apis:
            self._apis[risk_level] = ApiPatches(risk_level)
        return self._apis[risk_level]

    def check(self, options: AttachOptions) -> None:
        """Reject APIs in GRAPH_MODE; see `msprobe_core.plugin.CheckingFramework`."""
        check_level(options)

    def prepare(self, models: Sequence[NamedModel], options: AttachOptions) -> None:
        """Compile points into static graphs; see `msprobe_core.plugin.CompilingFramework`."""
        prepare([model.model for model in models], options)

    def _say(self, sentence: str) -> None:
        # Once per process: there may be a window in every step.
        if sentence not in self._said:
            self._said.add(sentence)
            _logger.warning("%s", sentence)

    def quiet(self, on_failure: Callable[[str, Exception], None]) -> RecordingGuard:
        """Return a block in which no graph is built, and which raises none of our errors."""
        return RecordingGuard(on_failure)

    def watch_gradient(self, tensor: Any, on_gradient: Callable[[Any], None]) -> Callable[[], None] | None:
        """Hook the tensor if it is a leaf, and otherwise its graph node."""
        return watch_gradient(tensor, on_gradient)

    def narrow(self, tensor: Any, ranges: Mapping[int, tuple[int, int]]) -> Any:
        """Return a slice; ``None`` for a tensor without plain elements."""
        if isinstance(tensor, GraphValues):
            return tensor.part(ranges)
        if isinstance(tensor, Unwritten):
            return tensor.values()
        if not isinstance(tensor, Tensor):
            return None
        with RecordingGuard():
            return tensor[tuple(slice(*ranges.get(dim, (None, None))) for dim in range(tensor.ndim))]

    def watch(self, models: Sequence[NamedModel], watcher: CallWatcher) -> Removable:
        """Hook the Cells that the watcher wants.

        Raises:
            SessionError: there are no Cell calls in Python, because whole nets are compiled.
        """
        check_calls("token_range and the setting 'load' follow calls of Cells", "leave them away, or run")
        return CellWatch(models, watcher)

    def watch_data(self, models: Sequence[NamedModel], watcher: CallWatcher) -> Removable:
        """Hook the Cells that the watcher wants; in GRAPH_MODE, pass it what comes out of the graphs in this window."""
        if not graph_mode():
            return self.watch(models, watcher)
        self._graph_watchers.append(watcher)
        return Removal(partial(self._graph_watchers.remove, watcher))

    def fix_calls(self, fixer: CallFixer, models: Sequence[NamedModel]) -> Removable:
        """Replace results of functions, and of operators that Cells hold, in the dynamic graph.

        Raises:
            PluginError: a static graph is compiled; or calls are to be computed on the host.
        """
        from msprobe.mindspore._fix import FixedCalls  # hardly ever needed

        if graph_mode() or fixer.on_host:
            what = "computes no calls on the host; take 'improve_precision'" if fixer.on_host else "needs PYNATIVE_MODE"
            raise PluginError(f"'handler_type' 'fix' for mindspore {what}")
        return FixedCalls(fixer, self._apis_of(RiskLevel.ALL), models)

    def watch_random(
        self, draws: Callable[[RandomDraw], Any], *, has_dropout: bool = False, has_seeding: bool = False
    ) -> Callable[[], None]:
        """Patch random functions."""
        return watch_random(draws, has_dropout=has_dropout, has_seeding=has_seeding)

    def perturb(self, models: Sequence[NamedModel], perturbation: Perturbation, seed: int) -> Removable:
        """Hook Cells.

        Raises:
            SessionError: there are no Cell calls in Python.
        """
        check_calls("'perturb' changes what calls of Cells give")
        return perturb(models, perturbation, seed)

    def training_state(self, models: Sequence[Any], others: Sequence[Any]) -> TrainingState:
        """Copy the state of a training in the dynamic graph."""
        return NetState(models, others)

    def has_state(self, value: Any) -> bool:
        """Whether it holds parameters."""
        return has_parameters(value)

    def raised_modules(self, models: Sequence[NamedModel]) -> RaisedModules:
        """Prepare to raise Cells.

        Raises:
            SessionError: there are no Cell calls in Python.
        """
        from msprobe.mindspore._raise import RaisedCells  # hardly ever needed

        check_calls("bisect changes what calls of Cells compute")
        return RaisedCells(models, self._apis_of(RiskLevel.ALL))

    def load(self, path: Path, like: Any) -> Any:
        """Return the tensor that ``save`` wrote to ``path``, as a replacement for ``like``."""
        from msprobe_core.store import read_tensor  # not needed for recording

        return _in_place_of(like, Tensor(read_tensor(path), dtype=like.dtype))

    def rebuild(self, content: TensorContent, like: Any) -> Any:
        """Return the tensor with these elements, as a replacement for ``like``."""
        stored = np.asarray(content.data).view(DTYPES[content.dtype]).reshape(content.shape)
        values = widen(stored, content.dtype)
        is_narrow = values.dtype != stored.dtype  # not a NumPy dtype; MindSpore narrows it again without loss
        return _in_place_of(like, Tensor(values, dtype=getattr(ms, content.dtype)) if is_narrow else Tensor(values))

    def snapshot(self, tensor: Any) -> Any:
        """Return a contiguous copy on the tensor's device; ``None`` if it has no plain elements."""
        if self._defers and isinstance(tensor, Tensor):
            with RecordingGuard():
                return copied(tensor) if tensor.dtype in WITH_ARITHMETIC else None
        values = values_of(tensor)
        return None if values is None else values.copy()

    def content(self, snapshot: Any) -> TensorContent:
        """Return the bytes of a copy, fetched from its device."""
        return _fetched(snapshot).content()

    def save(self, snapshot: Any, path: Path) -> None:
        """Write a copy as a ``.npy`` file; bfloat16 as float32."""
        _fetched(snapshot).save(path)

    def dump_kernels(self, options: KernelOptions) -> KernelDump:
        """Make MindSpore dump the kernels of this process; see `msprobe_core.plugin.KernelDumper`."""
        return dump_kernels(options)


def _in_place_of(like: Any, loaded: Any) -> Any:
    """Return the tensor with the ``requires_grad`` of ``like``."""
    return loaded.requires_grad_(True) if like._requires_grad else loaded


def _fetched(snapshot: Any) -> HostValues:
    try:
        values = values_of(snapshot)
    except UserCodeError as error:
        raise error.error from None  # on the writer's thread, which handles it like any other
    assert values is not None  # otherwise there would be no snapshot
    return values


class _Attachment(PlacedAttachment[ApiCalls]):
    """Everything that is installed between ``start`` and ``stop``."""

    def __init__(
        self,
        models: Sequence[NamedModel],
        options: AttachOptions,
        recorder: CallRecorder,
        apis: ApiPatches | None,
        graphs: GraphTaps | None,
    ) -> None:
        super().__init__(recorder, RecordingGuard, ApiCalls)
        self._models = models
        self._options = options
        self._apis = apis
        self._graphs = graphs
        self.install_all()

    def install(self) -> None:
        """Install what the level requires."""
        if self._options.level.has_modules and not graph_mode():
            hooks = CellHooks(self._models, self.recorder, self.unsettled, _visit)
            self.place(hooks.install, hooks.remove)
        apis = self._apis
        if apis is None:
            return
        calls, communication = self.calls, _communication()
        self.place(lambda: communication.install(self.recorder), communication.remove)
        primitives = PrimitivePatches(self._models, calls, RiskLevel(self._options.risk_level))
        self.place(primitives.install, primitives.remove)
        jit = JitPatches(calls, apis.step_aside)
        self.place(jit.install, jit.remove)
        self.place(lambda: apis.install(calls), apis.remove)

    def detach(self) -> None:
        """Remove everything in reverse order."""
        super().detach()
        if self._graphs is not None:
            self._graphs.detach()

    def release(self) -> None:
        """Stop receiving values from graphs; the hooks are already removed."""
        if self._graphs is not None:
            self._graphs.release()

    def is_compiling(self) -> bool:
        """Whether a function runs only to be traced; other compilers read source instead of calling."""
        return is_tracing()


@cache
def _communication() -> CommunicationPatches:
    return CommunicationPatches(inside)


def _visit() -> None:
    return None
