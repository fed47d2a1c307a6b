"""``msprobe compile`` and `PrecisionChecker` on Inductor itself: healthy modules agree, a wrong lowering is named."""

import csv
import json
import subprocess
import sys
import warnings
from contextlib import contextmanager
from functools import cache
from importlib import import_module

import pytest
import torch
from architectures import ARCHITECTURES
from torch import nn
from torch_traces import traces_in

from msprobe_core.compile_check.check import check_modules, guilty_part, module_compiler
from msprobe_core.compile_check.verdict import CompileVerdict
from msprobe_core.errors import ConfigError, SessionError
from msprobe_core.free_benchmark.step_function import step_of

aten = torch.ops.aten

pytestmark = [
    pytest.mark.skipif(
        not hasattr(torch.compiler, "set_stance") or sys.platform != "linux", reason="needs a compiler and its bisector"
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),  # that importing Inductor causes
]


class Block(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.norm, self.act = nn.LayerNorm(width), nn.GELU()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


@cache
def sample(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(Block(), nn.Softmax(-1)).to(dtype), torch.randn(128, 64).to(dtype)


def compiler_of(dtype=torch.float32):
    model, batch = sample(dtype)
    return module_compiler(step_of(lambda: model(batch).sum().backward(), model, None))


class Wrong:
    """A pass of the compiler that scales the results of one operator."""

    def __init__(self, target, factor):
        self.target, self.factor = target, factor

    def __call__(self, graph):
        for node in list(graph.nodes):
            if node.op == "call_function" and node.target is self.target:
                with graph.inserting_after(node):
                    scaled = graph.call_function(aten.mul.Tensor, (node, self.factor))
                    node.replace_all_uses_with(scaled)
                    scaled.args = (node, self.factor)


@contextmanager
def wrong_compiler(target, factor=1.001):
    from torch._inductor import config

    with config.patch(post_grad_custom_post_pass=Wrong(target, factor)):
        yield


@pytest.fixture(scope="module")
def healthy():
    return check_modules(compiler_of())


@pytest.mark.slow
def test_healthy_modules_agree_and_stay_as_they_were(healthy):
    model, batch = sample()
    before = traces_in(model)
    state = [each.clone() for each in model.state_dict().values()]
    assert [module.path for module in healthy.modules] == [
        "model", "0", "0.norm", "0.up", "0.act", "0.down", "1"
    ]  # fmt: skip
    assert not healthy.culprits
    assert healthy.num_judged == 7
    assert {each.name for each in healthy.modules[4].results} == {"output.0", "input.0.grad"}
    assert max(each.compiled for module in healthy.modules for each in module.results) < 0.7
    assert "computes what the modules say" in healthy.headline.text
    assert traces_in(model) == before
    assert all(torch.equal(one, other) for one, other in zip(state, model.state_dict().values(), strict=True))
    assert torch.isfinite(model(batch)).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "module"),
    [(aten.rsqrt.default, "0.norm (LayerNorm)"), (aten.erf.default, "0.act (GELU)")],
    ids=["norm", "gelu"],
)
def test_a_wrong_lowering_is_named_at_its_module(target, module):
    with wrong_compiler(target):
        found = check_modules(compiler_of())
    assert [each.label for each in found.culprits] == [module]
    assert found.culprits[0].verdict is CompileVerdict.WORSE
    assert {each.path for each in found.modules if each.verdict.is_bad} == {"model", "0", module.split()[0]}
    assert f"{module} is wrong when inductor compiles it alone" in found.headline.text


@pytest.mark.slow
def test_a_factor_below_the_last_digit_of_bfloat16_shows_as_bias():
    torch.manual_seed(0)
    model, batch = nn.LayerNorm(256).bfloat16(), torch.randn(512, 256).bfloat16()
    step = step_of(lambda: model(batch), model, None)
    assert not check_modules(module_compiler(step)).culprits
    with wrong_compiler(aten.rsqrt.default):
        found = check_modules(module_compiler(step))
    assert "errors of one sign" in found.headline.text
    assert found.culprits[0].results[0].compiled < 1


