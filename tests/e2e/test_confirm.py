"""Who is wrong: faults on either side of real runs are distinguished from rounding and from other arguments."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from architectures import ARCHITECTURES
from torch import nn
from torch.nn import functional
from wrong_kernels import FAULTS, Net, call, kernel, make_net, other_eps, patched, record, train

from msprobe_core.cli import main
from msprobe_core.confirm import Cause, Verdict, confirm, load_model
from msprobe_core.confirm.confirm_codes import ConfirmCode
from msprobe_core.findings import content_of
from msprobe_core.store.reading import read_dump

SIDES = ["target", "golden"]


DTYPES = (torch.float32, torch.bfloat16)
CASES = [(name, dtype) for name in FAULTS for dtype in DTYPES if (name, dtype) != ("cast", torch.bfloat16)]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    place = tmp_path_factory.mktemp("healthy")
    return {dtype: record(place / str(dtype), train(dtype)) for dtype in (torch.float32, torch.bfloat16)}


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]} {str(case[1])[6:]}")
def faulty(request, tmp_path_factory):
    name, dtype = request.param
    plant, entry = FAULTS[name]
    with plant():
        return dtype, record(tmp_path_factory.mktemp("faulty") / name, train(dtype)), entry


def sides(side, faulty, healthy):
    return [read_dump(path) for path in ((faulty, healthy) if side == "target" else (healthy, faulty))]


@pytest.mark.parametrize("side", SIDES)
def test_fault_of_a_kernel(side, faulty, healthy):
    dtype, path, entry = faulty
    found = confirm(*sides(side, path, healthy[dtype]), entry)
    assert (found.verdict, found.cause) == (Verdict(side), Cause.COMPUTATION), found
    wrong_and_right = ("confirm.target-wrong", "confirm.golden-right")
    if side == "golden":
        wrong_and_right = ("confirm.golden-wrong", "confirm.target-right")
    assert tuple(each.code.value for each in found.reason.fields["clauses"]) == wrong_and_right
    wrong, right = (found.target, found.golden) if side == "target" else (found.golden, found.target)
    assert wrong.worst.error > max(wrong.worst.rounding, wrong.worst.condition)
    assert right.worst.error <= right.worst.rounding


@pytest.mark.parametrize("side", SIDES)
def test_in_a_module_the_first_wrong_call_is_the_answer(side, faulty, healthy):
    dtype, path, entry = faulty
    if dtype is torch.bfloat16:
        pytest.skip("the calls inside are judged one by one, as above")
    phase = entry.rpartition(".")[2]
    found = confirm(*sides(side, path, healthy[dtype]), f"Module.Net.{phase}.0")
    assert (found.verdict, found.entry) == (Verdict(side), entry), found
    assert found.looked_at[-1] == (entry, Verdict(side))
    assert all(verdict is Verdict.NEITHER for _, verdict in found.looked_at[:-1])


@pytest.mark.parametrize("side", SIDES)
def test_a_module_is_replayed_with_the_model(side, tmp_path):
    """At level L0 nothing inside is recorded, and the norm's parameters come from the dump."""
    healthy = record(tmp_path / "healthy", train(torch.float32), level="L0")
    with patched(torch, "layer_norm", other_eps):
        wrong = record(tmp_path / "wrong", train(torch.float32), level="L0")
    dumps = sides(side, wrong, healthy)
    for entry in ("Module.norm.LayerNorm.forward.0", "Module.Net.forward.0"):
        found = confirm(*dumps, entry, model=make_net())
        assert (found.verdict, found.entry) == (Verdict(side), entry), found
    found = confirm(*dumps, "Module.head.Linear.forward.0", model=make_net())
    assert (found.verdict, found.cause) == (Verdict.NEITHER, Cause.INPUTS), found
    found = confirm(*dumps, "Module.norm.LayerNorm.forward.0")
    assert found.verdict is Verdict.CANNOT_TELL
    assert found.reason.code is ConfirmCode.NOTHING_INSIDE
    assert json.loads(found.next_config)["level"] == "mix"


