"""A CPU platform for verl 0.9, which provides what verl requires of a device, without editing any file of verl.

Loaded by `verl_cpu_ext`, which verl imports if ``VERL_USE_EXTERNAL_MODULES=verl_cpu_ext`` is set.
"""

import contextlib
import sys
import types

import torch
import torch.distributed as dist
from verl.plugin.platform import PlatformBase, PlatformRegistry, platform_manager

_NOTHING = lambda *_, **__: None  # noqa: E731
_ZERO = lambda *_, **__: 0  # noqa: E731


def _device_module():
    """Return `torch.cpu`, completed with functions that only `torch.cuda` has."""
    module = types.ModuleType("torch_cpu_as_device")
    vars(module).update({name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("__")})
    for name in ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"):
        setattr(module, name, _ZERO)
    for name in (
        "empty_cache", "reset_peak_memory_stats", "ipc_collect", "manual_seed", "manual_seed_all", "set_device",
        "synchronize",
    ):  # fmt: skip
        setattr(module, name, _NOTHING)
    module.mem_get_info = lambda *_, **__: (8 << 30, 16 << 30)
    module.current_device = lambda: torch.device("cpu")
    module.get_device_name = lambda *_, **__: "CPU"
    module.is_available = lambda: True
    module.get_rng_state = lambda *_, **__: torch.get_rng_state()
    module.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self):
        return True

    def current_device(self):
        return torch.device("cpu")

    def device_count(self):
        return 1

    def set_device(self, device_index):
        pass

    def synchronize(self, device_index=None):
        pass

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def get_device_capability(self, device_id=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "VERL_CPU_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg):
        yield

    def profiler_start(self):
        pass

    def profiler_stop(self):
        pass

    def ray_resource_name(self):
        return "GPU"  # a Ray cluster of CPUs can be configured to offer this resource

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    def cudart(self):
        return None


def _init_process_group(original):
    def init(backend=None, *args, **kwargs):
        # verl requests cpu:gloo,{device}:{backend}
        return original("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    return init


def install():
    """Make the CPU verl's device in this process."""
    if not torch.accelerator.is_available():
        torch.Tensor.pin_memory = lambda self, *_, **__: self  # offloading of the reference pins memory on any device
    platform_manager._current_platform = PlatformCPU()
    for module in list(sys.modules.values()):  # modules that imported the name earlier
        if getattr(module, "__name__", "").startswith("verl.") and vars(module).get("device_name") == "cuda":
            module.device_name = "cpu"
    dist.init_process_group = _init_process_group(dist.init_process_group)


def register_engines(_module=None):
    """Allow FSDP's engines to run on the CPU."""
    import torch.distributed.fsdp._init_utils as fsdp
    import verl.workers.engine.fsdp.transformer_impl as engines
    from verl.workers.engine.base import EngineRegistry

    engines.device_name = "cpu"
    fsdp._check_module_states_for_sync_module_states = _NOTHING  # FSDP1 requires an accelerator
    kinds = {"language_model": engines.FSDPEngineWithLMHead, "value_model": engines.FSDPEngineWithValueHead}
    for kind, engine in kinds.items():
        for backend in ("fsdp", "fsdp2"):
            EngineRegistry._engines[kind][backend].setdefault("cpu", engine)


def use_eager_critic(module):
    """Load critics without flash attention, which verl always requests."""

    def load(local_path, torch_dtype, model_config, trust_remote_code):
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path, dtype=torch_dtype, config=model_config, attn_implementation="eager",
            trust_remote_code=trust_remote_code,
        )  # fmt: skip

    module.load_valuehead_model = load
