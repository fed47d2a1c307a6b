"""What the manifest of a run says of MindSpore: settings, device, random generators, groups, and rows of the data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

import mindspore as ms
import numpy as np
from mindspore.communication import GlobalComm, get_group_size, get_process_group_ranks

from msprobe.mindspore._device import WITH_ARITHMETIC, device_target, is_host
from msprobe.mindspore._manifest_cells import described_models, kind_of_device
from msprobe.mindspore._manifest_optimizers import KnownOptimizers
from msprobe.mindspore._quiet import RecordingGuard
from msprobe.mindspore._reduce import values_of
from msprobe_core.fingerprint import hash_rows
from msprobe_core.manifest import (
    Device,
    Generator,
    Group,
    Library,
    Optimizer,
    RunFacts,
    Scalar,
    common_generators,
    digest_of,
    flattened,
)
from msprobe_core.plugin import MsprobeError, NamedModel, Removable, UserCodeError

_T = TypeVar("_T")

_seeds: Any = import_module("mindspore.common.seed")  # the package has a function of that name

_CONTEXT = (
    "deterministic", "jit_level", "jit_config", "jit_syntax_level", "ascend_config", "gpu_config", "infer_boost",
    "enable_reduce_precision", "enable_graph_kernel", "graph_kernel_flags", "memory_optimize_level", "exec_order",
    "pynative_synchronize", "check_bprop", "runtime_num_threads",
)  # fmt: skip
"""Fields of the context that can change results. The depth of calls, directories and the like are left out."""

_ONLY_ON = {"ascend_config": "Ascend", "enable_reduce_precision": "Ascend", "gpu_config": "GPU"}
"""Fields of one kind of device. MindSpore warns of each that is asked for on another."""

_PARALLEL = (
    "parallel_mode", "search_mode", "gradients_mean", "gradient_fp32_sync", "loss_repeated_mean", "full_batch",
    "dataset_strategy", "enable_parallel_optimizer", "optimizer_weight_shard_size", "parameter_broadcast", "device_num",
    "pipeline_stages", "grad_accumulation_step", "enable_alltoall", "comm_fusion", "all_reduce_fusion_config",
)  # fmt: skip

_PRECISION = ("precision_mode", "op_precision_mode", "matmul_allow_hf32", "conv_allow_hf32")
"""Settings of Ascend's operators; `mindspore.device_context.ascend.op_precision`."""


class Describing:
    """See `msprobe_core.plugin.DescribingFramework` and `msprobe_core.plugin.UpdateObservingFramework`."""

    _defers: bool
    _known: KnownOptimizers | None = None

    def run_facts(self, models: Sequence[NamedModel]) -> RunFacts:
        """Return what MindSpore is set to, and what the nets are."""
        return _quietly(
            lambda: RunFacts(
                framework=Library(name="mindspore", version=ms.__version__, git=_commit()),
                device=Device(kind=kind_of_device(), name=_product()),
                switches=_switches(),
                generators=_generators(),
                models=described_models(models),
                groups=_groups(),
            )
        )

    def watch_optimizers(self) -> Removable:
        """Remember the optimizers that are called, and the Cells that call them."""
        return self._optimizers.watch()

    def optimizers_of(self, models: Sequence[NamedModel]) -> Sequence[Optimizer]:
        """Return the optimizers that have been called, or else those that exist.

        Learning rates are tensors: of a device they are fetched when a window ends, which waits for it anyway.
        """
        return _quietly(lambda: self._optimizers.of(models))

    @property
    def _optimizers(self) -> KnownOptimizers:
        if self._known is None:
            self._known = KnownOptimizers()
        return self._known

    def row_hashes(self, tensor: Any) -> _Rows | None:
        """Hash the rows of a tensor: those on the host at once, and of a device from a copy there."""
        if self._defers and isinstance(tensor, ms.Tensor):
            return _Rows(_quietly(tensor.copy)) if tensor.ndim and tensor.dtype in WITH_ARITHMETIC else None
        hashes = _hashes_of(tensor)
        return None if hashes is None else _Known(hashes)


