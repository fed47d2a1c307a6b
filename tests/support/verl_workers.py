"""Two steps of PPO's stages in verl's own FSDP workers, without Ray and without a trainer.

    python verl_workers.py  < requests

Each line of standard input asks for a job, in JSON, and is answered with the exit statuses of its processes. A job
writes what came of it to ``OUTPUT.rank{R}.json``: log-probs, losses, gradient norms, and CRC-32 of all weights, which
jobs with and without a recording must have alike. ``MSPROBE_VERL`` in the environment that is asked for switches the
recording on.

Importing what verl needs takes longer than all that a job does. So it is imported once, and the processes of a job are
forked from one that has; verl itself, and with it the plugin, is imported by each.
"""

import argparse
import atexit
import importlib
import json
import os
import socket
import sys
import zlib
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "verl_cpu"))

from tiny import make

NEEDED = (
    "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor", "tensordict", "ray", "datasets", "peft",
    "transformers.models.qwen2.modeling_qwen2", "transformers.models.auto.modeling_auto", "accelerate", "hydra",
    "codetiming", "torchdata.stateful_dataloader", "PIL.Image", "fastapi", "uvicorn", "aiohttp", "zmq",
    "transfer_queue",
)  # fmt: skip
"""What importing verl's workers imports, and takes seconds."""

BATCH, PROMPT, RESPONSE = 8, 6, 8


