"""Hooks in verl, Megatron, vLLM and SGLang, on stand-ins of the same interface, with the NumPy framework."""

import asyncio
import importlib
import json
import sys
from types import ModuleType, SimpleNamespace

import msgspec
import numpy as np
import pytest
from msprobe.verl import Part, watch_engine
from msprobe.verl import hooks as verl_hooks
from msprobe.verl._checkup import examine
from msprobe.verl._config import check_verl_config, inherited_environment, load_verl_config
from msprobe.verl._doctor import check
from msprobe.verl._hooks import HOOK_POINTS, HookPoint, attach_all
from msprobe.verl._import_hooks import after_import
from msprobe.verl._process_recording import ProcessRecording, installed_versions
from msprobe.verl._profiler import StageProfiler
from msprobe.verl.boot import boot
from numpy_layers import Array, ArrayFramework, Network, train_step

from msprobe_core.errors import ConfigError
from msprobe_core.plugin import Health
from msprobe_core.rl import Hop, files
from msprobe_core.rl.weight_chain import compare_chain
from msprobe_core.store import load_samples, sample_id
from msprobe_core.store.manifest_file import MANIFEST_FILE, read_manifest
from msprobe_core.store.training_metrics import load_updates


@pytest.fixture
def switch_on(tmp_path):
    def switch(**fields):
        return ProcessRecording.switch_on(
            check_verl_config({"out": str(tmp_path / "run"), **fields}, "probe.yaml"), ArrayFramework()
        )

    yield switch
    ProcessRecording.switch_off()


# --- stand-ins -------------------------------------------------------------------------------------------------------


class Numbers:
    """A tensor of integers on the host."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def cpu(self):
        return self

    def numpy(self):
        return self.values

    def diff(self):
        return Numbers(np.diff(self.values))

    def __iter__(self):
        return iter(self.values)


class Jagged:
    """A nested tensor: rows of several lengths, one after the other."""

    is_nested = True

    def __init__(self, rows):
        self.rows = rows

    def offsets(self):
        return Numbers(np.cumsum([0, *map(len, self.rows)]))

    def values(self):
        return Numbers(np.concatenate(self.rows))


def micro_batch(*samples, packed=True, **further):
    """Return what a worker's forward is given: samples are pairs of a prompt and a response."""
    return {
        "input_ids": Jagged([[*prompt, *response] for prompt, response in samples]),
        "prompts": Jagged([list(prompt) for prompt, _ in samples]),
        "use_remove_padding": packed,
        **further,
    }


def put_hooks(module, **classes):
    """Give classes to a module of verl's, and put the hooks of that module in place."""
    patch = ModuleType(module)
    for name, cls in classes.items():
        cls.__module__ = module
        setattr(patch, name, cls)
    attach_all(ProcessRecording.current(), [point for point in HOOK_POINTS if point.module == module], patch)


def workers(engine):
    """Return classes with the methods of verl's workers, hooked, around an engine."""

    class BaseEngine:
        def train_batch(self, data, loss_function):
            result = self.forward_backward_batch(data, forward_only=False)
            return result, self.optimizer_step()

        def infer_batch(self, data, loss_function=None):
            return self.forward_backward_batch(data, forward_only=True)

    class Engine(engine, BaseEngine):
        pass

    class TrainingWorker:
        def __init__(self, model_type="language_model"):
            self.config = SimpleNamespace(model_type=model_type)
            self.engine = Engine()

        def infer_batch(self, data):
            return self.engine.infer_batch(data["micro"])

        def train_mini_batch(self, data):
            return [self.engine.train_batch(mini, None) for mini in data["minis"]]

    class ActorRolloutRefWorker:
        def __init__(self):
            self.actor, self.ref = TrainingWorker(), TrainingWorker()

        def compute_log_prob(self, data):
            return self.actor.infer_batch(data)

        def compute_ref_log_prob(self, data):
            return self.ref.infer_batch(data)

        def update_actor(self, data):
            return self.actor.train_mini_batch(data)

        async def update_weights(self, global_steps=None, mode="auto"):
            parameters, _ = self.actor.engine.get_per_tensor_param()
            return dict(parameters)

    put_hooks("verl.workers.engine.base", BaseEngine=BaseEngine)
    put_hooks("verl.workers.engine_workers", ActorRolloutRefWorker=ActorRolloutRefWorker, TrainingWorker=TrainingWorker)
    return ActorRolloutRefWorker, TrainingWorker


