"""Run verl's whole `main_ppo` on CPUs: PPO with a critic, FSDP2 workers, packing, batches balanced over ranks.

    python train.py --work DIRECTORY [--record FILE] [--fault skip_layer] [--workers 2] [--v0] [OVERRIDE ...]

``--record`` names a configuration of msprobe's plugin for verl (see docs/verl.md).
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tiny import make
from verl_cpu_faults import FAULTS, OF_ENGINE

HERE = Path(__file__).resolve().parent

_ACTOR = "actor_rollout_ref.actor"
_REF = "actor_rollout_ref.ref"
_ROLLOUT = "actor_rollout_ref.rollout"
_MODEL = "actor_rollout_ref.model"


def overrides(work, *, workers, is_v1, steps, ray_directory):
    """Return the settings of this run that differ from verl's defaults."""
    return [
        f"trainer.use_v1={is_v1}", "trainer.device=cpu", "trainer.nnodes=1", f"trainer.n_gpus_per_node={workers}",
        f"trainer.total_training_steps={steps}", "trainer.total_epochs=1", "trainer.logger=[\"console\"]",
        "trainer.val_before_train=False", "trainer.test_freq=-1", "trainer.save_freq=-1", "trainer.balance_batch=True",
        f"trainer.default_local_dir={work / 'checkpoints'}",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        f"+ray_kwargs.ray_init.num_gpus={workers}", "ray_kwargs.ray_init.num_cpus=16",
        "+ray_kwargs.ray_init.include_dashboard=False", "+ray_kwargs.ray_init.object_store_memory=300000000",
        f"+ray_kwargs.ray_init._temp_dir={ray_directory}",
        f"data.train_files={work / 'train.parquet'}", f"data.val_files={work / 'val.parquet'}",
        "data.train_batch_size=4", "data.max_prompt_length=48", "data.max_response_length=16",
        "data.dataloader_num_workers=0", "data.shuffle=False",
        "reward.num_workers=1", f"reward.custom_reward_function.path={HERE / 'reward.py'}",
        "algorithm.adv_estimator=gae", "algorithm.use_kl_in_reward=False",
        f"{_MODEL}.path={work / 'model'}", f"{_MODEL}.enable_gradient_checkpointing=False",
        f"{_MODEL}.use_remove_padding=True", f"+{_MODEL}.override_config.attn_implementation=eager",
        f"{_ACTOR}.strategy=fsdp2", f"{_REF}.strategy=fsdp2", "critic.strategy=fsdp2",
        f"{_ACTOR}.use_torch_compile=False", f"{_ACTOR}.fsdp_config.use_torch_compile=False",
        f"{_REF}.fsdp_config.use_torch_compile=False", f"{_REF}.fsdp_config.model_dtype=fp32",
        f"+{_ACTOR}.fsdp_config.mixed_precision.param_dtype=fp32",
        f"+{_REF}.fsdp_config.mixed_precision.param_dtype=fp32",
        f"{_ACTOR}.ppo_mini_batch_size=4", f"{_ACTOR}.ppo_micro_batch_size_per_gpu=4", f"{_ACTOR}.use_kl_loss=True",
        f"{_ACTOR}.optim.lr=1e-2",
        f"{_ROLLOUT}.name=hfcpu", f"{_ROLLOUT}.n=2", f"{_ROLLOUT}.tensor_model_parallel_size=1",
        f"{_ROLLOUT}.calculate_log_probs=True", f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu=4",
        f"{_REF}.log_prob_micro_batch_size_per_gpu=4", f"{_ROLLOUT}.agent.num_workers=1",
        f"{_ROLLOUT}.n_gpus_per_node={workers}", f"{_ROLLOUT}.temperature=1.0",
        f"critic.model.path={work / 'model'}", "+critic.model.override_config.attn_implementation=eager",
        "critic.model.enable_gradient_checkpointing=False", "critic.model.use_remove_padding=True",
        "critic.ppo_micro_batch_size_per_gpu=4", "critic.ppo_mini_batch_size=4", "critic.fsdp.use_torch_compile=False",
        "+critic.fsdp.mixed_precision.param_dtype=fp32",
    ]  # fmt: skip


def environment(record, fault, dtype):
    """Return the environment of the job."""
    found = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "VERL_USE_EXTERNAL_MODULES": "verl_cpu_ext", "HYDRA_FULL_ERROR": "1", "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "HF_HUB_OFFLINE": "1", "RAY_DEDUP_LOGS": "0", "PYTHONWARNINGS": "ignore",
        "RAY_gcs_server_request_timeout_seconds": "600",  # the default of one minute is too short on a busy machine
    }  # fmt: skip
    if record:
        found["MSPROBE_VERL"] = str(Path(record).absolute())
    if fault:
        found["HFSERVER_BUG" if fault in OF_ENGINE else "VERL_CPU_FAULT"] = fault
    if dtype:
        found["HFSERVER_DTYPE"] = dtype
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", required=True, help="directory for the tiny model and its data")
    parser.add_argument("--record", help="configuration of msprobe's plugin; without it nothing is recorded")
    parser.add_argument("--fault", choices=[*OF_ENGINE, *FAULTS], help="what goes wrong")
    parser.add_argument("--rollout-dtype", help="what the serving engine computes in, such as bfloat16")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--v0", action="store_true", help="verl's older trainer")
    parser.add_argument("overrides", nargs="*", help="further settings of verl")
    given = parser.parse_args()
    work = make(Path(given.work).absolute())
    ray_directory = os.environ.get("RAY_TMPDIR", "/tmp/ray")
    settings = overrides(
        work, workers=given.workers, is_v1=not given.v0, steps=given.steps, ray_directory=ray_directory
    )
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *settings, *given.overrides]
    return subprocess.run(
        command, env=environment(given.record, given.fault, given.rollout_dtype), cwd=work, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
