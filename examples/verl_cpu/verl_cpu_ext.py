"""``VERL_USE_EXTERNAL_MODULES=verl_cpu_ext``: makes verl run on CPUs, with the rollout engine ``hfcpu``.

Code that needs modules of verl waits for their import, because this module is imported while ``verl/__init__.py`` runs.
"""

import importlib.abc
import importlib.util
import sys

import verl_cpu_faults
import verl_cpu_platform


def _register_replica(module):
    module.RolloutReplicaRegistry.register("hfcpu", lambda: __import__("verl_cpu_rollout").HFReplica)


def _register_adapter(module):
    module._ROLLOUT_REGISTRY[("hfcpu", "async")] = "verl_cpu_rollout.ServerAdapter"


_ACTIONS = {
    "verl.utils.model": verl_cpu_platform.use_eager_critic,
    "verl.workers.engine": verl_cpu_platform.register_engines,
    "verl.workers.rollout.replica": _register_replica,
    "verl.workers.rollout.base": _register_adapter,
}


def _also(name, action):
    """Run an action after that which a module already has."""
    first = _ACTIONS.get(name, lambda _: None)

    def both(module):
        first(module)
        action(module)

    _ACTIONS[name] = both


for _name, _action in verl_cpu_faults.actions().items():
    _also(_name, _action)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        action = _ACTIONS.pop(name, None)
        spec = importlib.util.find_spec(name) if action else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            action(module)

        spec.loader.exec_module = exec_module
        return spec


verl_cpu_platform.install()
sys.meta_path.insert(0, _Finder())
