"""The rollout engine ``hfcpu`` for verl's server mode: a Ray actor with its own weights, which have to be sent."""

import os

import ray
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica

_NO_OPS = (
    "sleep", "abort_all_requests", "resume_generation", "clear_kv_cache", "release_kv_cache",
    "resume_kv_cache", "start_profile", "stop_profile",
)  # fmt: skip


class HFServer:
    def __init__(self, **settings):
        import verl  # noqa: F401  # loads its plugins in this process too
        from verl_cpu_engine import HFEngine

        self.engine = HFEngine(**settings)

    async def generate(self, *args, **kwargs):
        return await self.engine.generate(*args, **kwargs)

    async def update_weights(self, named, version=None):
        return await self.engine.update_weights(named, version)

    async def wake_up(self, *args, **kwargs):
        await self.engine.wake_up()

    async def set_global_steps(self, version):
        await self.engine.set_global_steps(version)


async def _nothing(self, *args, **kwargs):
    return {}


for _name in _NO_OPS:
    setattr(HFServer, _name, _nothing)


class HFReplica(RolloutReplica):
    async def launch_servers(self):
        config = self.model_config
        path = config.path if hasattr(config, "path") else config["path"]
        server = ray.remote(HFServer).options(
            name=f"hfcpu_server_{self.replica_rank}_0", num_cpus=0, max_concurrency=64
        ).remote(
            model_path=str(path), seed=self.replica_rank, replica=self.replica_rank,
            dtype=os.environ.get("HFSERVER_DTYPE", "float32"),
        )  # fmt: skip
        self.servers = [server]
        self._server_handle = server
        self._server_address = f"hfcpu-{self.replica_rank}"
        await server.wake_up.remote()


class ServerAdapter(BaseRollout):
    def __init__(self, config, model_config, device_mesh, replica_rank=-1, **_):
        super().__init__(config, model_config, device_mesh)
        size = config.tensor_model_parallel_size * config.data_parallel_size * config.pipeline_model_parallel_size
        rank = int(os.environ["RANK"])
        self.replica_rank = rank // size if replica_rank == -1 else replica_rank
        self.is_leader_rank = rank % size == 0
        self._server = None

    async def resume(self, tags):
        if self._server is not None and "kv_cache" in tags:
            await self._server.wake_up.remote()

    async def release(self):
        pass

    async def update_weights(self, weights, global_steps=None, **_):
        named = [(name, tensor.detach().cpu().clone()) for name, tensor in weights]
        if not self.is_leader_rank:
            return
        if self._server is None:
            self._server = ray.get_actor(f"hfcpu_server_{self.replica_rank}_0")
        result = await self._server.update_weights.remote(named, global_steps)
        if result["missing"]:
            print("hfcpu: there is no", result["missing"])
        if global_steps is not None:
            await self._server.set_global_steps.remote(global_steps)

    def generate_sequences(self, prompts):
        raise NotImplementedError
