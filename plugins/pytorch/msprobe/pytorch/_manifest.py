"""What the manifest of a run says of PyTorch: versions, device, switches, random generators, and process groups."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed
from torch import Tensor

from msprobe.pytorch._manifest_model import Describer
from msprobe.pytorch._manifest_optimizers import SteppedOptimizers, optimizers_of
from msprobe.pytorch._manifest_rows import row_hashes
from msprobe.pytorch._quiet import RecordingGuard
from msprobe.pytorch._random_state import devices_in_use
from msprobe.pytorch._shadow import AUTOCAST_DEVICES
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
from msprobe_core.plugin import NamedModel, PendingRows, Removable

_Read = Callable[[], Any]

_MEGATRON_ARGUMENTS = ("megatron.training.global_vars", "megatron.global_vars", "megatron.training")
"""Modules that may hold the arguments of a training with Megatron."""


class Describing:
    """See `msprobe_core.plugin.DescribingFramework`."""

    _stepped: SteppedOptimizers | None = None

    def run_facts(self, models: Sequence[NamedModel]) -> RunFacts:
        """Read everything from live objects."""
        switches = _switches()  # the guard would change some of them
        facts: RunFacts | None = None
        with RecordingGuard():
            describer = Describer()
            facts = RunFacts(
                framework=Library(name="torch", version=str(torch.__version__), git=torch.version.git_version),
                device=_device(),
                switches=switches,
                generators=(*common_generators(), *_generators()),
                models=tuple(describer.model(model) for model in models),
                groups=tuple(_groups(models)),
                settings=_megatron_arguments(),
            )
        assert facts is not None
        return facts

    def forward_switches(self) -> Mapping[str, Scalar]:
        """Read what contexts around a forward set."""
        return _switches(_OF_FORWARD)

    def optimizers_of(self, models: Sequence[NamedModel]) -> Sequence[Optimizer]:
        """Describe those that have stepped or, if none has, those that exist."""
        found: list[Optimizer] = []
        with RecordingGuard():
            found += optimizers_of(models, self._stepped)
        return found

    def watch_optimizers(self) -> Removable:
        """Hook the steps of all optimizers."""
        if self._stepped is None:
            self._stepped = SteppedOptimizers()
        return self._stepped.watch()

    def row_hashes(self, tensor: Tensor) -> PendingRows | None:
        """Hash on the tensor's own device."""
        with RecordingGuard():
            return row_hashes(tensor)
        return None


# --- the device -------------------------------------------------------------------------------------------------------


def _device() -> Device:
    """Return the accelerator that the process has begun to use; the host if there is none."""
    name, backend = next(devices_in_use(), ("", None))
    if backend is not None:
        return Device(
            kind=name,
            name=_ask(lambda: str(backend.get_device_name(backend.current_device()))),
            driver=_ask(lambda: _driver_of(name)),
            runtime=_ask(lambda: _runtime_of(name)),
            count=_ask(backend.device_count) or 0,
        )
    cpu: Any = torch.backends.cpu
    return Device(kind="cpu", name=_ask(lambda: str(cpu.get_cpu_capability())), count=1)


def _driver_of(name: str) -> str | None:
    if name != "cuda":
        return None
    version = cast("Any", torch._C)._cuda_getDriverVersion()
    return f"{version // 1000}.{version % 1000 // 10}"


def _runtime_of(name: str) -> str | None:
    version: Any = torch.version
    if name == "cuda":
        return version.cuda or version.hip
    return getattr(version, "cann", None) if name == "npu" else getattr(version, name, None)


# --- switches ---------------------------------------------------------------------------------------------------------


def _switches(names: Iterable[str] | None = None) -> dict[str, Scalar]:
    """Return what changes the arithmetic of the whole process; what a release lacks is left out."""
    found: dict[str, Scalar] = {}
    for name in _READERS if names is None else names:
        try:
            value = _READERS[name]()
        except Exception:  # noqa: BLE001, S112  # a release without it, or a device that is not there
            continue
        found |= flattened(value, prefix=name)
    return found