def configuration(given, model):
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    actor, ref, rollout = (f"actor_rollout_ref.{name}" for name in ("actor", "ref", "rollout"))
    overrides = [
        f"actor_rollout_ref.model.path={model}", "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        f"actor_rollout_ref.model.use_remove_padding={given.packed}",
        f"+actor_rollout_ref.model.override_config.attn_implementation={'packed_cpu' if given.ulysses else 'eager'}",
        f"{actor}.strategy={given.strategy}", f"{ref}.strategy={given.strategy}", f"critic.strategy={given.strategy}",
        f"{actor}.fsdp_config.use_torch_compile=False", f"{actor}.use_torch_compile=False",
        f"{ref}.fsdp_config.use_torch_compile=False", f"{ref}.fsdp_config.model_dtype=fp32",
        f"+{actor}.fsdp_config.mixed_precision.param_dtype=fp32",
        f"+{ref}.fsdp_config.mixed_precision.param_dtype=fp32",
        f"{actor}.ppo_mini_batch_size=4", f"{actor}.ppo_micro_batch_size_per_gpu={given.micro}",
        f"{actor}.use_kl_loss=True",
        f"{actor}.optim.lr=1e-3", f"{actor}.optim.total_training_steps=10",
        f"{rollout}.name=vllm", f"{rollout}.log_prob_micro_batch_size_per_gpu=2",
        f"{ref}.log_prob_micro_batch_size_per_gpu=2",
    ]  # fmt: skip
    if given.ulysses:
        overrides += [f"{role}.fsdp_config.ulysses_sequence_parallel_size={given.ulysses}" for role in (actor, ref)]
    if given.profiler:
        overrides += profiler_keys(given.profiler)
    if given.lora:
        overrides += ["actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.model.lora_alpha=8"]
    import verl.trainer

    directory = Path(verl.trainer.__file__).parent / "config"
    with initialize_config_dir(str(directory), version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    OmegaConf.resolve(config)  # as verl's trainers do it
    return config


def profiler_keys(config_path):
    """Return how verl's own configuration asks for a ``precision_debugger`` in the second step."""
    tool = "global_profiler.global_tool_config.precision_debugger"
    return [
        "global_profiler.tool=precision_debugger", "global_profiler.steps=[2]",
        f"global_profiler.save_path={Path(config_path).parent / 'run'}", f"{tool}.config_path={config_path}",
        f"{tool}.stages=[actor_compute_log_prob,actor_update]",
        "actor_rollout_ref.actor.profiler.enable=True", "actor_rollout_ref.ref.profiler.enable=True",
    ]  # fmt: skip


def batch(step, *, is_told):
    """Return a batch, equal on all ranks, padded left and right; `is_told` adds the step as our driver does."""
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
        meta_info={"temperature": 1.0, "global_steps": step - 1, **({"msprobe_step": step} if is_told else {})},
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

    return from_first(None if output is None else no_padding_2_padding(tu.get(output, name), data).float())


def from_first(value):
    """Return what a process has; of those that work on the same samples, the first alone has anything."""
    if value is not None and not torch.distributed.get_world_size() > 1:
        return value
    values = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values[0] if any(one is None for one in values) else value


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
        metrics = from_first(None if output is None else dict(tu.get(output, "metrics")))
        found["log_probs"], found["ref_log_probs"] = log_probs.tolist(), ref_log_probs.tolist()
        for name in ("loss", "grad_norm", "actor/pg_loss"):
            found[name] = json.loads(json.dumps(metrics.get(name), default=str))
        return found


def weights_of(model):
    return {
        name: zlib.crc32(getattr(tensor, "to_local", lambda t=tensor: t)().detach().contiguous().numpy().tobytes())
        for name, tensor in model.state_dict().items()
    }


def run_steps(config, step, order):
    """Return the results of two steps; workers are notified of each, as by a trainer that profiles it."""
    together = config.actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size  # on the same samples
    rank, size = int(os.environ["RANK"]) // together, int(os.environ["WORLD_SIZE"]) // together
    found = []
    for number in (1, 2):
        is_profiled = number in (config.global_profiler.steps or ())
        for worker in (step.actor, step.ref) if is_profiled else ():
            worker.start_profile(profile_step=number)
        whole = batch(number, is_told=not config.global_profiler.steps)
        if order:
            whole.reorder(torch.tensor(order))
        found.append(step.run(whole.chunk(size)[rank]))
        for worker in (step.actor, step.ref) if is_profiled else ():
            worker.stop_profile()
    return found


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--work", required=True)
    parser.add_argument("--strategy", default="fsdp2")
    parser.add_argument("--packed", action="store_true")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--ulysses", type=int, help="so many processes have a slice of each sequence")
    parser.add_argument("--micro", type=int, default=2, help="so many samples are in a micro-batch of an update")
    parser.add_argument("--order", type=int, nargs=BATCH, help="of the samples of each batch")
    parser.add_argument("--wrong", help="a module of the actor whose results are a hundredth too large")
    parser.add_argument("--debugger", help="record as tutorials do, into this directory")
    parser.add_argument("--profiler", help="record as verl's own keys say, with this file")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    import verl_cpu_platform

    verl_cpu_platform.install()
    verl_cpu_platform.register_engines()
    if given.ulysses:
        import verl_attention

        verl_attention.install()
    from verl.workers.engine_workers import ActorRolloutRefWorker

    config = configuration(given, make(given.work) / "model")
    actor = ActorRolloutRefWorker(config=config.actor_rollout_ref, role="actor")
    actor.init_model()
    if given.wrong:
        wrong = actor.actor.engine.module.get_submodule(given.wrong)
        wrong.register_forward_hook(lambda module, args, output: output * 1.01)
    ref = ActorRolloutRefWorker(config=config.actor_rollout_ref, role="ref")
    ref.init_model()
    debugger = None
    if given.debugger:
        from msprobe.pytorch import PrecisionDebugger

        debugger = PrecisionDebugger(dump_path=given.debugger, level="L0", task="statistics")
    found = {
        "steps": run_steps(config, Step(actor, ref, debugger), given.order),
        "weights": weights_of(actor.actor.engine.module),
    }
    given.output.with_name(f"{given.output.name}.rank{os.environ['RANK']}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


def run_job(request):
    """Run ``request["arguments"]`` in as many processes as ``request["ranks"]`` says; return their exit statuses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(request["ranks"]):
        child = os.fork()
        if not child:
            os.environ.update(
                request["environment"], MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                LOCAL_RANK=str(rank), WORLD_SIZE=str(request["ranks"]), LOCAL_WORLD_SIZE=str(request["ranks"]),
            )  # fmt: skip
            log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            main(request["arguments"])
            atexit._run_exitfuncs()
            sys.stdout.flush()
            os._exit(0)  # when Python ends, gloo's threads sometimes abort the process
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


if __name__ == "__main__":
    for name in NEEDED:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(run_job(json.loads(line))), flush=True)
