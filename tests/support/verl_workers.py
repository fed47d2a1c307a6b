"""One step of PPO's stages in verl's own FSDP workers, without Ray and without a trainer.

    torchrun --nproc_per_node N verl_workers.py OUTPUT [--strategy fsdp2] [--packed] [--lora] [--debugger DIRECTORY]

Writes what came of it to ``OUTPUT.rank{R}.json``: log-probs, losses, gradient norms, and CRC-32 of all weights, which
runs with and without a recording must have alike. ``MSPROBE_VERL`` switches the recording on.
"""

import argparse
import json
import os
import sys
import zlib
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "verl_cpu"))

import verl
import verl.trainer
import verl_cpu_platform
from tiny import make

BATCH, PROMPT, RESPONSE = 8, 6, 8


def configuration(given, model):
    from hydra import compose, initialize_config_dir

    actor, ref, rollout = (f"actor_rollout_ref.{name}" for name in ("actor", "ref", "rollout"))
    overrides = [
        f"actor_rollout_ref.model.path={model}", "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        f"actor_rollout_ref.model.use_remove_padding={given.packed}",
        "+actor_rollout_ref.model.override_config.attn_implementation=eager",
        f"{actor}.strategy={given.strategy}", f"{ref}.strategy={given.strategy}", f"critic.strategy={given.strategy}",
        f"{actor}.fsdp_config.use_torch_compile=False", f"{actor}.use_torch_compile=False",
        f"{ref}.fsdp_config.use_torch_compile=False", f"{ref}.fsdp_config.model_dtype=fp32",
        f"+{actor}.fsdp_config.mixed_precision.param_dtype=fp32",
        f"+{ref}.fsdp_config.mixed_precision.param_dtype=fp32",
        f"{actor}.ppo_mini_batch_size=4", f"{actor}.ppo_micro_batch_size_per_gpu=2", f"{actor}.use_kl_loss=True",
        f"{actor}.optim.lr=1e-3", f"{actor}.optim.total_training_steps=10",
        f"{rollout}.name=vllm", f"{rollout}.log_prob_micro_batch_size_per_gpu=2",
        f"{ref}.log_prob_micro_batch_size_per_gpu=2",
    ]  # fmt: skip
    if given.lora:
        overrides += ["actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.model.lora_alpha=8"]
    directory = Path(verl.trainer.__file__).parent / "config"
    with initialize_config_dir(str(directory), version_base=None):
        return compose("ppo_trainer", overrides=overrides)


def batch(step):
    """Return a batch that every rank has alike, padded left and right."""
    from verl import DataProto

    generator = torch.Generator().manual_seed(step)
    prompts = torch.randint(6, 100, (BATCH, PROMPT), generator=generator)
    responses = torch.randint(6, 100, (BATCH, RESPONSE), generator=generator)
    prompt_mask = torch.ones(BATCH, PROMPT).long()
    prompt_mask[::2, :2] = 0
    response_mask = torch.ones(BATCH, RESPONSE).long()
    response_mask[1, 5:] = 0
    response_mask[4, 3:] = 0
    attention_mask = torch.cat([prompt_mask, response_mask], 1)
    rewards = torch.arange(BATCH)[:, None].float()
    last = response_mask.sum(1, keepdim=True) - 1
    return DataProto.from_dict(
        tensors={
            "prompts": prompts, "responses": responses, "input_ids": torch.cat([prompts, responses], 1),
            "attention_mask": attention_mask, "position_ids": (attention_mask.cumsum(1) - 1).clamp(min=0),
            "response_mask": response_mask,
            "token_level_rewards": torch.zeros(BATCH, RESPONSE).scatter(1, last, rewards),
        },
        non_tensors={"uid": np.array([f"u{i // 2}" for i in range(BATCH)], dtype=object)},
        meta_info={"temperature": 1.0, "global_steps": step - 1, "msprobe_step": step},
    )  # fmt: skip


def tensordict(data, **settings):
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import left_right_2_no_padding

    converted = left_right_2_no_padding(data.to_tensordict())
    tu.assign_non_tensor(converted, **settings)
    return converted


def padded(output, name, data):
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import no_padding_2_padding

    return no_padding_2_padding(tu.get(output, name), data).float()


class Step:
    """The stages of one step."""

    def __init__(self, actor, ref, debugger):
        self.actor, self.ref, self.debugger = actor, ref, debugger

    def recorded(self, worker, method, data):
        """Call a stage as published tutorials do it, with a debugger around it."""
        if self.debugger is None:
            return getattr(worker, method)(data)
        model = (worker.actor or worker.ref).engine.module
        self.debugger.start(model=model)
        result = getattr(worker, method)(data)
        self.debugger.stop()
        self.debugger.step()
        return result

    def run(self, mine):
        from verl.trainer.ppo.ray_trainer import compute_advantage
        from verl.utils import tensordict_utils as tu

        tokens = mine.batch["attention_mask"].sum(-1).tolist()
        found = {}
        data = tensordict(mine, calculate_entropy=True, compute_loss=False, global_token_num=tokens)
        log_probs = padded(self.recorded(self.actor, "compute_log_prob", data), "log_probs", data)
        data = tensordict(mine, calculate_entropy=False, compute_loss=False, global_token_num=tokens)
        ref_log_probs = padded(self.recorded(self.ref, "compute_ref_log_prob", data), "log_probs", data)
        mine.batch["old_log_probs"], mine.batch["ref_log_prob"] = log_probs, ref_log_probs
        mine = compute_advantage(mine, adv_estimator="grpo", num_repeat=2)
        data = tensordict(
            mine, calculate_entropy=True, distillation_use_topk=False, distillation_only=False, global_batch_size=4,
            mini_batch_size=4, epochs=1, seed=1, dataloader_kwargs={"shuffle": False}, compute_loss=True,
            temperature=1.0,
        )  # fmt: skip
        output = self.recorded(self.actor, "update_actor", data)
        metrics = tu.get(output, "metrics")
        found["log_probs"], found["ref_log_probs"] = log_probs.tolist(), ref_log_probs.tolist()
        for name in ("loss", "grad_norm", "actor/pg_loss"):
            found[name] = json.loads(json.dumps(metrics.get(name), default=str))
        return found


def weights_of(model):
    return {
        name: zlib.crc32(getattr(tensor, "to_local", lambda t=tensor: t)().detach().contiguous().numpy().tobytes())
        for name, tensor in model.state_dict().items()
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--work", required=True)
    parser.add_argument("--strategy", default="fsdp2")
    parser.add_argument("--packed", action="store_true")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--debugger", help="record as tutorials do, into this directory")
    given = parser.parse_args()
    torch.set_num_threads(1)
    verl_cpu_platform.install()
    verl_cpu_platform.register_engines()
    from verl.workers.engine_workers import ActorRolloutRefWorker

    config = configuration(given, make(given.work) / "model").actor_rollout_ref
    actor = ActorRolloutRefWorker(config=config, role="actor")
    actor.init_model()
    ref = ActorRolloutRefWorker(config=config, role="ref")
    ref.init_model()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    debugger = None
    if given.debugger:
        from msprobe.pytorch import PrecisionDebugger

        debugger = PrecisionDebugger(dump_path=given.debugger, level="L0", task="statistics")
    step = Step(actor, ref, debugger)
    found = {"steps": [step.run(batch(number).chunk(size)[rank]) for number in (1, 2)]}
    found["weights"] = weights_of(actor.actor.engine.module)
    given.output.with_name(f"{given.output.name}.rank{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
