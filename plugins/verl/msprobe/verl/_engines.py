"""Hooks in vLLM and SGLang, written from their documented interfaces, and tested only with stand-ins of the same shape.

Both engines pack many requests into one dimension of one forward; only the scheduler's output says which ones. Models
must run eagerly, because a captured graph calls no modules, and without prefix caching, because cached positions are
not computed and so cannot be recorded.
"""

from __future__ import annotations

import os
import sys
from typing import Any
from weakref import WeakKeyDictionary

from msprobe.verl._process_recording import ProcessRecording
from msprobe.verl._wrapping import Method, wraps_method
from msprobe.verl.rollout import EngineProbe, Part, watch_engine
from msprobe_core.rl import Parallel
from msprobe_core.store import CallPhase

_probes: WeakKeyDictionary[Any, EngineProbe] = WeakKeyDictionary()
"""By the engine's runner; a process may have several, for target and draft model."""

_scheduled: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""The schedule that each runner has to execute next."""


def _replica() -> int:
    """Return the index of this process among the processes of all replicas."""
    replica = int(os.environ.get("VERL_REPLICA_RANK", "0"))
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    return replica * size + rank % size


def _probe_of(runner: Any) -> EngineProbe:
    probe = _probes.get(runner)
    if probe is None:
        probe = _probes[runner] = watch_engine(runner.model, _replica())
    return probe


# --- vLLM ----------------------------------------------------------------------------------------------------------


@wraps_method
def vllm_execute_method(original: Method, self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap `GPUModelRunner.execute_model(scheduler_output)`: notes which requests have ended and are scheduled."""
    recording = ProcessRecording.current()
    if recording is not None:
        with recording.guard("vLLM's schedule"):
            # Read their tokens before the call, which forgets finished requests.
            for request in scheduler_output.finished_req_ids:
                state = self.requests.get(request)
                if state is not None:
                    _probe_of(self).finish(request, state.prompt_token_ids, state.output_token_ids)
            _scheduled[self] = scheduler_output
    return original(self, scheduler_output, *args, **kwargs)


@wraps_method
def vllm_forward_method(original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap `GPUModelRunner._model_forward`: at this point the runner's requests are in the order of their tokens."""
    recording = ProcessRecording.current()
    scheduled = _scheduled.pop(self, None)
    parts: list[Part] = []
    if recording is not None and scheduled is not None:  # warm-up and profiling run without a schedule
        with recording.guard("vLLM's batch"):
            parts = _vllm_parts(self, scheduled)
    if not parts:
        return original(self, *args, **kwargs)
    has_prompt = any(part.length > 1 or part.start == 0 for part in parts)
    phase = CallPhase.PREFILL if has_prompt else CallPhase.DECODE
    with _probe_of(self).forward(parts, phase.value):
        return original(self, *args, **kwargs)


def _vllm_parts(runner: Any, scheduled: Any) -> list[Part]:
    parts: list[Part] = []
    offset = 0
    for request in runner.input_batch.req_ids:
        length = scheduled.num_scheduled_tokens.get(request, 0)
        if length:
            start = int(runner.requests[request].num_computed_tokens)
            parts.append(Part(request, length=int(length), start=start, offset=offset))
            offset += int(length)
    return parts


@wraps_method
def vllm_update_method(original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap `vLLMColocateWorkerExtension.update_weights_from_ipc`: when it returns, the model has its new weights."""
    result = original(self, *args, **kwargs)
    recording = ProcessRecording.current()
    if recording is not None:
        with recording.guard("weights received by vLLM"):
            runner = self.model_runner
            _probe_of(runner).weights_updated(None, runner.model.named_parameters(), _vllm_parallel())
    return result


@wraps_method
def vllm_arrival_method(original: Method, self: Any, weights: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap `vLLMColocateWorkerExtension._update_weights(weights, …)`, called for each part of a transfer."""
    recording = ProcessRecording.current()
    if recording is not None:
        with recording.guard("weights that arrive in vLLM"):
            _probe_of(self.model_runner).weights_arrived(weights)
    return original(self, weights, *args, **kwargs)


@wraps_method
def vllm_wake_method(original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap `Worker.wake_up(tags)`: when it returns, the model has its memory again."""
    result = original(self, *args, **kwargs)
    recording = ProcessRecording.current()
    if recording is not None:
        with recording.guard("weights after vLLM's sleep"):
            runner = self.model_runner
            _probe_of(runner).woke_up(runner.model.named_parameters(), _vllm_parallel())
    return result


def _vllm_parallel() -> Parallel:
    """Return which shard of the model this process has."""
    state: Any = sys.modules.get("vllm.distributed.parallel_state")
    if state is None or getattr(state, "_TP", None) is None:
        return Parallel()
    return Parallel(int(state.get_tensor_model_parallel_rank()), int(state.get_tensor_model_parallel_world_size()))


# --- SGLang --------------------------------------------------------------------------------------------------------


@wraps_method
def sglang_forward_method(original: Method, self: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap `ModelRunner.forward(forward_batch)`: the batch has its requests, their lengths and cached lengths."""
    recording = ProcessRecording.current()
    parts: list[Part] = []
    is_decode = False
    if recording is not None:
        with recording.guard("SGLang's batch"):
            is_decode = bool(forward_batch.forward_mode.is_decode())
            parts = _sglang_parts(forward_batch, is_decode=is_decode)
    if not parts:
        return original(self, forward_batch, *args, **kwargs)
    phase = CallPhase.DECODE if is_decode else CallPhase.PREFILL
    with _probe_of(self).forward(parts, phase.value):
        return original(self, forward_batch, *args, **kwargs)


def _sglang_parts(batch: Any, *, is_decode: bool) -> list[Part]:
    requests = getattr(batch, "rids", None)
    if not requests:
        return []
    ends = [int(length) for length in batch.seq_lens_cpu]
    lengths = [1] * len(ends) if is_decode else [int(length) for length in batch.extend_seq_lens_cpu]
    parts: list[Part] = []
    offset = 0
    for request, length, end in zip(requests, lengths, ends, strict=True):
        parts.append(Part(str(request), length=length, start=end - length, offset=offset))
        offset += length
    return parts


@wraps_method
def sglang_result_method(original: Method, self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap `Scheduler.process_batch_result(batch, result)`: when it returns, requests are marked as finished.

    The scheduler runs in the model's process. If it works one batch ahead, a finished request is in one more batch, and
    its end is reported twice.
    """
    requests = list(getattr(batch, "reqs", None) or ())  # the call may remove finished requests from the batch
    returned = original(self, batch, *args, **kwargs)
    recording = ProcessRecording.current()
    if recording is not None and requests:
        with recording.guard("SGLang's requests"):
            for request in requests:
                if request.finished():
                    _tell_end(str(request.rid), request.origin_input_ids, request.output_ids)
    return returned


def _tell_end(request: str, prompt_ids: Any, response_ids: Any) -> None:
    for probe in list(_probes.values()):
        if probe.runs(request):
            probe.finish(request, prompt_ids, response_ids)
