"""Plugins: found, checked, named when they are broken, and never fatal."""

import ast
import importlib
import importlib.util
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pluggy
import pytest

import msprobe_core
from msprobe_core import hookspecs, plugin
from msprobe_core._version import __version__
from msprobe_core.findings import Level
from msprobe_core.hookspecs import hookimpl, requires_api
from msprobe_core.plugins import Plugin, Registry
from msprobe_core.plugins.checking import check_plugins

REPOSITORY = Path(msprobe_core.__file__).parents[1]
HOOKS = sorted(name for name in vars(hookspecs.HookSpecs) if name.startswith("msprobe_"))


@pytest.fixture
def registry():
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs.HookSpecs)
    return Registry(manager)


def offer(*names, hook="msprobe_register_processors"):
    """Return a plugin that offers objects of these names."""

    @hookimpl(specname=hook)
    def implementation():
        return [SimpleNamespace(name=name, reduce=print, recognises=print, read=print) for name in names]

    return SimpleNamespace(**{hook: implementation, "__doc__": "A plugin.\n\nMore."})


def test_a_plugin_is_listed_with_what_it_offers(registry):
    registry.add(Plugin("one", "1.2", "msprobe-one"), lambda: offer("histogram"))
    (plugin,) = registry.plugins
    assert (plugin.hooks, plugin.summary, plugin.problem) == (("msprobe_register_processors",), "A plugin.", None)
    assert list(registry.processors()) == ["histogram"]


def test_one_that_cannot_be_imported_is_named_and_left_out(registry, caplog):
    def load():
        raise ImportError("no such library")

    registry.add(Plugin("broken", "1.0", "msprobe-broken"), load)
    registry.add(Plugin("fine", "1.0", "msprobe-fine"), lambda: offer("sketch"))
    assert [plugin.problem for plugin in registry.plugins] == ["is left out: ImportError: no such library", None]
    assert list(registry.processors()) == ["sketch"]
    assert "the plugin 'broken' (msprobe-broken) is left out: ImportError: no such library" in caplog.text


def test_a_misspelt_hook_is_an_error(registry, caplog):
    registry.add(Plugin("typo", None, "somewhere"), lambda: SimpleNamespace(msprobe_register_procesors=list))
    assert "is left out: there is no hook 'msprobe_register_procesors'; known: msprobe_register_api_maps" in caplog.text
    assert registry.plugins[0].problem is not None


def test_a_hook_of_a_later_release_may_be_optional(registry, caplog):
    """So that one release of a plugin works with releases of the core that lack the hook."""
    later = hookimpl(lambda: [1], specname="msprobe_register_wonders", optionalhook=True)
    sketch = offer("sketch").msprobe_register_processors
    module = SimpleNamespace(msprobe_register_wonders=later, msprobe_register_processors=sketch)
    registry.add(Plugin("early", None, "x"), lambda: module)
    assert (registry.plugins[0].hooks, registry.plugins[0].problem) == (("msprobe_register_processors",), None)
    assert list(registry.processors()) == ["sketch"]
    assert caplog.records == []


@pytest.mark.parametrize(
    ("release", "is_taken", "problem"),
    [
        (__version__, True, None),
        ("0.0.1", True, None),
        ("99.1", False, "a hook that is left out, msprobe_register_processors: it needs msprobe-core 99.1 or later"),
        ("soon", False, "has a hook that failed, msprobe_register_processors"),
        (2, False, "has a hook that failed, msprobe_register_processors"),
    ],
    ids=str,
)
def test_a_hook_that_needs_a_later_release_is_left_out_alone(registry, caplog, release, is_taken, problem):
    sketch = requires_api(release)(offer("sketch").msprobe_register_processors)
    metrics = hookimpl(lambda: (), specname="msprobe_register_metrics")
    module = SimpleNamespace(msprobe_register_processors=sketch, msprobe_register_metrics=metrics)
    registry.add(Plugin("early", None, "x"), lambda: module)
    assert list(registry.processors()) == ["sketch"] * is_taken
    assert registry.metrics() == {}
    assert len(registry.plugins[0].problems) == (problem is not None)
    assert problem is None or problem in caplog.text