# --- programs that ask for something else -------------------------------------------------------------------------

CHANGES = {"eps": {"eps": 0.1}, "scale": {"scale": 1.5}, "mask": {"shift": 1}}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_model_says_which_arguments_are_meant(side, dtype, change, healthy, tmp_path):
    other = record(tmp_path / "other", train(dtype, lambda: Net(**CHANGES[change])))
    dumps = sides(side, other, healthy[dtype])
    found = confirm(*dumps, "Module.Net.forward.0", model=make_net())
    assert found.verdict is Verdict(side), found
    found = confirm(*dumps, "Module.Net.forward.0")
    assert found.verdict in (Verdict.CANNOT_TELL, Verdict.NEITHER)


@pytest.mark.parametrize("side", SIDES)
def test_other_arguments(side, healthy, tmp_path):
    other = record(tmp_path / "other", train(torch.float32, lambda: Net(eps=0.1)))
    dumps = sides(side, other, healthy[torch.float32])
    found = confirm(*dumps, "Functional.layer_norm.0.forward")
    assert (found.verdict, found.cause) == (Verdict.CANNOT_TELL, Cause.ARGUMENTS), found
    assert found.reason.code is ConfirmCode.ASKED_OTHERWISE
    assert found.reason.fields["argument"].fields["argument"] == "eps"
    assert "--model" in found.next_command.fields["command"]
    found = confirm(*dumps, "Functional.layer_norm.0.forward", model=make_net())
    assert (found.verdict, found.entry) == (Verdict(side), "Module.norm.LayerNorm.forward.0"), found


def test_a_fault_before_the_call_is_not_its_own(healthy, tmp_path):
    other = record(tmp_path / "other", train(torch.float32, change=lambda x: x * 1.03))
    found = confirm(read_dump(other), read_dump(healthy[torch.float32]), "Functional.linear.0.forward")
    assert (found.verdict, found.cause) == (Verdict.NEITHER, Cause.INPUTS), found
    assert found.input_difference == pytest.approx(0.03, rel=0.01)


# --- rounding -----------------------------------------------------------------------------------------------------

ILL = {
    "difference": (lambda x: x - 1.0, "Tensor.__sub__.0.forward"),
    "log": (torch.log, "Torch.log.0.forward"),
    "softmax": (lambda x: functional.softmax(x * 1e4, dim=-1), "Functional.softmax.0.forward"),
}


@pytest.mark.parametrize("case", ILL)
def test_ill_conditioned(case, tmp_path):
    function, entry = ILL[case]
    torch.manual_seed(2)
    x = 1 + 1e-4 * torch.randn(64)
    nudged = torch.nextafter(x, torch.where(torch.rand(64) < 0.5, 0.0, 2.0))
    target = read_dump(record(tmp_path / "target", call(function, nudged), level="L1"))
    golden = read_dump(record(tmp_path / "golden", call(function, x), level="L1"))
    found = confirm(target, golden, entry)
    assert (found.verdict, found.cause) == (Verdict.ILL_CONDITIONED, Cause.CONDITION), found
    assert found.output_difference > 1e-4
    assert found.golden.worst.amplification > 100


def test_a_sum_in_another_order_is_right(tmp_path):
    torch.manual_seed(3)
    x, w = torch.randn(4, 4096), torch.randn(8, 4096)

    def backwards(bias, x, weight, *, beta=1, alpha=1):
        total = bias.expand(x.shape[0], -1).clone()
        for i in reversed(range(x.shape[1])):
            total += x[:, i, None] * weight[None, i]
        return total

    run = call(lambda: functional.linear(x, w, torch.zeros(8)))
    golden = read_dump(record(tmp_path / "golden", run, level="L1"))
    with kernel("addmm", backwards):
        target = read_dump(record(tmp_path / "target", run, level="L1"))
    found = confirm(target, golden, "Functional.linear.0.forward")
    assert found.verdict is Verdict.NEITHER, found
    assert found.output_difference > 0


# --- healthy calls of every kind ----------------------------------------------------------------------------------


