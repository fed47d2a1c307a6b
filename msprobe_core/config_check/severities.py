"""Which settings can change results, by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msprobe_core.config_check.differences import Severity
from msprobe_core.manifest.facts import Scalar

_HARMLESS_VARIABLE = re.compile(
    r"VISIBLE_DEVICES|HOST|(^|_)(IP|ADDR|ADDRESS|PORT|PORTS|IFNAME|NIC|NICS|HCA|RANK|WORLD_SIZE|GROUP_RANK)($|_)|PATH|"
    r"(^|_)(DIR|HOME|ROOT|FILE|CONF|CACHE|LOG|LOGS|LOGLEVEL|LOGGING|DEBUG|DISPLAY|VERBOSE|VERBOSITY|TRACE|PROFILE|"
    r"PROFILER|PROFILING|TIMEOUT|RUN_ID|JOB_ID|RESTARTS?|RESTART_COUNT|URL|URI|ENDPOINT|USER|PID|TMPDIR|VERSION)($|_)|"
    r"^TORCHELASTIC_|^MSPROBE_|_ID$",
    re.ASCII,
)

_HARMLESS_SETTING = re.compile(
    r"(^|[_./-])(path|paths|dir|dirs|directory|folder|file|files|filename|name_or_path|hostname|host|hosts|ip|addr|"
    r"address|port|log|logs|logging|logger|log_level|log_interval|log_every|verbose|tensorboard|wandb|swanlab|mlflow|"
    r"profile|profiler|profiling|timeout|save|save_freq|save_interval|save_total_limit|output|out|outdir|dump|dumps|experiment_name|exp_name|"
    r"project_name|run_name|job_name|job_id|run_id|trial_name|local_rank|node_rank|global_rank|rdzv_id|rdzv_endpoint|"
    r"master_addr|master_port|print_freq|report_to|push_to_hub|hub_token|cache|cache_dir|"
    r"transformers_version|_commit_hash|architectures|id2label|label2id|timestamp|date|user)($|[./-])",
    re.IGNORECASE | re.ASCII,
)
_HARMLESS_ENDS = re.compile(
    r"(^|[_-])(path|dir|directory|folder|file|host|port|addr|address|endpoint|url|logger|log[_-]level|log[_-]interval|"
    r"save[_-]interval|(run|job|exp|experiment|project|trial)[_-]name|project)$|^(tensorboard|wandb|swanlab|save)[_-]|"
    r"^log[_-](?!prob|softmax|sum|sigma|std|scale)|"
    r"^(rank|o|workdir|results?|reports?|plots?|export|experiment|tags?|notes?|comment|description)$",
    re.IGNORECASE | re.ASCII,
)

_PRECISION = re.compile(r"tf32|matmul[_.]?precision|fp32_precision|matmul_allow", re.IGNORECASE | re.ASCII)


def is_harmless_variable(name: str) -> bool:
    """Whether an environment variable only says where something is: hosts, ports, paths, devices, ranks, logs."""
    return bool(_HARMLESS_VARIABLE.search(name))


def severity_of_setting(name: str, severity: Severity) -> Severity:
    """Return the severity of a difference of a setting: that given, or the lowest if it cannot change results.

    An argument of a program that has a position and no name says which files, as a rule; what is in them has settings.
    """
    harmless = (
        name.isdecimal()
        or _HARMLESS_SETTING.search(name)
        or _HARMLESS_ENDS.search(name.rpartition(".")[2].rpartition("/")[2])
    )
    return Severity.INFO if harmless else severity


def is_about_float32(switch: str) -> bool:
    """Whether a switch of a framework is about the precision of products of float32, which has several switches."""
    return bool(_PRECISION.search(switch))


def with_named_precision(switches: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return switches with the precision of float32 that takes effect where PyTorch says ``none``: that of IEEE 754.

    PyTorch shows that of the back end where an operator has none, so ``none`` means that no one set any;
    ``set_float32_matmul_precision("highest")``, which is the default, turns it into ``ieee``.
    """
    return {name: "ieee" if value == "none" and is_about_float32(name) else value for name, value in switches.items()}