def test_a_hook_that_will_be_removed_is_announced(caplog):
    class Announced:
        @hookspecs.hookspec(warn_on_impl=DeprecationWarning("use msprobe_register_processors"))
        def msprobe_register_metrics(self):
            """Offer nothing."""

    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(Announced)
    registry = Registry(manager)
    metrics = hookimpl(lambda: (), specname="msprobe_register_metrics")
    registry.add(Plugin("old", "0.1", "msprobe-old"), lambda: SimpleNamespace(msprobe_register_metrics=metrics))
    text = "implements a hook that a later release removes: use msprobe_register_processors"
    assert registry.plugins[0].problem == text
    assert caplog.messages == [f"the plugin 'old' (msprobe-old) {text}"]
    assert list(registry.metrics()) == []  # it is still called


def test_one_that_fails_when_asked_is_named_and_left_out(registry, caplog):
    @hookimpl(specname="msprobe_register_processors")
    def implementation():
        raise ValueError("bad day")

    registry.add(
        Plugin("moody", "1.0", "msprobe-moody"), lambda: SimpleNamespace(msprobe_register_processors=implementation)
    )
    registry.add(Plugin("fine", "1.0", "msprobe-fine"), lambda: offer("sketch"))
    with caplog.at_level(logging.WARNING):
        assert list(registry.processors()) == ["sketch"]
    assert "the plugin 'moody'" in caplog.text
    assert "bad day" in caplog.text
    assert [plugin.name for plugin in registry.plugins if plugin.problem] == ["moody"]


def test_of_two_that_offer_one_name_the_later_offer_alone_is_left_out(registry, caplog):
    registry.add(Plugin("one", None, "x"), lambda: offer("sketch"))
    registry.add(Plugin("two", None, "y"), lambda: offer("histogram", "sketch"))
    assert list(registry.processors()) == ["sketch", "histogram"]
    assert registry.provider_of("msprobe_register_processors", "sketch") == "one"
    assert (
        "the plugin 'two' (y) offers 'sketch' (msprobe_register_processors), which is left out: the plugin"
        in caplog.text
    )


def test_a_plugin_does_not_choose_its_place(registry):
    registry.add(Plugin("one", None, "x"), lambda: offer("sketch"))

    @hookimpl(specname="msprobe_register_processors", tryfirst=True)
    def implementation():
        return [SimpleNamespace(name="sketch", reduce=print)]

    registry.add(Plugin("pushy", None, "y"), lambda: SimpleNamespace(msprobe_register_processors=implementation))
    registry.processors()
    assert registry.provider_of("msprobe_register_processors", "sketch") == "one"


def test_a_hook_is_asked_once_and_said_once(registry, caplog):
    asked = []

    @hookimpl(specname="msprobe_register_processors")
    def implementation():
        asked.append(1)
        return

    registry.add(Plugin("odd", None, "x"), lambda: SimpleNamespace(msprobe_register_processors=implementation))
    for _ in range(3):
        assert registry.processors() == {}
    assert len(asked) == len(caplog.records) == 1
    assert "as it returned None; return a list of offers, which may be empty" in caplog.text


def failing_generator():
    yield SimpleNamespace(name="sketch", reduce=None)
    raise ValueError("half way")


@pytest.mark.parametrize(
    ("offered", "problem"),
    [
        (5, "as it returned 5; return a list of offers"),
        (
            ["a"],
            "'a' (msprobe_register_processors), which is left out: it is no Processor: it lacks name, reduce",
        ),
        (failing_generator(), "half way"),
        ([SimpleNamespace(name="sketch")], "it lacks reduce"),
        ([SimpleNamespace(name="sketch", reduce=None)], "it lacks reduce"),
        ([SimpleNamespace(name=None, reduce=print)], "name is None, but must be text"),
    ],
)
def test_one_that_offers_something_else_is_named_and_left_out(registry, offered, problem, caplog):
    @hookimpl(specname="msprobe_register_processors")
    def implementation():
        return offered

    registry.add(Plugin("odd", None, "x"), lambda: SimpleNamespace(msprobe_register_processors=implementation))
    registry.add(Plugin("fine", None, "y"), lambda: offer("fine"))
    assert list(registry.processors()) == ["fine"]
    assert "the plugin 'odd' (x) " in caplog.text
    assert problem in caplog.text


@pytest.mark.parametrize("error", ["raise SystemExit(7)", "1 / 0", "this is no Python"])
@pytest.mark.parametrize("place", ["__init__.py", "hooks.py"])
def test_commands_work_beside_a_broken_plugin(tmp_path, error, place):
    package = tmp_path / "msprobe" / "broken"
    package.mkdir(parents=True)
    for name in ("__init__.py", "hooks.py"):
        (package / name).write_text(error if name == place else "")
    command = [sys.executable, "-m", "msprobe_core", "plugins"]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert run.returncode == 0, run.stderr
    assert re.search(r"^broken .* BROKEN$", run.stdout, re.MULTILINE)
    assert re.search(r"^frameworks: .*pytorch", run.stdout, re.MULTILINE)
    assert "Traceback" not in run.stderr


