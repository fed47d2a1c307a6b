"""A causal language model of transformers as a serving engine: KV cache, sampling, log-probs and its own weights.

``HFSERVER_DTYPE=bfloat16`` computes in another dtype. Optional faults, by ``HFSERVER_BUG``: ``skip_layer`` does not
update one parameter when weights arrive, ``stale`` none after the first time, ``transposed`` turns one matrix over,
``other_model`` receives random weights; ``raw_temperature`` leaves the temperature out of the log-probs, and
``masked_vocabulary`` leaves words out that the tokenizer does not have, which the trainer counts; ``freed`` has
other values in one parameter when it wakes up.
"""

import os

import torch
from msprobe.verl import Part, watch_engine
from verl.workers.rollout.replica import TokenOutput

SKIPPED, SKIPPED_SQUARE = ".layers.1.mlp.down_proj", ".layers.1.self_attn.o_proj"
WORDS = 262
"""Number of words of the tokenizer; a model may have more."""


class HFEngine:
    def __init__(self, model_path, seed=0, dtype="float32", replica=0):
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(
            model_path, dtype=getattr(torch, dtype), attn_implementation="eager"
        ).eval()
        self.eos = self.model.config.eos_token_id
        self.version = None
        self.bug = os.environ.get("HFSERVER_BUG", "")
        self.num_updates = 0
        self.generator = torch.Generator().manual_seed(seed)
        self.probe = watch_engine(self.model, replica)

    async def generate(self, request_id, prompt_ids, sampling_params, **_):
        temperature = float(sampling_params.get("temperature", 1.0))
        wanted = int(sampling_params.get("max_tokens", os.environ.get("HFSERVER_MAXTOK", "12")))
        tokens, log_probs = [], []
        ids, cache = torch.tensor([list(prompt_ids)]), None
        with torch.no_grad():
            for number in range(wanted):
                start = 0 if number == 0 else len(prompt_ids) + number - 1
                part = Part(request_id, length=ids.shape[1], start=start)
                with self.probe.forward([part], "decode" if number else "prefill"):
                    output = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                token, log_prob = self._sample(output.logits[0, -1].float(), temperature)
                tokens.append(token)
                log_probs.append(log_prob)
                ids = torch.tensor([[token]])
                if token == self.eos:
                    break
        self.probe.finish(request_id, prompt_ids, tokens)
        return TokenOutput(
            token_ids=tokens, log_probs=log_probs if sampling_params.get("logprobs") else None, stop_reason="completed",
            num_preempted=0, extra_fields={"global_steps": self.version},
        )  # fmt: skip

    def _sample(self, logits, temperature):
        if self.bug == "masked_vocabulary":
            logits[WORDS:] = -torch.inf
        log_probs = torch.log_softmax(logits / temperature if temperature > 0 else logits, -1)
        if temperature > 0:
            token = int(torch.multinomial(log_probs.exp(), 1, generator=self.generator))
        else:
            token = int(log_probs.argmax())
        if self.bug == "raw_temperature":
            log_probs = torch.log_softmax(logits, -1)
        return token, float(log_probs[token])

    def _received(self, name, tensor):
        if self.bug == "transposed" and SKIPPED_SQUARE in name:
            return tensor.T
        if self.bug == "other_model":
            return torch.randn(tensor.shape) * tensor.float().std()
        return tensor

    async def update_weights(self, named, version=None):
        self.probe.weights_arrived(named, version)
        parameters = dict(self.model.named_parameters())
        missing = []
        self.num_updates += 1
        is_stale = self.bug == "stale" and self.num_updates > 1
        with torch.no_grad():
            for name, tensor in named:
                if name not in parameters:
                    missing.append(name)
                elif not is_stale and not (self.bug == "skip_layer" and SKIPPED in name):
                    parameters[name].copy_(self._received(name, tensor).to(parameters[name].dtype))
        self.probe.weights_updated(version, self.model.named_parameters())
        return {"missing": missing, "n": len(named)}

    async def wake_up(self):
        if self.bug == "freed" and self.num_updates > 1:  # memory that something else has used meanwhile
            with torch.no_grad():
                dict(self.model.named_parameters())["model.layers.1.mlp.down_proj.weight"].normal_(std=1e3)
        self.probe.woke_up(self.model.named_parameters())

    async def set_global_steps(self, version):
        self.version = version
        self.probe.set_policy_version(version)
