"""Turn a JSON or YAML file and Python arguments into one typed, checked `Config`."""

from msprobe_core.config.apis import ListedApi
from msprobe_core.config.load import check_config, load_config, read_fields
from msprobe_core.config.schema import Config, DataMode, RiskLevel, TaskOptions, TensorFormat
from msprobe_core.config.watch import ConfigWatch

__all__ = [
    "Config", "ConfigWatch", "DataMode", "ListedApi", "RiskLevel", "TaskOptions", "TensorFormat", "check_config",
    "load_config", "read_fields",
]  # fmt: skip
