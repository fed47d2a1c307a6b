"""verl's own tool ``precision_debugger``, which imports the debugger by its published name; without our plugin."""

import importlib.util
import json

import torch
from torch import nn

spec = importlib.util.find_spec("verl.utils.profiler.precision_debugger_profile")
assert spec is not None
assert spec.origin is not None
# By another name: our plugin takes the place of the tool where verl imports it.
own_spec = importlib.util.spec_from_file_location("own_precision_debugger_profile", spec.origin)
assert own_spec is not None
assert own_spec.loader is not None
profiler_module = importlib.util.module_from_spec(own_spec)
own_spec.loader.exec_module(profiler_module)


class Worker:
    """What verl's workers have: the model of a stage, at one of the places where the tool looks for it."""

    def __init__(self, model):
        self.actor_module = model
        self.ref_module = model


def test_each_stage_of_each_step_has_its_directory(tmp_path, close_debugger):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"level": "L0", "task": "statistics"}))
    own = profiler_module.PrecisionDebuggerProfiler(
        {"config_path": str(config), "strict": True}, save_path=str(tmp_path / "profile")
    )
    assert own._available
    worker = Worker(nn.Sequential(nn.Linear(4, 4)))

    def stage(name):
        @own.annotate(role=name)
        def run(worker, value):
            return worker.actor_module(torch.full((2, 4), value))

        return run

    for step in (1, 2):
        own._current_global_step = step
        stage("ref_compute_log_prob")(worker, 1.0 * step)
        stage("actor_update")(worker, 10.0 * step)
    found = {}
    for path in sorted((tmp_path / "profile").rglob("dump.json")):
        entry = json.loads(path.read_text())["data"]["Module.0.Linear.forward.0"]
        found[str(path.parent.parent.relative_to(tmp_path / "profile"))] = entry["input_args"][0]["Max"]
    assert found == {
        "step_1/ref_compute_log_prob/step0": 1.0,
        "step_1/actor_update/step0": 10.0,
        "step_2/ref_compute_log_prob/step0": 2.0,
        "step_2/actor_update/step0": 20.0,
    }