def test_two_distributions_with_one_name(tmp_path):
    for source in ("aaa", "msprobe-pair"):
        info = tmp_path / f"{source.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {source}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[msprobe]\npair = pair_hooks:plugin\n")
    (tmp_path / "pair_hooks.py").write_text('class Hooks:\n    """A pair."""\n\nplugin = Hooks()\n')
    path = os.pathsep.join([str(tmp_path), *sys.path])
    run = subprocess.run(
        [sys.executable, "-m", "msprobe_core", "plugins"], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert re.search(r"^pair +1\.0 +msprobe-pair +nothing  A pair\.", run.stdout, re.MULTILINE)
    assert "BROKEN\n    is left out: its name 'pair' is that of the plugin of msprobe-pair; uninstall one" in run.stdout


def distribution(folder, name, hooks, requires=()):
    """Install a distribution with one plugin, called like it, into a folder; return the environment that has it."""
    module = name.replace("-", "_")
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}")
    (info / "entry_points.txt").write_text(f"[msprobe]\n{module} = {module}_hooks\n")
    (folder / f"{module}_hooks.py").write_text("from msprobe_core.plugin import *\n" + hooks)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}


def listed(environment, *arguments):
    command = [sys.executable, "-m", "msprobe_core", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


STRANGER = """
from msprobe_core.plugin import ApiMap
@hookimpl(tryfirst=True)
def msprobe_register_api_maps(): return [ApiMap(name="pytorch"), ApiMap(name="mine")]
@hookimpl(tryfirst=True)
def msprobe_register_frameworks(): return [FrameworkOffer("pytorch", "torch", print)]
"""


def test_a_stranger_does_not_displace_a_plugin_of_this_project(tmp_path):
    environment = distribution(tmp_path, "aaa", STRANGER)
    program = """
from msprobe_core.plugins import registry
found = registry()
found.frameworks(), found.api_maps()
hooks = {"pytorch": "msprobe_register_frameworks", "mine": "msprobe_register_api_maps"}
print(*(found.provider_of(hook, name) for name, hook in hooks.items()))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert run.stdout.splitlines()[-1] == "pytorch aaa"
    assert run.stderr.count("the plugin 'aaa' (aaa) offers 'pytorch'") == 2
    assert run.stderr.count("the plugin 'pytorch' offers it too; uninstall one of them, or leave one out with") == 2


@pytest.mark.slow
def test_a_plugin_is_left_out_on_request(tmp_path):
    environment = distribution(tmp_path, "aaa", "raise RuntimeError('planted')")
    assert "RuntimeError: planted" in listed(environment, "plugins").stderr
    for run in (
        listed(environment, "--no-plugin", "aaa", "plugins"),
        listed(environment | {"MSPROBE_DISABLE_PLUGINS": "aaa, no-such"}, "plugins"),
    ):
        assert re.search(r"^aaa +1\.0 +aaa +DISABLED$", run.stdout, re.MULTILINE)
        assert "planted" not in run.stdout + run.stderr
    assert "MSPROBE_DISABLE_PLUGINS: there is no plugin 'no-such'" in run.stderr


@pytest.mark.parametrize(("needs", "is_met"), [(">=0.9,<1", False), (">=0.1,<1", True), (">=0.1 ; extra == 'x'", True)])
def test_what_a_plugin_needs_of_the_core(tmp_path, needs, is_met):
    environment = distribution(tmp_path, "aaa", "", ["numpy", f"msprobe-core{needs}"])
    run = listed(environment, "plugins", "check", "aaa")
    assert run.returncode == (0 if is_met else 1)
    assert ("left out: it needs msprobe-core" in run.stdout) == (not is_met)


FAILING = """
import click
@click.command()
def greet(): 1 / 0
@hookimpl
def msprobe_register_commands(): return [greet]
"""


def test_a_command_that_fails_names_its_plugin(tmp_path):
    run = listed(distribution(tmp_path, "aaa", FAILING), "greet")
    assert run.returncode == 2
    assert "the command 'greet' of the plugin 'aaa' failed (ZeroDivisionError: division by zero)" in run.stderr
    assert "Traceback" not in run.stderr
    assert "Traceback" in listed(distribution(tmp_path / "b", "aaa", FAILING), "--debug", "greet").stderr


def test_third_parties_readers_come_first(registry):
    registry.add(Plugin("core:json", None, "core"), lambda: offer("json", hook="msprobe_register_readers"))
    registry.add(Plugin("third", None, "third"), lambda: offer("arrow", hook="msprobe_register_readers"))
    assert [reader.name for reader in registry.readers()] == ["arrow", "json"]


# --- the hooks and their documentation --------------------------------------------------------------------------


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_all_labels(hook):
    text = getattr(hookspecs.HookSpecs, hook).__doc__
    for label in ("Called:", "Cost:", "Returns:"):
        assert label in text, f"{hook} lacks {label}"


def test_what_holds_for_all_hooks_is_said_once():
    text = hookspecs.HookSpecs.__doc__
    for label in ("Order:", "Errors:", "Since:"):
        assert label in text, f"the class lacks {label}"


def test_the_facade_has_every_protocol():
    folder = REPOSITORY / "msprobe_core" / "protocols"
    classes = [
        node.name
        for path in sorted(folder.glob("*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    ]
    assert classes
    assert [name for name in classes if name not in plugin.__all__] == []
    assert [name for name in plugin.__all__ if not hasattr(plugin, name)] == []


def test_protocols_can_be_imported_from_where_they_were():
    assert hookspecs.FrameworkOffer is plugin.FrameworkOffer
    assert not hasattr(hookspecs, "Absent")


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_runnable_example(hook, registry):
    page = (REPOSITORY / "docs" / "hooks.md").read_text()
    section = re.search(rf"^## `{hook}`$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert section, f"docs/hooks.md has no section on {hook}"
    example = re.search(r"```python\n(.*?)```", section.group(1), re.DOTALL)
    assert example, f"docs/hooks.md has no example of {hook}"
    module = {"__name__": "example"}
    exec(compile(example.group(1), f"docs/hooks.md:{hook}", "exec"), module)
    registry.add(Plugin("example", None, "docs"), lambda: SimpleNamespace(**{hook: module[hook]}))
    assert registry.plugins[0].problem is None
    (offers,) = [implementation.function() for implementation in getattr(registry.manager.hook, hook).get_hookimpls()]
    assert offers
    assert all(offer.name for offer in offers)


OLD = sorted((REPOSITORY / "tests" / "data" / "old_plugins").glob("*.py"))
"""Plugins as they were written for earlier releases; a release adds its own and edits none."""


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.stem)
def test_plugins_for_earlier_releases_still_load(registry, path, caplog):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    registry.add(Plugin("old", "0.1", "msprobe-old"), lambda: module)
    (found,) = check_plugins(registry)
    assert [problem for problem in found.problems if problem.level is not Level.NOTE] == []
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert {hook: len(registry.offers(hook)) for hook in found.hooks} == dict.fromkeys(found.hooks, 1)
    assert len(found.hooks) > 8


# --- layers -----------------------------------------------------------------------------------------------------

LAYERS = [
    {"_version", "console", "errors", "findings", "former_names", "garbage", "interrupts", "lazy", "model"},
    {"guard", "manifest", "names", "native", "untrusted"},
    {"fingerprint"},
    {"protocols"},
    {"hookspecs"},
    {"config", "plugins", "extras", "scaffold"},
    {"store"},
    {"custom_checks", "monitoring", "order", "execute", "interception", "tensor_files"},
    {"judge"},
    {"capture", "compare"},
    {"replay"},
    {"api_check", "checkpoint", "config_check", "confirm", "gradients", "monitor", "overflow"},
    {"free_benchmark", "locate"},
    {"compile_check"},
    {"twin"},
    {"report", "estimate"},
    {"calibrate", "view", "compat", "rl"},
    {"bisect_steps", "exports", "doctor", "migrate", "rl_page"},
    {"cli", "testing"},
    {"__main__", "comparison", "plugin", "recording"},
]
"""Rooms of the core, from the ground up. A room imports from rooms below it, never from one beside it."""

FRAMEWORKS = {"torch", "torch_npu", "mindspore", "verl", "transformers", "msprobe"}


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(path):
    return path.relative_to(REPOSITORY / "msprobe_core").parts[0].removesuffix(".py")


CORE_FILES = sorted((REPOSITORY / "msprobe_core").rglob("*.py"))


def test_imports_run_downwards():
    floor = {room: i for i, rooms in enumerate(LAYERS) for room in rooms}
    assert len(CORE_FILES) > 100
    for path in CORE_FILES:
        room = room_of(path)
        for name in imports_of(path):
            parts = name.split(".")
            assert parts[0] not in FRAMEWORKS, f"{path}: the core imports {name}"
            if parts[0] != "msprobe_core" or room == "__init__" or parts[1] == room:
                continue
            assert floor[parts[1]] < floor[room], f"{path}: {room} imports {name}"


@pytest.mark.parametrize(
    ("plugin", "foreign"),
    [("pytorch", {"mindspore", "verl"}), ("mindspore", {"torch", "verl"}), ("verl", {"mindspore"})],
    ids=["pytorch", "mindspore", "verl"],
)
def test_plugins_import_their_own_framework_only(plugin, foreign):
    paths = sorted((REPOSITORY / "plugins" / plugin).rglob("msprobe/**/*.py"))
    assert len(paths) > 10
    for path in paths:
        for name in imports_of(path):
            assert name.split(".")[0] not in foreign, f"{path} imports {name}"


# --- the public line --------------------------------------------------------------------------------------------


def public_modules():
    """Return the modules that docs/plugins.md names as public."""
    page = (REPOSITORY / "docs" / "plugins.md").read_text()
    section = re.search(r"^## What is public$(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    assert section
    return re.findall(r"^\| `(msprobe_core[.\w]*)` \|", section.group(1), re.MULTILINE)


PUBLIC = {name: importlib.import_module(name).__all__ for name in public_modules()}

AUTHORS = sorted(
    path
    for folder in (REPOSITORY / "plugins", *sorted((REPOSITORY / "examples").glob("*_plugin")))
    for path in folder.rglob("*.py")
    if "build" not in path.parts
)
"""Sources of plugins: ours, and those that docs/plugins.md gives as templates."""


def private_imports(source):
    """Return what plugin code imports from the core besides public names, and names of private modules in strings."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "msprobe_core":
            names = PUBLIC.get(node.module, ())
            found += [f"{node.module}.{alias.name}" for alias in node.names if alias.name not in names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.partition(".")[0] == "msprobe_core"]
        elif isinstance(node, ast.Constant) and re.fullmatch(r"msprobe_core(\.\w+)*", str(node.value)):
            found += [node.value] if node.value not in PUBLIC else []
    return found


@pytest.mark.parametrize(
    "path", [*AUTHORS, REPOSITORY / "tests" / "support" / "numpy_layers.py"], ids=lambda path: "/".join(path.parts[-3:])
)
def test_plugins_import_public_names_only(path):
    assert private_imports(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "from msprobe_core.judge.verdict import Verdict",
        "from msprobe_core.plugin import Verdict",
        "from msprobe_core import capture",
        "import msprobe_core.capture",
        "def f():\n    from msprobe_core.store.layout import create_file",
        "lazy_names(__name__, {'msprobe_core.report': 'compare'})",
    ],
)
def test_a_private_import_is_found(source):
    assert private_imports(source)