def odd_program():
    """In-place writes, indices, lists, keywords, None, casts, one tensor twice, integers."""
    torch.manual_seed(4)
    x = torch.randn(4, 6, requires_grad=True)
    y = x * x
    y.mul_(0.5)
    y += 1
    y[1:, None, 2] = 3.0
    y = functional.relu(y, inplace=True)
    z = torch.cat([y, y[[0, 2]], y[-1:, ...]], dim=0)
    parts = z.split([2, 5])
    order = parts[1].argsort(dim=-1, descending=True)
    top = torch.topk(z, k=2, dim=-1)
    taken = torch.gather(parts[1], 1, order)
    half = taken.to(torch.bfloat16) @ taken.to(torch.bfloat16).t()
    wide = torch.softmax(half, -1, dtype=torch.float32)
    picked = torch.where(wide > 0.2, wide, torch.zeros(()))
    norm = functional.layer_norm(picked, [5], None, None)
    mixed = torch.einsum("ij,kj->ik", norm, norm).masked_fill(torch.eye(5, dtype=torch.bool), float("-inf"))
    mixed = mixed.to("cpu").clamp(max=2**40)
    total = torch.logsumexp(mixed, -1).sum() + top.values.sum() + functional.dropout(z, p=0.0, training=True).mean()
    total.backward()


def entries_of(dump):
    names = dump.frame["entry"].unique(maintain_order=True).to_list()
    return [name for name in names if not name.startswith("Module.")]


def test_healthy_calls_of_every_kind(tmp_path):
    dump = read_dump(record(tmp_path / "run", call(odd_program), level="L1"))
    found = {entry: confirm(dump, dump, entry) for entry in entries_of(dump)}
    others = {entry: each.reason.text for entry, each in found.items() if each.verdict is not Verdict.NEITHER}
    assert others.keys() <= {"Torch.randn.0.forward"}, others
    assert len(found) > 40
    assert any(entry.endswith("backward") for entry in found)


@pytest.mark.parametrize("autocast", [False, True], ids=["bfloat16", "autocast"])
def test_a_healthy_model(autocast, tmp_path):
    architecture = ARCHITECTURES["llama"]
    model = architecture.build(num_hidden_layers=1)
    model = model if autocast else model.bfloat16()

    def run(debugger):
        with debugger.start(model), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            model(**architecture.batch()).loss.backward()

    dump = read_dump(record(tmp_path / "run", run))
    entries = entries_of(dump)[::3]
    found = {entry: confirm(dump, dump, entry) for entry in entries}
    others = {entry: each.reason.text for entry, each in found.items() if each.verdict is not Verdict.NEITHER}
    assert others.keys() <= {"Torch.randint.0.forward"}, others
    assert len(entries) > 40


# --- what cannot be told --------------------------------------------------------------------------------------------


def test_random_calls(tmp_path):
    def dropped():
        x = torch.ones(8, 8)
        return functional.dropout(x, 0.5), functional.dropout(x, 0.5, training=False), torch.rand(3)

    dump = read_dump(record(tmp_path / "run", call(dropped), level="L1"))
    state = torch.get_rng_state()
    found = confirm(dump, dump, "Functional.dropout.0.forward")
    assert found.verdict is Verdict.CANNOT_TELL
    assert "draws random numbers" in found.reason.text
    assert confirm(dump, dump, "Functional.dropout.1.forward").verdict is Verdict.NEITHER
    assert "draws random numbers" in confirm(dump, dump, "Torch.rand.0.forward").reason.text
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
def test_what_is_missing_can_be_recorded(tmp_path):
    """Of statistics nothing can be replayed; the configuration that is given records what can."""
    poor = read_dump(record(tmp_path / "poor", train(torch.float32), task="statistics"))
    for entry in ("Functional.gelu.0.backward", "Functional.linear.1.forward", "Module.norm.LayerNorm.forward.0"):
        found = confirm(poor, poor, entry)
        assert found.verdict is Verdict.CANNOT_TELL
        assert "confirm.missing.statistics-only" in json.dumps(content_of(found.reason))
        config = json.loads(found.next_config)
        assert config["step"] == [0]
        place = tmp_path / entry
        rich = read_dump(record(place, train(torch.float32), **config | {"dump_path": str(place)}))
        assert confirm(rich, rich, entry).verdict is Verdict.NEITHER
        assert len(entries_of(rich)) <= 3