class Fsdp:
    """The interface of an FSDP engine."""

    def __init__(self):
        self.module = Network()

    def forward_backward_batch(self, data, forward_only):
        return [self.forward_step(micro, None, forward_only) for micro in data["all"]]

    def forward_step(self, micro_batch, loss_function, forward_only):
        return None, {"loss": train_step(self.module), "metrics": {}}

    def optimizer_step(self):
        return 0.75

    def get_per_tensor_param(self):
        names = [
            (f"_fsdp_wrapped_module.{path}.{n}", p)
            for path, la in self.module.named_layers()
            for n, p in la.parameters.items()
        ]
        return iter(names), None


class Megatron:
    """The interface of a Megatron engine with a virtual pipeline: two chunks, each with an iterator of its own."""

    def __init__(self):
        self.module = [Network(0), Network(1)]

    def forward_backward_batch(self, data, forward_only):
        iterators = [iter(data["all"]) for _ in self.module]
        for _ in data["all"]:
            for chunk, batches in zip(self.module, iterators, strict=True):
                self.forward_step(batches, chunk, None, None)

    def forward_step(self, batch_iter, model, logits_processor_func, postprocess_micro_batch_func):
        next(batch_iter)
        return train_step(model)

    def optimizer_step(self):
        return 0.5

    def get_per_tensor_param(self):
        return iter([]), None


SAMPLES = [([1, 2], [3]), ([4], [5, 6, 7]), ([8, 9], [10, 11]), ([12], [13])]


def batch(*samples, **further):
    micros = [micro_batch(*pair) for pair in zip(samples[::2], samples[1::2], strict=True)]
    return {"all": micros, "msprobe_step": 5, "global_steps": 4, **further}


def directory(tmp_path, stage, step=5, rank=0):
    return files.rank_directory(tmp_path / "run", stage, step, rank)


def entries(tmp_path, stage, **where):
    return json.loads((directory(tmp_path, stage, **where) / "dump.json").read_text())["data"]


# --- workers ---------------------------------------------------------------------------------------------------------


class TestManifests:
    def settings(self, tmp_path, stage):
        return read_manifest(directory(tmp_path, stage) / MANIFEST_FILE).settings["verl"]

    def test_every_stage_has_the_settings_of_the_trainer_and_of_its_worker(self, tmp_path, switch_on):
        probe = switch_on()
        put_hooks("verl.workers.engine.fsdp.transformer_impl", Fsdp=Fsdp)

        class RayPPOTrainer:
            config = Config(
                {
                    "actor_rollout_ref": Config({"rollout": {"temperature": 0.7}}),
                    "data": {"seed": 7, "train_files": ["a.parquet"]},
                    "wandb": {"api_key": "local-0123456789abcdef"},
                }
            )

            def fit(self):
                return worker.compute_log_prob({"micro": batch(*SAMPLES)})

        put_hooks("verl.trainer.ppo.ray_trainer", RayPPOTrainer=RayPPOTrainer)
        worker = workers(Fsdp)[0]()
        worker.config, worker.role = {"actor": {"optim": {"lr": 1e-6}}}, "actor_rollout_ref"
        RayPPOTrainer().fit()
        assert probe.role == "driver"  # all in one process here
        settings = self.settings(tmp_path, "actor_compute_log_prob")
        assert settings["actor_rollout_ref.rollout.temperature"] == 0.7
        assert settings["data.train_files"] == "[a.parquet]"
        assert settings["workers.actor_rollout_ref.actor.optim.lr"] == 1e-6
        assert "0123456789abcdef" not in repr(settings)
        worker.compute_ref_log_prob({"micro": batch(*SAMPLES)})
        worker.update_actor({"minis": [batch(*SAMPLES)]})
        for stage in ("ref_compute_log_prob", "actor_update"):
            assert self.settings(tmp_path, stage) == settings

    def test_a_critic_has_its_own(self, tmp_path, switch_on):
        switch_on()
        put_hooks("verl.workers.engine.fsdp.transformer_impl", Fsdp=Fsdp)
        critic = workers(Fsdp)[1]("value_model")
        critic.config = SimpleNamespace(model_type="value_model", to_dict=lambda: {"optim": {"lr": 2e-5}})
        critic.infer_batch({"micro": batch(*SAMPLES)})
        assert self.settings(tmp_path, "compute_values")["workers.value_model.optim.lr"] == 2e-5

    def test_a_process_without_the_trainer_has_none(self):
        (offer,) = verl_hooks.msprobe_register_run_settings()
        assert offer.name == "verl"
        assert offer.read() is None


class Config(dict):
    """A configuration with fields, like OmegaConf's."""

    __getattr__ = dict.__getitem__