def _autocast() -> dict[str, Any]:
    found: dict[str, Any] = {"cache": torch.is_autocast_cache_enabled()}
    for device in AUTOCAST_DEVICES:
        try:
            is_enabled = torch.is_autocast_enabled(device)
            dtype: Any = torch.get_autocast_dtype(device)
        except (TypeError, RuntimeError, AttributeError):
            continue
        found[device] = str(dtype).removeprefix("torch.") if is_enabled else False
    return found


def _settings_at(root: Any, path: str, *names: str) -> dict[str, Any]:
    """Return settings by their names; those that a release lacks are left out."""
    for part in path.split("."):
        root = getattr(root, part, None)
    return {name: value for name in names if (value := getattr(root, name, None)) is not None}


def _precisions() -> dict[str, Any]:
    """Return the precision of float32 in kernels, as releases since 2.9 set it for each back end and operator."""
    name = "fp32_precision"
    found = {"all": _settings_at(torch, "backends", name)}
    for path in ("cuda.matmul", "cudnn", "cudnn.conv", "cudnn.rnn", "mkldnn", "mkldnn.matmul", "mkldnn.conv"):
        found[path] = _settings_at(torch.backends, path, name)
    return {path: values[name] for path, values in found.items() if values}


def _attention_backends() -> dict[str, bool]:
    cuda: Any = torch.backends.cuda
    names = ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp", "fp16_bf16_reduction_math_sdp")
    asked = {name: getattr(cuda, f"{name}_enabled", None) for name in names}
    asked["fp16_bf16_reduction_math_sdp"] = getattr(cuda, "fp16_bf16_reduction_math_sdp_allowed", None)
    return {name: bool(ask()) for name, ask in asked.items() if ask is not None}


def _compiler() -> dict[str, Any]:
    """Return settings of the compiler that change results, if it is imported."""
    found: dict[str, Any] = {}
    inductor = sys.modules.get("torch._inductor.config")
    for name in ("emulate_precision_casts", "fallback_random", "max_autotune", "force_same_precision", "freezing"):
        if inductor is not None and hasattr(inductor, name):
            found[name] = getattr(inductor, name)
    dynamo = sys.modules.get("torch._dynamo.config")
    if dynamo is not None and hasattr(dynamo, "disable"):
        found["disable"] = dynamo.disable
    return found


_TWO = float("2")
"""Not a literal, with which the compiler would divide."""

_OF_FORWARD = ("autocast", "grad_enabled", "inference_mode", "default_dtype")
"""Switches that contexts around a forward set."""

_READERS: Mapping[str, _Read] = {
    "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
    "fill_uninitialized_memory": lambda: cast("Any", torch.utils).deterministic.fill_uninitialized_memory,
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "fp32_precision": _precisions,
    "cuda.matmul": lambda: _settings_at(
        torch.backends, "cuda.matmul", "allow_tf32", "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction", "allow_fp16_accumulation",
    ),
    "cudnn": lambda: _settings_at(torch.backends, "cudnn", "enabled", "benchmark", "deterministic", "allow_tf32"),
    "mkldnn": lambda: _settings_at(torch.backends, "mkldnn", "enabled", "deterministic", "allow_tf32"),
    "npu.matmul": lambda: _settings_at(torch, "npu.matmul", "allow_hf32"),
    "npu.conv": lambda: _settings_at(torch, "npu.conv", "allow_hf32"),
    "cuda.libraries": lambda: {
        name: str(getattr(torch.backends.cuda, f"preferred_{name}_library")()).rpartition(".")[2]
        for name in ("blas", "linalg")
        if torch.cuda.is_initialized()  # some releases ask the device
    },
    "sdp": _attention_backends,
    "autocast": _autocast,
    "grad_enabled": torch.is_grad_enabled,
    "inference_mode": torch.is_inference_mode_enabled,
    "default_dtype": torch.get_default_dtype,
    "default_device": lambda: str(cast("Any", torch.utils)._device.CURRENT_DEVICE),
    "num_threads": torch.get_num_threads,
    "num_interop_threads": torch.get_num_interop_threads,
    "flush_denormal": lambda: sys.float_info.min / _TWO == 0,  # the processor's mode, which Python's numbers show
    "cpu_capability": lambda: cast("Any", torch.backends.cpu).get_cpu_capability(),
    "anomaly_mode": torch.is_anomaly_enabled,
    "compile": _compiler,
}  # fmt: skip


