"""From a JSON or YAML file and Python arguments to one typed, checked `Config`."""

from msprobe_core.config.load import load_config
from msprobe_core.config.schema import Config, DataMode, RiskLevel, TaskOptions, TensorFormat

__all__ = ["Config", "DataMode", "RiskLevel", "TaskOptions", "TensorFormat", "load_config"]