def test_public_names_have_one_place_each():
    everything = [name for names in PUBLIC.values() for name in names]
    assert len(PUBLIC) == 10
    assert {name for name in everything if everything.count(name) > 1} == set()


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_there_for_programs_and_for_type_checkers(module):
    for name in PUBLIC[module]:
        exec(f"from {module} import {name}")
    bodies = [ast.parse(Path(importlib.import_module(module).__file__).read_text()).body]
    bodies += [node.body for node in bodies[0] if isinstance(node, ast.If)]
    imported = {
        alias.name for body in bodies for node in body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert set(PUBLIC[module]) <= imported
    assert imported - set(PUBLIC[module]) <= {"TYPE_CHECKING", "lazy_names"}


def test_facades_import_nothing_until_they_are_used():
    facades = [name for name in PUBLIC if name != "msprobe_core.testing"]  # which is a part of pytest
    program = """
import importlib
for name in sys.argv[1:]: importlib.import_module(name)
print(sorted({"click", "numpy", "polars"} & sys.modules.keys()))
print(sorted({name.split(".")[1] for name in sys.modules if name.startswith("msprobe_core.")}))
"""
    heavy, rooms = run_blocked(program, *facades).stdout.splitlines()
    assert heavy == "[]"
    assert {"capture", "compare", "config", "judge", "native", "report"}.isdisjoint(ast.literal_eval(rooms))


GRAMMAR = re.compile(r"forward|backward\b|parameters_grad|Module\|Cell")


def test_only_names_knows_patterns_of_entry_names():
    found = [
        (str(path.relative_to(REPOSITORY)), node.value)
        for path in CORE_FILES
        if path != REPOSITORY / "msprobe_core" / "names.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"\\[.dw]", node.value)
    ]
    assert len(found) > 10
    assert [each for each in found if GRAMMAR.search(each[1])] == []


def test_no_room_is_a_drawer():
    assert not [path for path in CORE_FILES if path.stem in {"utils", "common", "const", "helpers", "misc"}]


def test_the_namespace_has_no_init():
    assert not list((REPOSITORY / "plugins").glob("*/msprobe/__init__.py"))


BLOCK = """
import importlib.machinery, sys
class Block:
    # Found, because libraries ask whether torch is there; but whoever imports it fails. The last one is installed with
    # all frameworks, but not required by the core.
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "torch_npu", "mindspore", "verl", "transformers", "typing_extensions"}:
            return importlib.machinery.ModuleSpec(name, self)
    def create_module(self, spec):
        raise ImportError("blocked: " + spec.name)
    def exec_module(self, module):
        raise ImportError("blocked")
sys.meta_path.insert(0, Block())
"""


def run_blocked(program, *arguments):
    return subprocess.run(
        [sys.executable, "-c", BLOCK + program, *map(str, arguments)], capture_output=True, text=True, cwd=REPOSITORY
    )


def test_everything_in_the_core_imports_with_every_framework_blocked():
    modules = [
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")
        for path in CORE_FILES
        if path.stem != "__main__"
    ]
    done = run_blocked("import importlib\nfor name in sys.argv[1:]: importlib.import_module(name)", *modules)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("release", ["26.2.0_statistics", "26.2.0_md5", "26.2.0_tensor"])
def test_dumps_are_compared_with_every_framework_blocked(release, tmp_path):
    step = REPOSITORY / "tests" / "data" / "mindstudio_probe" / release / "step0"
    done = run_blocked(
        "from msprobe_core.cli import main; main(sys.argv[1:])", "compare", "-tp", step, "-gp", step, "-o", tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "AGREE" in done.stdout


def test_finding_the_plugins_imports_no_framework():
    program = """
from msprobe_core.plugins import registry
assert not [plugin for plugin in registry().plugins if plugin.problem], registry().plugins
assert "msprobe.pytorch.hooks" in sys.modules
"""
    done = run_blocked(f"sys.path.insert(0, {str(REPOSITORY / 'plugins' / 'pytorch')!r})" + program)
    assert done.returncode == 0, done.stderr


def test_a_package_that_shadows_ours_is_detected(tmp_path):
    """As where mindstudio-probe is installed in the same environment."""
    (tmp_path / "msprobe").mkdir()
    (tmp_path / "msprobe" / "__init__.py").write_text("")
    info = tmp_path / "msprobe_own-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: msprobe-own\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[msprobe]\nown = msprobe.own.hooks\n")
    program = f"""
sys.path.insert(0, {str(tmp_path)!r})
from msprobe_core.cli import main
main(["plugins"])
"""
    done = run_blocked(program)
    assert done.returncode == 0
    assert f"the package 'msprobe' in {tmp_path / 'msprobe'} hides the plugins of msprobe-core" in done.stderr
    assert "pip uninstall mindstudio-probe" in done.stderr
    assert re.search(r"^own .* BROKEN\n    is left out: the package 'msprobe' in", done.stdout, re.MULTILINE)
    program = f"""
sys.path.insert(0, {str(tmp_path)!r})
import msprobe
msprobe.__path__.append({str(REPOSITORY / "plugins" / "pytorch" / "msprobe")!r})
from msprobe.pytorch import PrecisionDebugger
"""
    done = run_blocked(program)
    assert "HiddenPackageError: the package 'msprobe' in" in done.stderr


def test_the_plugin_for_verl_boots_without_torch_and_without_verl():
    directory = str(REPOSITORY / "plugins" / "verl")
    program = f"""
sys.path.insert(0, {directory!r})
import msprobe.verl.boot
from msprobe.verl import hooks
print([offer.name for offer in hooks.msprobe_register_stages()], sorted(hooks.msprobe_register_commands()[0].commands))
"""
    done = run_blocked(program)
    assert done.stdout.splitlines() == ["['verl'] ['check', 'compare', 'doctor']"], done.stderr


def test_the_public_names_are_the_public_names():
    import msprobe_core

    assert set(msprobe_core.__all__) == {"PrecisionDebugger", "__version__", "compare_dumps"}
    assert all(getattr(msprobe_core, name) is not None for name in msprobe_core.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = msprobe_core.nothing
