"""Faults of RL trainings, planted into verl in each process: ``VERL_CPU_FAULT=NAME``.

Each is an action on a module of verl once that is imported; `verl_cpu_ext` runs them. Those of the serving engine are
in `verl_cpu_engine`.
"""

import functools
import os


def _wrap(owner, name, make):
    setattr(owner, name, make(getattr(owner, name)))


def _advantages(module):
    """Normalise rewards over the batch instead of over the samples of one prompt."""

    def make(right):
        return lambda *args, index=None, **kwargs: right(*args, index=[0] * len(index), **kwargs)

    _wrap(module, "compute_grpo_outcome_advantage", make)


def _shuffled_rewards(module):
    """Give every sample the reward of the one before."""
    before = []

    def make(right):
        async def score(self, outputs, kwargs):
            await right(self, outputs, kwargs)
            before.append(outputs[-1].reward_score)
            outputs[-1].reward_score = before[-2] if len(before) > 1 else before[-1] + 0.25

        return score

    _wrap(module.AgentLoopWorker, "_compute_score", make)


def _aliased_reference(module):
    """Let the reference have the actor's model."""

    def make(right):
        @functools.wraps(right)  # with the attributes that say how calls are dispatched
        def init(self, *args, **kwargs):
            found = right(self, *args, **kwargs)
            self.ref.engine.module = self.actor.engine.module
            return found

        return init

    _wrap(module.ActorRolloutRefWorker, "init_model", make)


def _kl_sign(module):
    """Reward the distance to the reference instead of punishing it."""
    _wrap(module, "kl_penalty", lambda right: lambda *args, **kwargs: -right(*args, **kwargs))


def _accumulation(module):
    """Add the losses of micro-batches without a division by their number."""

    def make(right):
        def loss(config, model_output, data, dp_group=None):
            value, metrics = right(config, model_output, data, dp_group)
            return value * 2, metrics

        return loss

    _wrap(module, "ppo_loss", make)


def _dropout(module):
    """Leave dropout on while log-probs are computed."""
    import torch

    def make(right):
        @functools.wraps(right)
        def infer(self, *args, **kwargs):
            handles = [
                layer.register_forward_hook(lambda _m, _i, out: torch.nn.functional.dropout(out, 0.1, training=True))
                for name, layer in self.engine.module.named_modules()
                if name.endswith("mlp.down_proj")
            ]
            try:
                return right(self, *args, **kwargs)
            finally:
                for handle in handles:
                    handle.remove()

        return infer

    _wrap(module.TrainingWorker, "infer_batch", make)


def _positions(module):
    """Count the padding on the left as positions."""
    import torch

    module.compute_position_id_with_mask = lambda mask: torch.arange(mask.shape[-1]).expand(mask.shape).clone()


def _stale_export(module):
    """Export the parameters as they were the first time, after every step."""
    kept = {}

    def make(right):
        def export(self, *args, **kwargs):
            named, *others = right(self, *args, **kwargs)
            return ((name, kept.setdefault(name, tensor.clone())) for name, tensor in named), *others

        return export

    _wrap(module.FSDPEngine, "get_per_tensor_param", make)


FAULTS = {
    "advantages": ("verl.trainer.ppo.core_algos", _advantages),
    "shuffled_rewards": ("verl.experimental.agent_loop.agent_loop", _shuffled_rewards),
    "aliased_reference": ("verl.workers.engine_workers", _aliased_reference),
    "kl_sign": ("verl.workers.utils.losses", _kl_sign),
    "accumulation": ("verl.workers.utils.losses", _accumulation),
    "dropout": ("verl.workers.engine_workers", _dropout),
    "positions": ("verl.utils.model", _positions),
    "stale_export": ("verl.workers.engine.fsdp.transformer_impl", _stale_export),
}
"""Module and action, by name."""

OF_ENGINE = ("skip_layer", "stale", "raw_temperature", "masked_vocabulary", "transposed", "other_model", "freed")
"""Faults of the serving engine."""


def actions():
    """Return the action that the environment asks for, by module."""
    name = os.environ.get("VERL_CPU_FAULT")
    return {} if not name else dict([FAULTS[name]])