class TestWorkers:
    def test_stages_of_actor_and_reference(self, tmp_path, switch_on):
        switch_on()
        put_hooks("verl.workers.engine.fsdp.transformer_impl", Fsdp=Fsdp)
        worker = workers(Fsdp)[0]()
        worker.compute_log_prob({"micro": batch(*SAMPLES)})
        worker.compute_ref_log_prob({"micro": batch(*SAMPLES)})
        worker.update_actor({"minis": [batch(*SAMPLES[:2]), batch(*SAMPLES[2:])]})
        assert files.stages_of(tmp_path / "run") == ["actor_compute_log_prob", "ref_compute_log_prob", "actor_update"]
        samples = load_samples(directory(tmp_path, "actor_update"))
        assert [(m.call, m.mini, m.micro) for m in samples.micro_batches] == [(0, 0, 0), (1, 1, 0)]
        assert samples.policy_version == 4
        rows = [row for m in samples.micro_batches for row in m.rows]
        assert [row.id for row in rows] == [sample_id([*p, *r]) for p, r in SAMPLES]
        assert [(row.offset, row.prompt_length, row.total_length) for row in rows] == [
            (0, 2, 3),
            (3, 1, 4),
            (0, 2, 4),
            (4, 1, 2),
        ]
        updates = load_updates(directory(tmp_path, "actor_update"))
        assert [update.grad_norm for update in updates.updates] == [0.75, 0.75]
        assert len(updates.losses) == 2
        assert "Module.last.Dense.forward.1" in entries(tmp_path, "actor_update")

    def test_a_critic_is_a_worker_by_itself(self, tmp_path, switch_on):
        switch_on()
        _, training = workers(Fsdp)
        critic = training("value_model")
        critic.infer_batch({"micro": batch(*SAMPLES)})
        critic.train_mini_batch({"minis": [batch(*SAMPLES)]})
        training("language_model").infer_batch({"micro": batch(*SAMPLES)})  # of some other use
        assert files.stages_of(tmp_path / "run") == ["compute_values", "critic_update"]
        assert len(load_samples(directory(tmp_path, "compute_values")).micro_batches) == 2  # of the critic alone

    def test_an_actor_without_its_adapter_is_the_reference(self, tmp_path, switch_on):
        switch_on()
        worker = workers(Fsdp)[0]()
        worker.compute_log_prob({"micro": batch(*SAMPLES), "no_lora_adapter": True})
        assert files.stages_of(tmp_path / "run") == ["ref_compute_log_prob"]

    def test_a_stage_that_is_not_selected_leaves_its_parts_alone(self, tmp_path, switch_on):
        switch_on(stages=["critic_update"])
        workers(Fsdp)[0]().update_actor({"minis": [batch(*SAMPLES)]})
        assert not (tmp_path / "run" / "critic_update").exists()

    def test_chunks_of_a_pipeline_are_recorded_and_each_micro_batch_counts_once(self, tmp_path, switch_on):
        switch_on()
        put_hooks("verl.workers.engine.megatron.transformer_impl", Megatron=Megatron)
        workers(Megatron)[0]().update_actor({"minis": [batch(*SAMPLES)]})
        assert len(load_samples(directory(tmp_path, "actor_update")).micro_batches) == 2
        names = entries(tmp_path, "actor_update")
        assert {f"Module.{chunk}.last.Dense.forward.{call}" for chunk in (0, 1) for call in (0, 1)} <= names.keys()

    @pytest.mark.parametrize("rank", [0, 1])
    def test_a_slice_of_the_sequence_has_parts_of_samples(self, tmp_path, switch_on, rank):
        switch_on()

        class Ulysses(Fsdp):
            ulysses_sequence_parallel_size = 2
            ulysses_device_mesh = {"sp": SimpleNamespace(get_local_rank=lambda: rank)}  # noqa: RUF012

        put_hooks("verl.workers.engine.fsdp.transformer_impl", Fsdp=Fsdp)
        samples = [([1, 2], [3]), ([4], [5, 6, 7, 8]), ([9], [10])]
        workers(Ulysses)[0]().compute_log_prob({"micro": {**batch(), "all": [micro_batch(*samples)]}})
        (micro,) = load_samples(directory(tmp_path, "actor_compute_log_prob")).micro_batches
        first, second, third = (sample_id(tokens) for tokens in ([1, 2, 3], [4, 5, 6, 7, 8], [9, 10]))
        assert [(row.id, row.offset, row.start, row.length) for row in micro.rows] == (
            [(first, 0, 0, 3), (second, 3, 0, 2)] if not rank else [(second, 0, 2, 3), (third, 3, 0, 2)]
        )
        assert {row.total_length for row in micro.rows} == ({3, 5} if not rank else {5, 2})

    def test_weights_are_seen_as_they_are_sent(self, tmp_path, switch_on):
        switch_on(steps=[7])
        put_hooks("verl.workers.engine.fsdp.transformer_impl", Fsdp=Fsdp)
        worker = workers(Fsdp)[0]()
        for step in (5, 6, 7):
            sent = asyncio.run(worker.update_weights(global_steps=step))
            assert len(sent) == 2  # none was consumed on the way
        assert files.steps_of(tmp_path / "run", "update_weights_send") == [6, 7]  # step 7 uses those of 6
        weights = files.load_weights(directory(tmp_path, "update_weights_send", step=7))
        assert [weight.name for weight in weights.parameters] == ["first.weight", "last.weight"]
        assert weights.parameters[0].shape == (4, 5)
        assert weights.parameters[0].l2 == pytest.approx(np.linalg.norm(Network().first.parameters["weight"].values))

    def test_without_a_switch_hooks_only_pass_through(self, tmp_path, switch_on):
        switch_on()
        worker = workers(Fsdp)[0]()
        ProcessRecording.switch_off()
        assert len(worker.update_actor({"minis": [batch(*SAMPLES)]})) == 1
        assert not (tmp_path / "run").exists()


