"""`msprobe verl doctor`: determine, without importing verl, which hooks would attach to the installed version."""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msprobe.verl._config import SWITCH, load_verl_config
from msprobe.verl._hooks import HOOK_POINTS, HookPoint
from msprobe.verl._process_recording import installed_versions
from msprobe_core.plugin import MsprobeError

ATTACHES, MISSING, NOT_NEEDED = "attaches", "missing", "not needed"
NO_MODULE, NO_PACKAGE = "no such module", "not installed"

_PACKAGES = ("verl", "vllm", "sglang")


@dataclass(frozen=True)
class Finding:
    """Status of one hook: ``attaches``, ``missing``, and so on."""

    point: HookPoint
    status: str


@dataclass(frozen=True)
class Checkup:
    """Result of the check.

    Attributes:
        versions: Versions of installed packages, by name.
        findings: One for each hook.
        switch: State of the environment variable, in a sentence.
        has_switch_error: Whether it names a file that cannot be used.
    """

    versions: Mapping[str, str]
    findings: Sequence[Finding]
    switch: str
    has_switch_error: bool = False

    @property
    def lacks(self) -> Sequence[Finding]:
        """Hooks whose module exists in the installed version of verl, but whose function does not."""
        return [finding for finding in self.findings if finding.status == MISSING]

    @property
    def records(self) -> bool:
        """Whether workers would be recorded at all."""
        return any(finding.point.hook == "stage" and finding.status == ATTACHES for finding in self.findings)


def check(environment: Mapping[str, str] = os.environ, points: Sequence[HookPoint] = HOOK_POINTS) -> Checkup:
    """Return which hooks would attach here."""
    roots = {package: _root_of(package) for package in {point.module.partition(".")[0] for point in points}}
    findings = [Finding(point, _status(point, roots[point.module.partition(".")[0]])) for point in points]
    switch, is_wrong = _switch(environment)
    return Checkup(installed_versions(_PACKAGES), findings, switch, is_wrong)


def _switch(environment: Mapping[str, str]) -> tuple[str, bool]:
    path = environment.get(SWITCH, "").strip()
    if not path:
        return f"{SWITCH} is not set: nothing is recorded, unless verl's own precision_debugger is switched on", False
    try:
        config = load_verl_config(Path(path))
    except MsprobeError as error:
        return f"{SWITCH}: {error}", True
    stages = ", ".join(config.stages.stages)
    steps = ", ".join(map(str, config.stages.steps)) or "all"
    return f"{SWITCH}={path}: stages {stages}; steps {steps}; to {config.stages.out}", False


def _root_of(package: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _status(point: HookPoint, root: Path | None) -> str:
    if root is None:
        return NO_PACKAGE
    path = root.joinpath(*point.module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return NO_MODULE
    if _defines(tree, point):
        return ATTACHES
    return NOT_NEEDED if point.is_optional else MISSING


def _defines(tree: ast.Module, point: HookPoint) -> bool:
    if point.owner is None:
        return _has(tree.body, point.name)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return any(point.owner in ("*", node.name) and _has(node.body, point.name) for node in classes)


def _has(body: Sequence[ast.stmt], name: str) -> bool:
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name for node in body)