# --- dumps of others ------------------------------------------------------------------------------------------------

HOSTILE = {
    "Torch.load.0.forward": ["{place}/planted.pt"],
    "Torch.save.0.forward": [1, "{place}/planted.pt"],
    "Torch.from_file.0.forward": ["{place}/planted.pt", True, 8],
    "Torch.ops.aten.add.0.forward": [1],
    "Torch.hub.load.0.forward": ["x"],
    "Tensor.__reduce_ex__.0.forward": [2],
    "Tensor.share_memory_.0.forward": [],
    "Functional.torch.0.forward": [],
    "os.system.0.forward": ["touch {place}/planted.pt"],
    "Torch.zeros.0.forward": [1 << 20, 1 << 20],
    "Torch.eye.0.forward": [1 << 40],
    "Tensor.repeat.0.forward": [1 << 20, 1 << 20],
}


@pytest.mark.parametrize("entry", HOSTILE)
def test_nothing_is_called_because_a_dump_says_so(entry, tmp_path):
    torch.save(torch.ones(2), tmp_path / "x.pt")
    (tmp_path / "rank0" / "dump_tensor_data").mkdir(parents=True)
    (tmp_path / "x.pt").rename(tmp_path / "rank0" / "dump_tensor_data" / "x.pt")
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "data_name": "x.pt"}
    scalars = [
        {"type": type(value).__name__, "value": value.format(place=tmp_path) if isinstance(value, str) else value}
        for value in HOSTILE[entry]
    ]
    args = [tensor, *scalars] if entry.startswith("Tensor.") else scalars
    record = {"input_args": args, "input_kwargs": {}, "output": [tensor]}
    header = {"task": "tensor", "level": "L1", "framework": "pytorch", "data": {entry: record}}
    (tmp_path / "rank0" / "dump.json").write_text(json.dumps(header))
    dump = read_dump(tmp_path / "rank0")
    found = confirm(dump, dump, entry)
    assert found.verdict is Verdict.CANNOT_TELL
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0"]
    assert "not among the numerical functions" in found.reason.text or "more than" in found.reason.text


# --- the command ----------------------------------------------------------------------------------------------------