# --- random generators ------------------------------------------------------------------------------------------------


def _generators() -> Iterator[Generator]:
    """Yield the state of each generator; nothing is drawn, and no device is begun to be used."""
    state = torch.get_rng_state().numpy().tobytes()
    yield Generator(name="torch.cpu", state=digest_of(state), seed=_seed(torch.initial_seed()))
    for name, backend in devices_in_use():
        generators = getattr(backend, "default_generators", ())
        for index, generator in enumerate(generators):
            # The state of such a generator is on the host: its seed, and how far it has been advanced.
            state = _ask(lambda generator=generator: generator.get_state().numpy().tobytes())
            if state is not None:
                seed = _ask(generator.initial_seed)
                yield Generator(
                    name=f"torch.{name}:{index}", state=digest_of(state), seed=None if seed is None else _seed(seed)
                )
    tracker = _ask(_megatron_tracker)
    for name, state in sorted((tracker or {}).items()):
        if isinstance(state, Tensor) and state.device.type == "cpu":
            yield Generator(name=f"megatron.{name}", state=digest_of(state.numpy().tobytes()))


def _seed(seed: int) -> int | None:
    return seed if seed < 1 << 63 else None


def _megatron_tracker() -> Mapping[str, Any]:
    """Return the states that Megatron keeps for dropout in parallel regions."""
    module: Any = sys.modules.get("megatron.core.tensor_parallel.random")
    return {} if module is None else module._CUDA_RNG_STATE_TRACKER.get_states()


# --- process groups ---------------------------------------------------------------------------------------------------


def _groups(models: Sequence[NamedModel]) -> list[Group]:
    """Return the groups that this process is in, and the dimensions of the meshes of its parameters."""
    found: list[Group] = []
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return found
    world: Any = cast("Any", distributed.distributed_c10d)._world
    for group, ranks in list(world.pg_group_ranks.items()):
        if not isinstance(group, distributed.ProcessGroup):
            continue
        name = getattr(group, "group_desc", "") or ""
        if name in ("", "undefined"):
            name = world.pg_names.get(group, "")
        backend = world.pg_map.get(group, (None,))[0]
        found.append(Group(name=str(name), ranks=tuple(ranks), backend=None if backend is None else str(backend)))
    found += [group for group in _meshes(models) if group not in found]
    return found


def _meshes(models: Sequence[NamedModel]) -> Iterator[Group]:
    seen: set[int] = set()
    for model in models:
        for parameter in model.model.parameters():
            mesh = getattr(parameter, "device_mesh", None)
            if mesh is None or id(mesh) in seen:
                continue
            seen.add(id(mesh))
            names = mesh.mesh_dim_names or tuple(str(dim) for dim in range(mesh.ndim))
            for dim, name in enumerate(names):
                ranks = _ask(lambda mesh=mesh, dim=dim: torch.distributed.get_process_group_ranks(mesh.get_group(dim)))
                if ranks is not None:
                    yield Group(name=f"mesh.{name}", ranks=tuple(ranks))


# --- settings of trainers ---------------------------------------------------------------------------------------------


def _megatron_arguments() -> dict[str, Scalar]:
    """Return the arguments of a training with Megatron, if it has parsed any."""
    for name in _MEGATRON_ARGUMENTS:
        module: Any = sys.modules.get(name)
        get = getattr(module, "get_args", None)
        if get is not None:
            given = _ask(get)
            if given is not None:
                return flattened(given)
    return {}


def _ask(read: _Read) -> Any:
    """Return what a library answers; ``None`` if it fails."""
    try:
        return read()
    except Exception:  # noqa: BLE001  # of a library in a state that it cannot describe
        return None