class Differs(nn.Module):
    """Computes something else where it is compiled, or where it is not."""

    def __init__(self, *, is_wrong_eagerly):
        super().__init__()
        self.is_wrong_eagerly = is_wrong_eagerly

    def forward(self, x):
        is_right = torch.compiler.is_compiling() is self.is_wrong_eagerly
        return torch.exp(x) if is_right or x.dtype is torch.float64 else torch.exp(x) * 1.001


def test_float64_says_which_side_is_wrong():
    torch.manual_seed(0)
    batch = torch.randn(256)
    verdicts = {}
    for is_wrong_eagerly in (False, True):
        model = Differs(is_wrong_eagerly=is_wrong_eagerly)
        step = step_of(lambda model=model: model(batch), model, None)
        found = check_modules(module_compiler(step), backend="aot_eager")
        verdicts[is_wrong_eagerly] = found.modules[0].verdict
    assert verdicts == {False: CompileVerdict.WORSE, True: CompileVerdict.EAGER_WRONG}


@pytest.mark.slow
def test_chains_that_the_compiler_fuses_in_float32_are_better():
    torch.manual_seed(0)

    class Chain(nn.Module):
        def forward(self, x):
            for _ in range(6):
                x = torch.sin(x) * 1.1
            return x

    model, batch = Chain(), torch.randn(4096).bfloat16()
    found = check_modules(module_compiler(step_of(lambda: model(batch), model, None)))
    assert found.modules[0].verdict is CompileVerdict.COMPILED_BETTER


def test_what_cannot_be_judged_says_why():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    batch = torch.randn(2, 4)
    found = check_modules(module_compiler(step_of(lambda: model(batch), model, None)), backend="aot_eager")
    assert [each.verdict for each in found.modules] == [
        CompileVerdict.CANNOT_TELL, CompileVerdict.EQUAL, CompileVerdict.CANNOT_TELL
    ]  # fmt: skip
    assert "model.eval()" in found.notes[0].text
    compiler = module_compiler(step_of(lambda: model(batch), model, None))
    with pytest.raises(ConfigError, match="no backend"):
        check_modules(compiler, backend="inductr")
    with pytest.raises(ConfigError, match="no module that the step calls is called layers"):
        check_modules(compiler, patterns=["layers.*"])
    with pytest.raises(SessionError, match="calls none"):
        module_compiler(step_of(lambda: None, model, None))


@pytest.mark.slow
def test_the_bisector_names_the_lowering():
    torch.manual_seed(0)
    from torch._inductor import lowering

    original = lowering.lowerings[aten.erf.default]

    def wrong(x):
        return lowering.lowerings[aten.mul.Tensor](original(x), 1.001)

    model, batch = nn.GELU(), torch.randn(256)
    compiler = module_compiler(step_of(lambda: model(batch), model, None))
    lowering.lowerings[aten.erf.default] = wrong
    try:
        with torch._inductor.config.patch(force_disable_caches=True):
            found = check_modules(compiler)
            part, finding = guilty_part(compiler, found.culprits[0])
    finally:
        lowering.lowerings[aten.erf.default] = original
    assert part is not None
    assert part.backend == "inductor"
    assert part.subsystem == "lowerings"
    assert "erf" in part.detail
    assert "lowerings of the backend inductor" in finding.text


PROGRAM = """
import torch
from torch import nn
from torch._inductor import config

class Wrong:
    def __call__(self, graph):
        for node in list(graph.nodes):
            if node.op == "call_function" and node.target is torch.ops.aten.erf.default:
                with graph.inserting_after(node):
                    scaled = graph.call_function(torch.ops.aten.mul.Tensor, (node, 1.001))
                    node.replace_all_uses_with(scaled)
                    scaled.args = (node, 1.001)

config.post_grad_custom_post_pass = Wrong()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 16), nn.GELU())
batch = torch.randn(32, 16)

def step():
    model(batch).sum().backward()
"""