def run_command(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


@pytest.mark.parametrize("side", SIDES)
def test_command_does_not_end_in_0_over_a_dump_that_ended_early(side, healthy, tmp_path, capsys):
    dumps = dict.fromkeys(SIDES, healthy[torch.float32])
    killed = tmp_path / "rank0"
    shutil.copytree(dumps[side], killed)
    file = killed / "dump.json"
    text, mark, _ = file.read_text().rpartition('"end":')
    assert mark
    file.write_text(text.rstrip(",\n") + "\n")
    dumps[side] = killed
    command = ("confirm", dumps["target"], dumps["golden"], "Functional.gelu.0.forward")
    assert run_command(*command) == 2
    assert "ended early, after " in capsys.readouterr().err
    assert run_command(*command, "--allow-incomplete") == 0


@pytest.mark.parametrize("side", SIDES)
def test_command(side, healthy, tmp_path, capsys):
    plant, entry = FAULTS["scale"]
    with plant():
        path = record(tmp_path / "wrong", train(torch.float32))
    paths = (path, healthy[torch.float32]) if side == "target" else (healthy[torch.float32], path)
    assert run_command("confirm", *paths, entry, "-o", tmp_path / "out") == 1
    text = capsys.readouterr().out
    assert text.startswith(f"{entry}: the {'golden run' if side == 'golden' else 'target'} is wrong\n")
    written = json.loads((tmp_path / "out" / "confirm.json").read_text())
    assert (written["version"], written["verdict"], written["entry"]) == (1, side, entry)
    assert written["target"]["outputs"][0]["error"] >= 0
    next_line = next(line for line in text.splitlines() if line.startswith("  next: "))
    command = written["next_command_finding"]["fields"]["command"]
    assert next_line.startswith(f"  next: {command}, which writes a script")
    assert command == shlex.join(["msprobe", "acc_check", "-api_info", str(path / "dump.json"), "--script", entry])
    assert run_command(*shlex.split(command)[1:], "-o", tmp_path / "script") == 1
    assert (tmp_path / "script" / f"{entry}.py").exists()


@pytest.mark.slow
def test_no_script_is_promised_where_none_can_be_written(healthy, tmp_path):
    """Neither of a module that others are inside of, nor of a call that is right."""
    plant, entry = FAULTS["scale"]
    with plant():
        wrong = record(tmp_path / "wrong", train(torch.float32))
    found = confirm(read_dump(wrong), read_dump(healthy[torch.float32]), entry)
    assert found.next_command.code is ConfirmCode.NEXT_SCRIPT
    assert confirm(read_dump(healthy[torch.float32]), read_dump(healthy[torch.float32]), entry).next_command is None
    with patched(torch, "layer_norm", other_eps):
        wrong = record(tmp_path / "module", train(torch.float32), level="L0")
    right = record(tmp_path / "right", train(torch.float32), level="L0")
    found = confirm(read_dump(wrong), read_dump(right), "Module.Net.forward.0", model=make_net())
    assert (found.verdict, found.next_command) == (Verdict.TARGET, None)
    entry = "Module.norm.LayerNorm.forward.0"  # a layer of PyTorch's own, made again from what the manifest says
    found = confirm(read_dump(wrong), read_dump(right), entry, model=make_net())
    assert (found.verdict, found.next_command.code) == (Verdict.TARGET, ConfirmCode.NEXT_SCRIPT)


def test_locate_names_the_script_of_a_call_that_is_wrong(healthy, tmp_path, capsys):
    plant, entry = FAULTS["scale"]
    with plant():
        path = record(tmp_path / "wrong", train(torch.float32))
    command = ("locate", path.parent, healthy[torch.float32].parent, "-o", tmp_path / "out")
    assert run_command(*command) == 1
    assert "--script" not in capsys.readouterr().out
    assert run_command(*command, "--confirm") == 1
    expected = shlex.join(["msprobe", "acc_check", "-api_info", str(path / "dump.json"), "--script", entry])
    assert f"Next: {expected}, which writes a script" in capsys.readouterr().out
    first = json.loads((tmp_path / "out" / "locate.json").read_text())["suspects"][0]
    assert first["command"].startswith(expected)


def test_command_with_the_model(healthy, tmp_path, capsys):
    path = healthy[torch.float32]
    source = tmp_path / "my_model.py"
    lines = [
        "import sys", f"sys.path.insert(0, {str(Path(__file__).parent)!r})", "from test_confirm import Net",
        "def make():", "    return Net()",
    ]  # fmt: skip
    source.write_text("\n".join(lines))
    entry = "Module.norm.LayerNorm.forward.0"
    assert run_command("confirm", path.parent, path.parent.parent, entry, "--model", f"{source}:make") == 0
    assert run_command("confirm", path, path, entry, "--model", f"{source}:other") == 2
    assert "has no function 'other'" in capsys.readouterr().err
    assert run_command("confirm", path, path, "Functional.linear.77.forward") == 2
    assert "neither dump has the call" in capsys.readouterr().err
    assert run_command("confirm", path, path, "nonsense") == 2
    assert "is not an entry name" in capsys.readouterr().err


def test_a_model_that_is_another_one(healthy):
    dump = read_dump(healthy[torch.float32])
    found = confirm(dump, dump, "Module.norm.LayerNorm.forward.0", model=nn.Sequential(nn.Linear(2, 2)))
    assert found.verdict is Verdict.NEITHER  # by the calls inside it
    with pytest.raises(ValueError, match="give FILE"):
        load_model("nonsense")