def _quietly(read: Callable[[], _T]) -> _T:
    """Call a function outside of any graph.

    Raises:
        UserCodeError: an operator that the training has called has failed; for the caller to handle.
    """
    result: list[_T] = []
    failed: UserCodeError | None = None
    with RecordingGuard():
        try:
            result.append(read())
        except UserCodeError as error:
            failed = error
    if failed is not None:
        raise failed
    return result[0]


class _Rows:
    """Waits on a device; see `msprobe_core.plugin.PendingRows`."""

    def __init__(self, copy: Any) -> None:
        self._copy = copy

    def hashes(self) -> Sequence[int] | None:
        """Fetch the copy and hash its rows."""
        return _hashes_of(self._copy)


class _Known(_Rows):
    """Hashes of a tensor on the host."""

    def hashes(self) -> Sequence[int] | None:
        """Return them."""
        return cast("Sequence[int]", self._copy)


def _hashes_of(tensor: Any) -> Sequence[int] | None:
    try:
        values = values_of(tensor)
    except MsprobeError:  # a static graph did not pass it out, or its kernel has not written it
        return None
    if values is None or not values.array.ndim:
        return None
    return np.ascontiguousarray(hash_rows(np.ascontiguousarray(values.array))).view(np.uint64).tolist()


def _switches() -> dict[str, Scalar]:
    target = device_target()
    found: dict[str, Any] = {"mode": "GRAPH" if ms.get_context("mode") == ms.GRAPH_MODE else "PYNATIVE"}
    for name in _CONTEXT:
        if _ONLY_ON.get(name, target) != target:
            continue
        with suppress(Exception):  # not in this release, or not of this device
            found[name] = ms.get_context(name)
    for name in _PARALLEL:
        with suppress(Exception):
            found[f"parallel.{name}"] = ms.get_auto_parallel_context(name)
    if not is_host():
        found |= _precision()
    datasets: Any = sys.modules.get("mindspore.dataset")
    if datasets is not None:
        found["dataset.seed"] = datasets.config.get_seed()
    return flattened(found)


def _precision() -> Mapping[str, Any]:
    native: Any = import_module("mindspore._c_expression")
    found: dict[str, Any] = {}
    for name in _PRECISION:
        with suppress(Exception):  # as above
            found[name] = getattr(native.AscendOpPrecisionConf.get_instance(), name)()
    return found


def _generators() -> tuple[Generator, ...]:
    found = common_generators()
    with suppress(Exception):  # not on this device; the others are known
        state = ms.get_rng_state().asnumpy().tobytes()
        found.append(Generator(name="mindspore", state=digest_of(state), seed=int(ms.initial_seed())))
        draws = repr((ms.get_seed(), sorted(_seeds._KERNEL_SEED.items()))).encode()
        found.append(Generator(name="mindspore.operators", state=digest_of(draws), seed=ms.get_seed()))
    return tuple(found)


def _commit() -> str | None:
    """Return the commit in the file that MindSpore's packages contain: ``__commit_id__ = '[sha1]:2d550373,…'``."""
    try:
        text = Path(str(ms.__file__)).with_name(".commit_id").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    commit = text.partition("[sha1]:")[2].partition(",")[0]
    return commit if commit.isalnum() else None


def _product() -> str | None:
    """Return the name of an Ascend chip, which the context knows without the device."""
    if is_host() or device_target() != "Ascend":
        return None
    with suppress(Exception):
        native: Any = import_module("mindspore._c_expression")
        return str(native.MSContext.get_instance().get_ascend_soc_version())
    return None


def _groups() -> tuple[Group, ...]:
    if not GlobalComm.INITED:
        return ()
    backend = str(GlobalComm.BACKEND)
    found = [Group(name=GlobalComm.WORLD_COMM_GROUP, ranks=tuple(range(get_group_size())), backend=backend)]
    with suppress(Exception):  # not public
        made: Any = import_module("mindspore.communication._comm_helper")._ExistingGroup
        for name in made.ITEMS:
            ranks = tuple(int(rank) for rank in get_process_group_ranks(name))
            found.append(Group(name=str(name), ranks=ranks, backend=backend))
    return tuple(found)