# --- engines ---------------------------------------------------------------------------------------------------------


class ModelRunner:
    def __init__(self):
        self.model = Network()

    def forward(self, forward_batch):
        return self.model.forward(Array(np.ones((2, 4))))


class GPUModelRunner:
    """The interface of vLLM's runner, as far as it is used; the model computes what it likes."""

    def __init__(self):
        self.model = Network()
        self.requests, self.input_batch = {}, SimpleNamespace(req_ids=[])

    def execute_model(self, scheduler_output, intermediate_tensors=None):
        for request in scheduler_output.finished_req_ids:
            self.requests.pop(request)
        self.input_batch.req_ids = [name for name in self.requests if name in scheduler_output.num_scheduled_tokens]
        self._model_forward()
        for name, number in scheduler_output.num_scheduled_tokens.items():
            self.requests[name].num_computed_tokens += number
            self.requests[name].output_token_ids.append(50)

    def _model_forward(self):
        return self.model.forward(Array(np.ones((2, 4))))


def schedule(finished=(), **tokens):
    return SimpleNamespace(finished_req_ids=set(finished), num_scheduled_tokens=tokens)


def request(*prompt):
    return SimpleNamespace(prompt_token_ids=list(prompt), output_token_ids=[], num_computed_tokens=0)


def rollouts(tmp_path, rank=0, step=1):
    return load_samples(directory(tmp_path, "rollout_generate", step=step, rank=rank)).micro_batches