def run(*arguments, cwd):
    command = [sys.executable, "-m", "msprobe_core", "compile", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.usefixtures("has_torch_imported")
def test_the_command_names_the_module_and_how_to_go_on(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    done = run("check", "train.py:step", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("1 (GELU) is wrong when inductor compiles it alone: output.0 is ")
    again = "msprobe compile check train.py:step --modules 1 -o output/bisected"
    assert f"to go on: python -m torch._inductor.compiler_bisector run {again}\n" in done.stdout
    content = json.loads((tmp_path / "output/compile.json").read_text())
    assert content["culprits"] == ["1"]
    assert content["counts"]["worse"] == 2
    with (tmp_path / "output/compile.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["status"] for row in rows if row["module_name"] == "0"} == {"PASS"}
    assert [row["check_type"] for row in rows if row["module_name"] == "1"] == ["fwd_output", "grad_input"]
    assert rows[-2]["status"] == "FAIL"
    done = run("check", "train.py:step", "--backend", "aot_eager", "-o", "eager", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    (tmp_path / "other").mkdir()
    (tmp_path / "other/compile.json").write_text("{}")
    done = run("check", "train.py:step", "-o", "other", cwd=tmp_path)
    assert done.returncode == 2
    assert "compile.json" in done.stderr


@pytest.mark.slow
def test_the_published_checker_does_not_pass_a_tenth_of_a_percent(tmp_path):
    checker_class = import_module("msprobe.pytorch.compile_accuracy_checker").PrecisionChecker
    model, batch = sample()
    before = traces_in(model)
    checker = checker_class(backend="inductor", threshold=1e-4)
    with pytest.raises(SessionError, match="no results"):
        checker.report(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match="checks nothing"):
        checker.install()
    checker.wrap_by_policy(model, (nn.LayerNorm, nn.GELU, nn.Linear))
    checker.ignore("0.down")
    checker.install()
    model(batch)
    with wrong_compiler(aten.rsqrt.default):
        checker.collect()
    with checker.report(tmp_path / "compile.csv").open() as file:
        rows = [(row["module_name"], row["check_type"], row["status"]) for row in csv.DictReader(file)]
    assert ("0.norm", "fwd_output", "FAIL") in rows
    assert {status for module, _, status in rows if module != "0.norm"} == {"PASS"}
    assert {module for module, *_ in rows} == {"0.norm", "0.up", "0.act"}
    assert traces_in(model) == before


def test_the_published_checker_compares_a_whole_model():
    checker_class = import_module("msprobe.pytorch.compile_accuracy_checker").PrecisionChecker
    model, batch = sample()
    with pytest.warns(UserWarning, match="'cast_dtype' is ignored"):
        checker = checker_class(cast_dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        found = checker.compare(torch.compile(model), batch)
    assert found.num_judged == 7
    assert not found.culprits


@pytest.mark.parametrize("names", [("0", "0.act"), ("0.act", "0")])
def test_modules_inside_of_others_may_be_wrapped_in_any_order(names):
    checker_class = import_module("msprobe.pytorch.compile_accuracy_checker").PrecisionChecker
    model, batch = sample()
    checker = checker_class()
    for name in names:
        checker.wrap(model.get_submodule(name), name)
    checker.install()
    model(batch)
    assert [module.path for module in checker.collect().modules] == list(names)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), [("vit", torch.bfloat16), ("mixtral", torch.float32)])
def test_no_module_of_a_healthy_model_is_wrong(name, dtype):
    architecture = ARCHITECTURES[name]
    model = architecture.build().to(dtype).eval()
    batch = {
        key: value.to(dtype) if value.is_floating_point() else value for key, value in architecture.batch().items()
    }
    found = check_modules(module_compiler(step_of(lambda: model(**batch), model, None)))
    assert not found.culprits, found.headline.text
    assert found.num_judged > 0.9 * len(found.modules)
