"""A causal language model of transformers as a serving engine: KV cache, sampling, log-probs and its own weights.

Optional faults: ``HFSERVER_BUG=skip_layer`` does not update one parameter when weights arrive,
``HFSERVER_DTYPE=bfloat16`` computes in another dtype.
"""

import os

import torch
from msprobe.verl import Part, watch_engine
from verl.workers.rollout.replica import TokenOutput

SKIPPED = ".layers.1.mlp.down_proj"


class HFEngine:
    def __init__(self, model_path, seed=0, dtype="float32", replica=0):
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(
            model_path, dtype=getattr(torch, dtype), attn_implementation="eager"
        ).eval()
        self.eos = self.model.config.eos_token_id
        self.version = None
        self.has_bug = os.environ.get("HFSERVER_BUG", "") == "skip_layer"
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
        log_probs = torch.log_softmax(logits / temperature if temperature > 0 else logits, -1)
        if temperature > 0:
            token = int(torch.multinomial(log_probs.exp(), 1, generator=self.generator))
        else:
            token = int(log_probs.argmax())
        return token, float(log_probs[token])

    async def update_weights(self, named, version=None):
        parameters = dict(self.model.named_parameters())
        missing = []
        with torch.no_grad():
            for name, tensor in named:
                if name not in parameters:
                    missing.append(name)
                elif not (self.has_bug and SKIPPED in name):
                    parameters[name].copy_(tensor.to(parameters[name].dtype))
        self.probe.weights_updated(version, self.model.named_parameters())
        return {"missing": missing, "n": len(named)}

    async def set_global_steps(self, version):
        self.version = version
        self.probe.set_policy_version(version)