class TestEngines:
    def test_vllm(self, tmp_path, switch_on, monkeypatch):
        monkeypatch.setenv("VERL_REPLICA_RANK", "3")
        switch_on()
        put_hooks("vllm.v1.worker.gpu_model_runner", GPUModelRunner=GPUModelRunner)
        runner = GPUModelRunner()
        runner._model_forward()  # a warm-up
        runner.requests = {"a": request(1, 2, 3), "b": request(4)}
        runner.execute_model(schedule(a=3, b=1))
        runner.execute_model(schedule(a=1, b=1))
        runner.execute_model(schedule(finished=["b"], a=1))
        runner.execute_model(schedule(finished=["a"]))
        prefill, decode, alone = rollouts(tmp_path, rank=3)
        assert [m.phase for m in (prefill, decode, alone)] == ["prefill", "decode", "decode"]
        identities = [sample_id([1, 2, 3, 50, 50, 50]), sample_id([4, 50, 50])]
        assert [[row.id for row in m.rows] for m in (prefill, decode, alone)] == [
            identities,
            identities,
            identities[:1],
        ]
        assert [(row.offset, row.start, row.length) for row in prefill.rows] == [(0, 0, 3), (3, 0, 1)]
        assert [(row.offset, row.start, row.length) for row in decode.rows] == [(0, 3, 1), (1, 1, 1)]
        names = [name for name in entries(tmp_path, "rollout_generate", step=1, rank=3) if "last" in name]
        assert names == [f"Module.last.Dense.forward.{call}" for call in range(3)]

    def test_weights_in_vllm_are_those_that_the_model_has_then(self, tmp_path, switch_on):
        probe = switch_on()

        class vLLMColocateWorkerExtension:  # noqa: N801  # its name in verl
            def __init__(self):
                self.model_runner = GPUModelRunner()
                layers = self.model_runner.model.named_layers()
                self.model_runner.model.named_parameters = lambda: [
                    (f"{path}.{name}", value) for path, layer in layers for name, value in layer.parameters.items()
                ]

            def update_weights_from_ipc(self, peft_config=None):
                self.model_runner.model.first.parameters["weight"].write(2.0)

        put_hooks("verl.workers.rollout.vllm_rollout.utils", vLLMColocateWorkerExtension=vLLMColocateWorkerExtension)
        worker = vLLMColocateWorkerExtension()
        worker.update_weights_from_ipc()
        files.announce_policy_version(probe.out, 9)
        worker.update_weights_from_ipc()
        assert files.steps_of(tmp_path / "run", "update_weights_recv") == [0, 9]
        first, _ = files.load_weights(directory(tmp_path, "update_weights_recv", step=9)).parameters
        assert (first.name, first.max, first.mean) == ("first.weight", 2.0, 2.0)

    def test_every_hop_in_vllm(self, tmp_path):
        torch = pytest.importorskip("torch")
        fields = {"out": str(tmp_path / "run"), "hops": ["received", "loaded", "awake"], "batch": False}
        ProcessRecording.switch_on(check_verl_config(fields, "probe.yaml"))
        model = torch.nn.Sequential(torch.nn.Linear(4, 4))

        class Runner:
            def __init__(self):
                self.model = model

        class Extension:
            def __init__(self):
                self.model_runner = Runner()

            def _update_weights(self, weights, peft_config, base_sync_done):
                model.load_state_dict(dict(weights), strict=False)

            def update_weights_from_ipc(self, parts):
                for part in parts:
                    self._update_weights(part, None, True)

        class Worker:
            def __init__(self, runner):
                self.model_runner = runner

            def wake_up(self, tags=None):
                with torch.no_grad():
                    model[0].bias.zero_()

        try:
            put_hooks("verl.workers.rollout.vllm_rollout.utils", vLLMColocateWorkerExtension=Extension)
            put_hooks("vllm.v1.worker.gpu_worker", Worker=Worker)
            extension = Extension()
            worker = Worker(extension.model_runner)
            worker.wake_up()  # before the first transfer: there is nothing to compare with
            sent = {"0.weight": torch.randn(4, 4), "0.bias": torch.randn(4)}
            extension.update_weights_from_ipc([[item] for item in sent.items()])
            worker.wake_up()
        finally:
            ProcessRecording.switch_off()
        outcome = compare_chain(tmp_path / "run", [Hop.RECEIVED, Hop.LOADED, Hop.AWAKE])
        assert outcome.headline == "DIFFERENT: sync 0, loaded to awake: 0.bias, freed memory."
        assert outcome.numbers["hops"] == 2

    def test_sglang(self, tmp_path, switch_on):
        switch_on()

        class Req:
            def __init__(self, rid, *prompt, length):
                self.rid, self.origin_input_ids, self.output_ids, self.length = rid, list(prompt), [], length

            def finished(self):
                return len(self.output_ids) == self.length

        class Scheduler:
            """Runs a batch before it has looked at what came of the one before."""

            def process_batch_result(self, batch, result):
                for req in batch.reqs:
                    if not req.finished():
                        req.output_ids.append(result)
                batch.reqs.clear()

        put_hooks("sglang.srt.model_executor.model_runner", ModelRunner=ModelRunner)
        put_hooks("sglang.srt.managers.scheduler", Scheduler=Scheduler)
        runner, scheduler = ModelRunner(), Scheduler()
        a, b = Req("a", 1, 2, 3, 4, 5, length=2), Req("b", 7, 8, length=1)

        def forward(*, decode, **fields):
            runner.forward(SimpleNamespace(forward_mode=SimpleNamespace(is_decode=lambda: decode), **fields))

        forward(decode=False, rids=["a", "b"], seq_lens_cpu=[5, 2], extend_seq_lens_cpu=[3, 2])
        forward(decode=True, rids=["a", "b"], seq_lens_cpu=[6, 3], extend_seq_lens_cpu=None)
        scheduler.process_batch_result(SimpleNamespace(reqs=[a, b]), 50)
        scheduler.process_batch_result(SimpleNamespace(reqs=[a, b]), 51)
        first, second = rollouts(tmp_path)  # written, since nothing runs any more
        assert [(row.id, row.prompt_id, row.offset, row.start, row.length) for row in first.rows] == [
            (sample_id([1, 2, 3, 4, 5, 50, 51]), sample_id([1, 2, 3, 4, 5]), 0, 2, 3),
            (sample_id([7, 8, 50]), sample_id([7, 8]), 3, 0, 2),
        ]
        assert [(row.prompt_length, row.total_length) for row in first.rows] == [(5, 7), (2, 3)]
        assert [row.id for row in second.rows] == [row.id for row in first.rows]
        assert [(row.offset, row.start, row.length) for row in second.rows] == [(0, 5, 1), (1, 2, 1)]
        assert [first.phase, second.phase] == ["prefill", "decode"]

    def test_a_request_of_sglang_that_is_never_done_keeps_its_name(self, tmp_path, switch_on):
        switch_on()

        put_hooks("sglang.srt.model_executor.model_runner", ModelRunner=ModelRunner)
        mode = SimpleNamespace(is_decode=lambda: False)
        batch = SimpleNamespace(forward_mode=mode, rids=["a"], seq_lens_cpu=[5], extend_seq_lens_cpu=[5])
        ModelRunner().forward(batch)
        ProcessRecording.switch_off()
        assert [row.id for row in rollouts(tmp_path)[0].rows] == ["request a"]

    def test_limits_on_what_is_recorded(self, tmp_path, switch_on):
        switch_on(rollout={"prefill": False, "decode_steps": 2, "requests": 1})
        model = Network()
        probe = watch_engine(model, replica=1)
        probe.set_policy_version(0)
        for name in ("a", "b"):
            for number in range(4):
                with probe.forward([Part(name, length=1, start=number)], "decode" if number else "prefill"):
                    model.forward(Array(np.ones((2, 4))))
            probe.finish(name, [1], [2, 3, 4])
        micros = rollouts(tmp_path, rank=1)
        assert [(m.rows[0].start, m.rows[0].id) for m in micros] == [(n, sample_id([1, 2, 3, 4])) for n in (1, 2)]
        names = [name for name in entries(tmp_path, "rollout_generate", step=1, rank=1) if "last" in name]
        assert names == ["Module.last.Dense.forward.0", "Module.last.Dense.forward.1"]

    def test_parameters_are_recorded_with_the_first_token_of_a_step(self, tmp_path, switch_on):
        """An engine's weights change with an update only, which begins another step."""
        switch_on(weights=False)
        model = Network()
        probe = watch_engine(model)
        for version in (0, 1):
            probe.weights_updated(version, [])
            for number in range(3):
                with probe.forward([Part("a", length=1, start=number)], "decode" if number else "prefill"):
                    model.forward(Array(np.ones((2, 4))))
            probe.finish("a", [1], [2, 3])
        for step in (1, 2):
            found = entries(tmp_path, "rollout_generate", step=step)
            own = {name: "parameters" in entry for name, entry in found.items() if ".last." in name}
            assert own == {f"Module.last.Dense.forward.{call}": call == 0 for call in range(3)}

    def test_an_update_of_the_weights_begins_another_step(self, tmp_path, switch_on):
        switch_on(weights=False)
        model = Network()
        probe = watch_engine(model)
        for version in (4, 5):
            probe.weights_updated(version, [])
            with probe.forward([Part("a", length=1)]):
                model.forward(Array(np.ones((2, 4))))
            probe.finish("a", [1], [])
        assert files.steps_of(tmp_path / "run", "rollout_generate") == [5, 6]
        assert not (tmp_path / "run" / "update_weights_recv").exists()

    def test_without_a_switch_an_engine_is_left_alone(self):
        probe = watch_engine(object())
        with probe.forward([Part("a", length=1)]):
            pass
        probe.finish("a", [1], [2])
        probe.weights_updated(1, [])


