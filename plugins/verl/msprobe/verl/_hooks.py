"""The table of hooks: modules, classes and methods of verl and the engines, and the wrapper for each; attaches them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from msprobe.verl._config import VerlConfig
from msprobe.verl._import_hooks import AfterImport, ImportWatch, after_import
from msprobe.verl._process_recording import ProcessRecording
from msprobe.verl._wrapping import Method
from msprobe_core.rl import HookStatus, RLStage

Wrap = Callable[[Method], Method]
Loader = Callable[[], Wrap]

_MARK = "_msprobe_wraps"


@dataclass(frozen=True)
class HookPoint:
    """One method or function that is wrapped.

    Attributes:
        hook: What it records.
        module: Module that defines it.
        owner: Its class; ``None`` for a function of the module; ``*`` for all classes of the module that define it.
        name: Its name.
        load: Returns the wrapper, and imports its code.
        since: Versions of verl, or of the engine, that have it.
        is_optional: Whether its absence is no loss, because other versions have another one instead.
    """

    hook: str
    module: str
    owner: str | None
    name: str
    load: Loader
    since: str = "0.8"
    is_optional: bool = False

    @property
    def target(self) -> str:
        """Module and function, as reports write them."""
        return ".".join(part for part in (self.module, self.owner, self.name) if part)

    def attach(self, module: ModuleType) -> tuple[HookStatus, str | None]:
        """Wrap it in an imported module; return the resulting status, and the reason if it failed."""
        owners = self._owners(module)
        if not owners:
            what = f"there is no {self.owner or self.name}"
            return HookStatus.ABSENT, what if self.owner != "*" else f"no class defines {self.name}"
        found = [owner for owner in owners if callable(getattr(owner, self.name, None))]
        if not found:
            return HookStatus.ABSENT, f"there is no {self.name}"
        wrap = self.load()
        for owner in found:
            original = vars(owner).get(self.name) or getattr(owner, self.name)
            if isinstance(original, staticmethod | classmethod):
                return HookStatus.FAILED, f"{self.name} is a {type(original).__name__}"
            if getattr(original, _MARK, False):
                continue
            wrapped = wrap(original)
            setattr(wrapped, _MARK, True)
            setattr(owner, self.name, wrapped)
        return HookStatus.ATTACHED, None

    def _owners(self, module: ModuleType) -> list[Any]:
        if self.owner is None:
            return [module]
        if self.owner == "*":
            classes = [value for value in vars(module).values() if isinstance(value, type)]
            return [cls for cls in classes if cls.__module__ == module.__name__ and self.name in vars(cls)]
        owner = getattr(module, self.owner, None)
        return [] if owner is None else [owner]


def attach_all(recording: ProcessRecording, points: Sequence[HookPoint], module: ModuleType) -> None:
    """Attach all hooks of one module; raises nothing, and records the status of each in the recording."""
    for point in points:
        try:
            status, reason = point.attach(module)
        except Exception as error:  # noqa: BLE001  # raised by code of an unknown version
            status, reason = HookStatus.FAILED, f"{type(error).__name__}: {error}"
        if status is HookStatus.ABSENT and point.is_optional:
            continue
        recording.note_hook(point.hook, point.target, status, reason)


def _from(module: str, name: str, *args: Any) -> Loader:
    """Return what imports a wrapper from a module of this package, or has a function there make it of arguments."""

    def load() -> Wrap:
        found = getattr(import_module(f"msprobe.verl.{module}"), name)
        return found(*args) if args else found

    return load


_worker, _driver, _engine = (partial(_from, module) for module in ("_worker", "_driver", "_engines"))


def _stage(stage: RLStage) -> Loader:
    return _worker("stage_method", stage.value)


_ENGINES = "verl.workers.engine"
_WORKERS = "verl.workers.engine_workers"
_ACTOR = "ActorRolloutRefWorker"
_V0, _V1 = "verl.trainer.ppo.ray_trainer", "verl.trainer.ppo.v1.trainer_base"


def _step_points(engine: str) -> list[HookPoint]:
    module = f"{_ENGINES}.{engine}.transformer_impl"
    step = "pipeline_step_method" if engine in {"megatron", "mindspeed"} else "step_method"
    return [
        # VeOmni's engines inherit it from FSDP's.
        HookPoint("micro-batches", module, "*", "forward_step", _worker(step), is_optional=engine == "veomni"),
        HookPoint("gradient norm", module, "*", "optimizer_step", _worker("optimizer_method")),
        HookPoint("weights sent", module, "*", "get_per_tensor_param", _worker("export_method")),
    ]


def _driver_points(module: str, owner: str, since: str) -> list[HookPoint]:
    tells = ("_compute_old_log_prob", "_compute_ref_log_prob", "_compute_values")
    return [
        HookPoint("run", module, owner, "fit", _driver("fit_method"), since),
        *(HookPoint("trainer step", module, owner, name, _driver("driver_method"), since) for name in tells),
        *(
            HookPoint("batch", module, owner, name, _driver("update_method"), since)
            for name in ("_update_critic", "_update_actor")
        ),
    ]


def _older_points(module: str) -> list[HookPoint]:
    """Return the stages of workers before 0.8, which have one class per role."""
    actor = {
        "compute_log_prob": RLStage.ACTOR_LOG_PROB, "compute_ref_log_prob": RLStage.REF_LOG_PROB,
        "update_actor": RLStage.ACTOR_UPDATE,
    }  # fmt: skip
    critic = {"compute_values": RLStage.VALUES, "update_critic": RLStage.CRITIC_UPDATE}
    return [
        HookPoint("stage", module, owner, name, _worker("older_stage_method", stage.value), "0.6-0.7")
        for owner, methods in (("ActorRolloutRefWorker", actor), ("CriticWorker", critic))
        for name, stage in methods.items()
    ]


HOOK_POINTS: Sequence[HookPoint] = (
    HookPoint("stage", _WORKERS, _ACTOR, "compute_log_prob", _stage(RLStage.ACTOR_LOG_PROB)),
    HookPoint("stage", _WORKERS, _ACTOR, "compute_ref_log_prob", _stage(RLStage.REF_LOG_PROB)),
    HookPoint("stage", _WORKERS, _ACTOR, "update_actor", _stage(RLStage.ACTOR_UPDATE)),
    HookPoint("stage", _WORKERS, "TrainingWorker", "infer_batch", _worker("critic_method", RLStage.VALUES.value)),
    HookPoint(
        "stage", _WORKERS, "TrainingWorker", "train_mini_batch", _worker("critic_method", RLStage.CRITIC_UPDATE.value)
    ),
    HookPoint("weights sent", _WORKERS, _ACTOR, "update_weights", _worker("send_method"), "0.9"),
    HookPoint("mini-batches", f"{_ENGINES}.base", "BaseEngine", "train_batch", _worker("batch_method")),
    HookPoint("mini-batches", f"{_ENGINES}.base", "BaseEngine", "infer_batch", _worker("batch_method")),
    *_step_points("fsdp"),
    *_step_points("megatron"),
    *_step_points("veomni"),
    *_step_points("torchtitan"),
    *_step_points("automodel"),
    *_driver_points(_V0, "RayPPOTrainer", "0.8"),
    *_driver_points(_V1, "PPOTrainer", "0.9"),
    HookPoint("metrics", "verl.utils.tracking", "Tracking", "log", _driver("log_method")),
    HookPoint(
        "environment", "verl.trainer.constants_ppo", None, "get_ppo_ray_runtime_env", _driver("environment_method")
    ),
    HookPoint(
        "rewards", "verl.experimental.reward_loop.reward_loop", "RewardLoopWorker", "compute_score",
        _from("_reward", "score_method"), "0.9",
    ),
    HookPoint(
        "weights received (vLLM)", "verl.workers.rollout.vllm_rollout.utils", "vLLMColocateWorkerExtension",
        "update_weights_from_ipc", _engine("vllm_update_method"),
    ),
    HookPoint(
        "weights arriving (vLLM)", "verl.workers.rollout.vllm_rollout.utils", "vLLMColocateWorkerExtension",
        "_update_weights", _engine("vllm_arrival_method"), is_optional=True,
    ),
    HookPoint(
        "waking (vLLM)", "vllm.v1.worker.gpu_worker", "Worker", "wake_up", _engine("vllm_wake_method"), "vLLM 0.11",
    ),
    HookPoint(
        "requests (vLLM)", "vllm.v1.worker.gpu_model_runner", "GPUModelRunner", "execute_model",
        _engine("vllm_execute_method"), "vLLM 0.11",
    ),
    HookPoint(
        "forwards (vLLM)", "vllm.v1.worker.gpu_model_runner", "GPUModelRunner", "_model_forward",
        _engine("vllm_forward_method"), "vLLM 0.11",
    ),
    HookPoint(
        "forwards (SGLang)", "sglang.srt.model_executor.model_runner", "ModelRunner", "forward",
        _engine("sglang_forward_method"), "SGLang 0.5",
    ),
    HookPoint(
        "requests (SGLang)", "sglang.srt.managers.scheduler", "Scheduler", "process_batch_result",
        _engine("sglang_result_method"), "SGLang 0.5",
    ),
    *_older_points("verl.workers.fsdp_workers"),
    *_older_points("verl.workers.megatron_workers"),
)  # fmt: skip
"""All hooks. Modules that a version of verl lacks are never imported, so their hooks stay pending."""


def switch_on(config: VerlConfig, others: Mapping[str, AfterImport] | None = None) -> ImportWatch:
    """Attach all hooks, now or as soon as their modules are imported.

    Args:
        config: What to record.
        others: Further actions after the import of a module, by its name.
    """
    recording = ProcessRecording.switch_on(config)
    by_module: dict[str, list[HookPoint]] = {}
    for point in HOOK_POINTS:
        by_module.setdefault(point.module, []).append(point)
        recording.note_hook(point.hook, point.target, HookStatus.WAITING, "it has not been imported")
    actions: dict[str, AfterImport] = {module: _attacher(recording, points) for module, points in by_module.items()}
    return after_import({**actions, **(others or {})})


def _attacher(recording: ProcessRecording, points: list[HookPoint]) -> AfterImport:
    def attach(module: ModuleType) -> None:
        attach_all(recording, points, module)
        if recording.role != "process":
            recording.save()

    return attach