# --- the driver ------------------------------------------------------------------------------------------------------


class TestDriver:
    def test_the_step_is_told_to_workers_of_either_trainer(self, tmp_path, switch_on):
        switch_on(batch=False)

        class RayPPOTrainer:
            global_steps = 3
            config = msgspec.json.decode(b'{"algorithm": {"gamma": 1.0}}')

            def _compute_values(self, batch):
                return batch

        class Config(dict):
            actor_rollout_ref = SimpleNamespace(rollout={"temperature": 0.5, "top_k": -1})

        RayPPOTrainer.config = Config(algorithm={"gamma": 1.0})
        put_hooks("verl.trainer.ppo.ray_trainer", RayPPOTrainer=RayPPOTrainer)
        trainer = RayPPOTrainer()
        assert trainer._compute_values(SimpleNamespace(meta_info={})).meta_info == {"msprobe_step": 3}
        assert trainer._compute_values(SimpleNamespace(extra_info={"a": 1})).extra_info == {"a": 1, "msprobe_step": 3}
        run = files.load_run(tmp_path / "run")
        assert run.config == {"algorithm": {"gamma": 1.0}}
        assert (run.sampling.temperature, run.sampling.top_k, run.sampling.top_p) == (0.5, -1, None)
        assert [process.role for process in run.processes] == ["driver"]

    def test_metrics_are_put_beside_the_batch(self, tmp_path, switch_on):
        probe = switch_on()

        class Tracking:
            def log(self, data, step, backend=None):
                return data

        put_hooks("verl.utils.tracking", Tracking=Tracking)
        place = files.trainer_directory(probe.out, 2)
        files.save_batch(place, files.BatchFile(version=1, step=2, rows=0), {"values": np.ones((1, 2))})
        Tracking().log(data={"actor/loss": 0.5, "nan": float("nan"), "text": "a", "flag": True}, step=2)
        Tracking().log(data={"actor/loss": 0.5}, step=3)
        found, tensors = files.load_batch(place)
        assert found.metrics == {"actor/loss": 0.5, "nan": None}
        np.testing.assert_array_equal(tensors["values"], np.ones((1, 2)))


class TestRewards:
    def test_scores_are_written_by_sample(self, tmp_path, switch_on):
        switch_on(steps=[3, 5])

        class RewardLoopWorker:
            async def compute_score(self, data):
                return {"reward_score": np.float32(0.5), "reward_extra_info": {"acc": True, "why": "digits"}}

        put_hooks("verl.experimental.reward_loop.reward_loop", RewardLoopWorker=RewardLoopWorker)

        class Tensor(np.ndarray):
            def cpu(self):
                return self

            def numpy(self):
                return np.asarray(self)

        def data(**others):
            tensors = {"input_ids": [[7, 8, 9, 0]], "attention_mask": [[1, 1, 1, 0]], "prompts": [[7, 8]]}
            batch = {name: np.array(values).view(Tensor) for name, values in tensors.items()}
            return SimpleNamespace(batch=batch, non_tensor_batch={"prompt_len": [2], **others})

        versions = np.array([{"max_global_steps": 4}], dtype=object)
        for others in ({"global_steps": [3], "uid": ["u"]}, {"global_steps": [4]}, {"tool_extra_fields": versions}):
            result = asyncio.run(RewardLoopWorker().compute_score(data(**others)))
            assert result["reward_score"] == 0.5
        (reward,) = files.load_rewards(tmp_path / "run", 3)
        assert (reward.id, reward.prompt_id) == (sample_id([7, 8, 9]), sample_id([7, 8]))
        assert (reward.uid, reward.score, reward.extra) == ("u", 0.5, {"acc": 1.0, "why": "digits"})
        assert files.load_rewards(tmp_path / "run", 4) == []
        assert len(files.load_rewards(tmp_path / "run", 5)) == 1  # the step after the policy's version
        (path,) = (tmp_path / "run" / "reward").rglob(MANIFEST_FILE)  # one of the process
        assert read_manifest(path).settings["verl"]["msprobe.role"] == "reward"


# --- switching on ----------------------------------------------------------------------------------------------------


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """A package that can be imported, with a module that hooks can be for."""
    (tmp_path / "pretended").mkdir()
    (tmp_path / "pretended" / "__init__.py").write_text("")
    (tmp_path / "pretended" / "late.py").write_text(
        "def answer():\n    return 42\n\nclass A:\n    def f(self):\n        return 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("pretended")]:
        del sys.modules[name]


class TestSwitch:
    def test_something_is_done_behind_an_import_and_once(self, pretended):
        seen = []
        watch = after_import({"pretended.late": lambda module: seen.append(module.answer())})
        assert seen == []
        module = importlib.import_module("pretended.late")
        assert seen == [42]
        assert type(module.__loader__).__name__ == "SourceFileLoader"
        importlib.reload(module)
        assert seen == [42]
        after_import({"pretended.late": lambda module: seen.append(module.answer())}).remove()
        assert seen == [42, 42]  # it was there already
        watch.remove()

    def test_hooks_say_what_became_of_them(self, pretended, switch_on):
        probe = switch_on()
        module = importlib.import_module("pretended.late")

        def broken():
            raise RuntimeError("no")

        def point(owner, name, load=lambda: lambda original: original, **more):
            return HookPoint("h", "pretended.late", owner, name, load, **more)

        points = [
            point(None, "answer"), point("A", "f"), point("A", "g"), point("B", "f"), point("B", "h", is_optional=True),
            point(None, "answer2", broken), point("*", "f", broken),
        ]  # fmt: skip
        attach_all(probe, points, module)
        found = {c.target.removeprefix("pretended.late."): (c.status.value, c.reason) for c in probe.capabilities}
        assert found == {
            "answer": ("attached", None), "A.f": ("attached", None), "A.g": ("absent", "there is no g"),
            "B.f": ("absent", "there is no B"), "answer2": ("absent", "there is no answer2"),
            "*.f": ("failed", "RuntimeError: no"),
        }  # fmt: skip

    def test_nothing_happens_without_the_switch(self):
        watch = boot({})
        assert list(watch.waiting) in ([], ["verl.utils.profiler.precision_debugger_profile"])
        watch.remove()
        assert ProcessRecording.current() is None

    def test_a_file_that_is_wrong_is_said(self, tmp_path, caplog):
        assert boot({"MSPROBE_VERL": str(tmp_path / "none.yaml")}) is None
        assert "nothing is recorded" in caplog.text
        assert "none.yaml: cannot be read" in caplog.text
        assert ProcessRecording.current() is None

    def test_the_switch_is_handed_on_as_an_absolute_path(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("MSPROBE_VERL", "probe.yaml")
        assert inherited_environment() == {"MSPROBE_VERL": str(tmp_path / "probe.yaml")}
        monkeypatch.delenv("MSPROBE_VERL")
        assert inherited_environment() == {}

    def test_the_keys_of_verls_own_profiler_switch_it_on(self, tmp_path, switch_on):
        (tmp_path / "debugger.json").write_text(
            json.dumps({"task": "tensor", "level": "mix", "dump_path": "x", "step": [9]})
        )
        settings = {"config_path": str(tmp_path / "debugger.json"), "stages": ["actor_update"], "strict": True}
        profiler = StageProfiler(settings, rank=0, save_path=str(tmp_path / "profile"))
        probe = ProcessRecording.current()
        try:
            config = probe.config.stages
            assert (config.out, config.stages, config.strict, config.steps) == (
                tmp_path / "profile",
                ("actor_update",),
                True,
                (),
            )
            assert (config.configs["actor_update"].task, config.configs["actor_update"].level) == ("tensor", "mix")
            assert not probe.is_open
            profiler.start(profile_step=4)
            assert (probe.is_open, probe.trainer_step) == (True, 4)
            profiler.stop()
            assert not probe.is_open
            assert profiler.annotate(role="train_batch")(len) is len
        finally:
            ProcessRecording.switch_off()

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"stages": ["actor"]}, "'stages' has 'actor', which is no stage; known: rollout_generate"),
            ({"batch": "yes"}, "'batch' is 'yes'"),
            ({"rollout": {"prefil": True}}, "unknown field `prefil`.*known: prefill, decode_steps, requests"),
            ({"rollout": {"requests": -2}}, "'requests' of 'rollout' must be at least 0"),
            (
                {"wieghts": True},  # codespell:ignore wieghts
                "unknown field 'wieghts'.*also out, steps, ranks, stages, per_stage, strict, batch, weights",
            ),
        ],
        ids=["stage", "flag", "nested", "limit", "unknown"],
    )
    def test_what_is_wrong_in_the_file_is_said(self, tmp_path, fields, message):
        path = tmp_path / "probe.json"
        path.write_text(json.dumps(fields))
        with pytest.raises(ConfigError, match=message):
            load_verl_config(path)


class TestDoctor:
    def test_it_finds_what_is_defined_without_importing_it(self, tmp_path, pretended):
        def point(module, owner, name, hook="stage", **more):
            return HookPoint(hook, f"pretended.{module}", owner, name, lambda: lambda original: original, **more)

        points = [
            point("late", "A", "f"), point("late", "A", "g"), point("late", None, "answer"), point("late", "*", "f"),
            point("never", "A", "f"), HookPoint("x", "nowhere.at_all", None, "f", lambda: len),
        ]  # fmt: skip
        checkup = check({}, points)
        assert [finding.status for finding in checkup.findings] == [
            "attaches", "missing", "attaches", "attaches", "no such module", "not installed",
        ]  # fmt: skip
        assert [finding.point.name for finding in checkup.lacks] == ["g"]
        assert checkup.records
        assert "pretended.late" not in sys.modules
        assert "is not set: nothing is recorded" in checkup.switch

    def test_it_says_what_the_switch_is_set_to(self, tmp_path):
        (tmp_path / "good.yaml").write_text("steps: [2]\nstages: [trainer]\n")
        assert "stages trainer; steps 2" in check({"MSPROBE_VERL": str(tmp_path / "good.yaml")}, HOOK_POINTS[:1]).switch
        (tmp_path / "bad.yaml").write_text("stepz: [2]\n")
        checkup = check({"MSPROBE_VERL": str(tmp_path / "bad.yaml")}, HOOK_POINTS[:1])
        assert checkup.has_switch_error
        assert "unknown field 'stepz'" in checkup.switch

    def test_msprobe_doctor_has_it_in_short(self, tmp_path, monkeypatch):
        (tmp_path / "bad.yaml").write_text("stepz: [2]\n")
        monkeypatch.setenv("MSPROBE_VERL", str(tmp_path / "bad.yaml"))
        found = {each.code: each for each in examine()}
        if "verl" not in installed_versions(["verl"]):
            assert [*found] == ["verl.absent"]
        else:
            assert found["verl.hooks"].health is found["verl.version"].health is Health.OK
            assert found["verl.switch"].health is Health.ERROR
