"""Configurations are compared by what they mean; what took effect comes first."""

import json
import time
import tracemalloc
import zipfile
from dataclasses import replace

import msgspec
import pytest

from msprobe_core.cli import main as command_line
from msprobe_core.config_check.config_codes import ConfigCode
from msprobe_core.config_check.differences import Section, Severity
from msprobe_core.config_check.manifests import compare_manifests
from msprobe_core.config_check.name_pairs import pair_names
from msprobe_core.config_check.pack import Summary, read_pack, write_pack
from msprobe_core.config_check.pack_differences import compare_statistics
from msprobe_core.config_check.rank_agreement import check_ranks
from msprobe_core.config_check.runs import read_run
from msprobe_core.config_check.severities import severity_of_setting
from msprobe_core.config_check.static_settings import read_settings, shell_settings
from msprobe_core.config_check.trainer_logs import read_slime_log, read_verl_log
from msprobe_core.config_check.values import same
from msprobe_core.errors import ConfigError, DumpError
from msprobe_core.manifest.facts import (
    DataRows,
    Device,
    Generator,
    Library,
    Manifest,
    Model,
    Module,
    Optimizer,
    Parameter,
    ParameterGroup,
    RunFacts,
    Variable,
)
from msprobe_core.store.manifest_file import write_manifest


def main(arguments):
    with pytest.raises(SystemExit) as ended:
        command_line(arguments)
    return ended.value.code


@pytest.mark.parametrize(
    ("target", "golden"),
    [
        ("1e-4", 0.0001), ("30s", "0.5min"), ("1GiB", "1024 MiB"), (True, "on"), ("torch.bfloat16", "bf16"),
        ("[0.9, 0.95]", "(0.9,0.95)"), ("0", False), (None, "None"), (float("nan"), float("nan")), (0.1 + 0.2, 0.3),
    ],
)  # fmt: skip
def test_values_that_mean_the_same_are_the_same(target, golden):
    assert same(target, golden)
    assert same(golden, target)


@pytest.mark.parametrize(
    ("target", "golden"),
    [("bf16", "fp32"), (1, 2), ("30", "30s"), (True, False), (True, None), ("", "x"), ("[1, 2]", "[1]"), (2, True)],
)
def test_values_that_mean_something_else_differ(target, golden):
    assert not same(target, golden)
    assert not same(golden, target)


def test_flags_of_opposite_meaning_are_one_setting_with_two_values():
    (pair,) = pair_names({"bf16": True}, {"fp32": True}).pairs
    assert pair.values == ("bfloat16", "float32")


@pytest.mark.parametrize(
    ("one", "other"), [("use_fp16", "use_bf16"), ("min_lr_ratio", "max_lr_ratio"), ("beta1", "beta2")]
)
def test_names_that_are_alike_but_mean_something_else_are_no_pair(one, other):
    assert not pair_names({one: 1}, {other: 1}).pairs


def test_names_that_are_alike_are_a_pair_with_its_score_unless_that_is_switched_off():
    (pair,) = pair_names({"num_heads": 4}, {"n_heads": 4}).pairs
    assert 0.8 < pair.score < 1
    assert not pair_names({"num_heads": 4}, {"n_heads": 4}, fuzzy=False).pairs


def manifest(
    eps=1e-6,
    layers=32,
    lr=1e-3,
    rows="abcd",
    version="4.0",
    tf32=False,
    seed=1,
    visible="0",
    dtype="float32",
    hooks=None,
):
    norms = [
        Module(
            path=f"model.layers.{i}.norm",
            type="transformers.models.llama.LlamaRMSNorm",
            settings={"eps": eps},
            hooks=hooks or {},
            parameters=(Parameter(name="weight", shape=(4,), dtype=dtype if i == 1 else "float32"),),
        )
        for i in range(layers)
    ]
    return Manifest(
        created="2026",
        run=RunFacts(
            framework=Library(name="torch", version="2.1"),
            device=Device(kind="cpu"),
            switches={"tf32": tf32, "float32_matmul_precision": "high" if tf32 else "highest"},
            generators=(Generator(name="python", state=str(seed), seed=seed),),
            models=(Model(modules=(Module(path="", type="x.Llama"), *norms), settings={"rms_norm_eps": eps}),),
            optimizers=(
                Optimizer(
                    type="torch.optim.AdamW",
                    defaults={"lr": lr},
                    groups=(ParameterGroup(settings={"lr": lr}, parameters=("model.layers.0.norm.weight",)),),
                ),
            ),
        ),
        libraries=(Library(name="transformers", version=version),),
        environment=(Variable(name="CUDA_VISIBLE_DEVICES", value=visible),),
        data=(
            DataRows(step=0, name="args.0", count=4, ordered=rows, unordered="".join(sorted(rows)), rows=tuple(rows)),
        ),
    )


@pytest.mark.parametrize(
    ("planted", "path"),
    [
        ({"eps": 1e-5}, "model.layers.0.norm.eps"),
        ({"lr": 2e-3}, "groups.0.lr"),
        ({"rows": "bacd"}, "args.0"),
        ({"rows": "bcde"}, "args.0"),
        ({"rows": "aacd"}, "args.0"),
        ({"version": "5.0"}, "transformers"),
        ({"version": "9" * 5000}, "transformers"),
        ({"tf32": True}, "tf32"),
        ({"seed": 2}, "python"),
        ({"dtype": "bfloat16"}, "model.layers.1.norm.weight.dtype"),
        ({"hooks": {"forward": ("f",)}}, "model.layers.0.norm.forward"),
        ({"layers": 33}, "model.layers.32.norm"),
    ],
)
def test_one_planted_difference_is_the_only_one_that_matters(planted, path):
    found = compare_manifests(manifest(**planted), manifest()).differences
    assert found[0].path == path
    assert [each.path for each in found if each.severity is not Severity.INFO] == [path]


def test_the_same_difference_of_many_modules_is_one_and_names_the_library_whose_version_changed():
    result = compare_manifests(manifest(eps=1e-5, version="5.0"), manifest())
    assert result.differences[0].count == 32
    assert result.differences[0].finding.text == (
        "eps is 1e-05 instead of 1e-06 in 32 modules, first model.layers.0.norm; "
        "transformers is 5.0 instead of 4.0, and its defaults may be other ones"
    )


@pytest.mark.parametrize("planted", [{}, {"visible": "3"}])
def test_equal_runs_and_other_places_do_not_matter(planted):
    assert not compare_manifests(manifest(**planted), manifest()).matters


@pytest.mark.parametrize(
    "name",
    [
        "0", "out", "output_dir", "output-dir", "save-path", "save_to", "workdir", "work-dir", "logging_dir", "results",
        "result", "results-dir", "report", "o", "export", "plot", "run-name", "exp-name", "experiment", "tag",
        "trainer.project_name", "data.file",
    ],
)  # fmt: skip
def test_arguments_that_say_where_results_go_do_not_matter(name):
    assert severity_of_setting(name, Severity.ERROR) is Severity.INFO


@pytest.mark.parametrize(
    "name",
    [
        "calibrate", "lr", "experiment.lr", "log_softmax_in_fp32", "log_prob_top_k", "resume", "output_size",
        "tags.weight", "profile_lr", "report_scale", "export_scale", "rotary", "projection", "num_experts",
    ],
)  # fmt: skip
def test_arguments_that_can_change_results_matter(name):
    assert severity_of_setting(name, Severity.ERROR) is Severity.ERROR


def in_switches(**switches):
    run = msgspec.structs.replace(
        manifest().run, switches={key.replace("__", "."): value for key, value in switches.items()}
    )
    return msgspec.structs.replace(manifest(), run=run)


@pytest.mark.parametrize("value", ["none", "ieee", "tf32"])
def test_a_precision_that_nobody_set_is_that_of_the_format(value):
    pair = in_switches(fp32_precision__cuda__matmul=value), in_switches(fp32_precision__cuda__matmul="ieee")
    assert compare_manifests(*pair).matters == (value == "tf32")


def with_activation(name, type_name, **settings):
    module = Module(path="mlp.act", type=f"transformers.activations.{type_name}", settings=settings)
    run = msgspec.structs.replace(manifest().run, models=(Model(modules=(module,), settings={"hidden_act": name}),))
    return msgspec.structs.replace(manifest(), run=run)


def test_what_follows_from_another_class_of_a_module_does_not_matter():
    pair = (
        with_activation("gelu", "GELUActivation", act="gelu"),
        with_activation("silu", "SiLUActivation", inplace=False),
    )
    found = compare_manifests(*pair).differences
    assert [(each.path, each.severity) for each in found] == [
        ("mlp.act", Severity.ERROR), ("mlp.act.act", Severity.INFO), ("mlp.act.inplace", Severity.INFO),
        ("config.hidden_act", Severity.INFO),
    ]  # fmt: skip


def test_the_name_of_a_function_in_a_module_follows_from_its_class():
    sides = []
    for name, type_name in (("gelu", "GELUActivation"), ("silu", "SiLUActivation")):
        own = with_activation(name, type_name)
        mixer = Module(path="mlp", type="x.Mixer", settings={"activation": name}, hooks={"forward": (name,)})
        models = (Model(modules=(mixer, *own.run.models[0].modules)),)
        sides.append(msgspec.structs.replace(own, run=msgspec.structs.replace(own.run, models=models)))
    found = compare_manifests(*sides).differences
    assert [each.path for each in found if each.severity is Severity.ERROR] == ["mlp.forward", "mlp.act"]


def test_a_setting_that_names_no_class_of_the_pair_matters_beside_it():
    pair = with_activation("tanh", "GELUActivation"), with_activation("silu", "SiLUActivation")
    found = [each.path for each in compare_manifests(*pair).differences if each.severity is Severity.ERROR]
    assert found == ["mlp.act", "config.hidden_act"]


def with_state(dtype, state):
    own = manifest(dtype=dtype)
    (optimizer,) = own.run.optimizers
    optimizer = msgspec.structs.replace(optimizer, state_dtypes={"exp_avg": state})
    return msgspec.structs.replace(own, run=msgspec.structs.replace(own.run, optimizers=(optimizer,)))


@pytest.mark.parametrize(
    ("dtype", "state", "follows"),
    [
        ("bfloat16", "bfloat16, float32", True),
        ("bfloat16", "bfloat16", True),
        ("bfloat16", "float16, float32", False),
        ("float32", "bfloat16, float32", False),
    ],
)
def test_states_of_an_optimizer_follow_the_dtype_of_their_parameters(dtype, state, follows):
    found = compare_manifests(with_state(dtype, state), with_state("float32", "float32")).differences
    (severity,) = [each.severity for each in found if each.path == "state.exp_avg"]
    assert severity is (Severity.INFO if follows else Severity.ERROR)


def of(modules=(), optimizers=(), **settings):
    """Return the manifest with other modules and optimizers."""
    run = manifest().run
    models = (Model(modules=(Module(path="", type="x.Net"), *modules), settings=settings),)
    return msgspec.structs.replace(manifest(), run=msgspec.structs.replace(run, models=models, optimizers=optimizers))


def linear(path, rows=4, columns=8, kind="torch.nn.Linear", names=("weight", "bias"), hooks=None, **settings):
    shapes = {"weight": (rows, columns), "bias": (rows,)}
    parameters = tuple(Parameter(name=name, shape=shapes[name], dtype="float32") for name in names)
    own = {"out_features": rows, "in_features": columns, **settings}
    return Module(path=path, type=kind, settings=own, parameters=parameters, hooks=hooks or {})


def adam(*groups, kind="torch.optim.AdamW", **settings):
    made = tuple(ParameterGroup(settings={"lr": 1e-3, **settings}, parameters=names) for names in groups)
    return (Optimizer(type=kind, defaults={"lr": 1e-3}, groups=made),)


FIRST, SECOND = linear("a"), linear("b", 8, 4)
NAMES = ("a.weight", "a.bias"), ("b.weight", "b.bias")
RESTORED = {"forward": ("transformers.PreTrainedModel.make_inputs_require_grads",)}


@pytest.mark.parametrize(
    ("target", "golden", "paths"),
    [
        (of((FIRST, SECOND), adam(NAMES[0], NAMES[1][:1])), of((FIRST, SECOND), adam(*NAMES)), ["groups.1.parameters"]),
        (of((FIRST,), adam(NAMES[0])), of((FIRST, SECOND), adam((*NAMES[0], *NAMES[1]))), ["b"]),
        (of((FIRST,), num_layers=1), of((FIRST, SECOND), num_layers=2), ["b"]),
        (of(optimizers=adam((), kind="o.Adam", extra=1)), of(optimizers=adam((), other=2)), ["type"]),
        (of(optimizers=adam((), lr=5e-4, initial_lr=1e-3)), of(optimizers=adam(())), ["groups.0.lr"]),
        (of((linear("a", 6), linear("b", 8, 6))), of((FIRST, SECOND)), ["a.out_features"]),
        (of((linear("a", kind="torch.nn.Identity", names=()),)), of((FIRST,)), ["a"]),
        (of((linear("a", names=("weight",), bias=False),)), of((linear("a", bias=True),)), ["a.bias"]),
        (of((linear("a", hooks=RESTORED),)), of((FIRST,)), []),
        (of((linear("a", hooks={"forward": ("mine",)}),)), of((FIRST,)), ["a.forward"]),
        (
            of((linear("a", rotary_ndims=4),), rotary_factor=0.5),
            of((linear("a", rotary_ndims=2),), rotary_factor=0.25),
            ["a.rotary_ndims"],
        ),
    ],
)
def test_what_follows_from_another_difference_is_not_one(target, golden, paths):
    found = compare_manifests(target, golden).differences
    assert [each.path for each in found if each.severity is not Severity.INFO] == paths


def across(own, golden):
    """Return the paths of what differs above info, of optimizers in MindSpore and in PyTorch."""
    found = of(optimizers=own)
    run = msgspec.structs.replace(found.run, framework=Library(name="mindspore", version="2.10"))
    compared = compare_manifests(msgspec.structs.replace(found, run=run), of(optimizers=golden), maps={}).differences
    matter = [each for each in compared if each.severity is not Severity.INFO]
    return [each.path for each in matter if each.section is Section.OPTIMIZER]


def test_momentum_of_mindspore_is_sgd_of_pytorch():
    own, golden = (adam((), kind=kind, momentum=0.9) for kind in ("mindspore.nn.Momentum", "torch.optim.SGD"))
    assert across(own, golden) == []
    assert across(adam((), kind="mindspore.nn.Momentum", momentum=0.8), golden) == ["groups.0.momentum"]


def test_adam_without_correction_of_bias_is_not_adamw():
    assert across(adam((), kind="mindspore.nn.AdamWeightDecay"), adam(())) == ["type"]


def test_data_are_said_to_be_shifted():
    (found,) = compare_manifests(manifest(rows="bcde"), manifest()).differences
    assert found.finding.text == "args.0 begins 1 sample later than the golden run's, and is the same from there"


def job(directory, stale):
    for rank in range(4):
        unit = directory / "step0" / f"rank{rank}"
        unit.mkdir(parents=True)
        own = manifest(**stale) if rank == 2 else manifest()
        write_manifest(unit, msgspec.structs.replace(own, rank=rank, world_size=4))
    return directory


def test_a_stale_rank_is_named_first(tmp_path):
    found = check_ranks(read_run(job(tmp_path, {"version": "3.9"}))).differences
    assert (found[0].section, found[0].path, list(found[0].ranks)) == (Section.LIBRARIES, "transformers", [2])
    assert not check_ranks(read_run(job(tmp_path / "sound", {}))).differences


def of_ranks(directory, *manifests):
    for rank, each in enumerate(manifests):
        unit = directory / "step0" / f"rank{rank}"
        unit.mkdir(parents=True)
        write_manifest(unit, msgspec.structs.replace(each, rank=rank, world_size=len(manifests)))
    return [each for each in check_ranks(read_run(directory)).differences if each.severity is Severity.ERROR]


def test_generators_of_one_seed_are_one_difference_of_a_rank(tmp_path):
    def seeded(seed):
        generators = tuple(Generator(name=name, state=f"{name} {seed}", seed=seed) for name in ("python", "torch.cpu"))
        return msgspec.structs.replace(manifest(), run=msgspec.structs.replace(manifest().run, generators=generators))

    (found,) = of_ranks(tmp_path, seeded(1), seeded(1), seeded(2))
    assert (found.path, found.count, list(found.ranks)) == ("python", 2, [2])
    assert "2 instead of 1" in found.finding.text


def test_another_class_in_one_rank_is_one_difference(tmp_path):
    same_ranks = [with_activation("silu", "SiLUActivation")] * 2
    (found,) = of_ranks(tmp_path, *same_ranks, with_activation("gelu", "GELUActivation"))
    assert (found.path, list(found.ranks)) == ("mlp.act.class", [2])


def test_commands_say_by_their_status_whether_runs_differ(tmp_path, capsys):
    runs = [job(tmp_path / name, stale) for name, stale in (("a", {}), ("b", {"eps": 1e-5}))]
    out = tmp_path / "out"
    assert main(["config_check", "-c", str(runs[0]), str(runs[0]), "-o", str(out)]) == 0
    assert main(["config_check", "-c", str(runs[0]), str(runs[1]), "-o", str(out)]) == 1
    assert "eps is 1e-05 instead of 1e-06 in 32 modules" in capsys.readouterr().out
    assert json.loads((out / "result.json").read_text())["differences"][0]["golden"] == 1e-6
    assert main(["config_check", "--ranks", str(runs[1]), "-o", str(out)]) == 1
    assert main(["config_check", "-c", str(tmp_path / "none"), str(runs[0])]) == 2


def peer_pack(path, algo="Ring", lr="1e-4"):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("env", json.dumps({"NCCL_ALGO": algo, "SECRET_TOKEN": "abc", "HOME": "/root"}))
        file.writestr("pip", "torch=2.1.0\nnumpy=1.26.4\nsome-tool=1")
        file.writestr("hyperparameters/hyperparameters_static.json", json.dumps({"lr": lr}))
        norm = {"max": 1.0, "min": 0.0, "mean": 0.5, "norm": 2.0}
        file.writestr("dataset/step0/rank0/dataset.json", json.dumps({"args": {"0": norm}, "kwargs": {}}))
        file.writestr("random/rank0.json", json.dumps({"random.random": [{"count": 1, "stack": ["File a, line 1"]}]}))
    return path


def test_packs_of_the_other_tool_are_compared_with_sides_in_their_places(tmp_path):
    from openpyxl import load_workbook

    golden, target = peer_pack(tmp_path / "a.zip"), peer_pack(tmp_path / "b.zip", algo="Tree", lr="2e-4")
    assert main(["config_check", "-c", str(golden), str(target), "-o", str(tmp_path / "out")]) == 1
    book = load_workbook(tmp_path / "out" / "result.xlsx")
    assert list(book["env"].values)[1] == ("NCCL_ALGO", "NCCL_ALGO", "Ring", "Tree", "error")
    assert list(book["hyperparameters"].values)[1][:5] == ("hyperparameters_static.json", "lr", "lr", "1e-4", "2e-4")
    assert b"abc" not in (tmp_path / "out" / "result.json").read_bytes()


def test_a_pack_is_read_as_it_was_written(tmp_path):
    pack = read_pack(peer_pack(tmp_path / "a.zip"))
    write_pack(tmp_path / "b.zip", pack)
    assert read_pack(tmp_path / "b.zip") == pack


@pytest.mark.slow
def test_a_pack_that_expands_beyond_its_length_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("env", b" " * (400 << 20))
    with pytest.raises(DumpError, match="more than a zip of its length should"):
        read_pack(tmp_path / "bomb.zip")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"text"])
def test_a_file_that_is_no_zip_is_an_error_in_one_line(tmp_path, content):
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(DumpError, match="is no zip"):
        read_pack(tmp_path / "a.zip")


def test_the_launch_command_of_a_script_is_read_without_running_it():
    text = """
    LR=1e-4   # rate
    TRAIN_ARGS="
      --lr $LR \\
      --bf16 \\
    "
    torchrun --nproc_per_node 8 train.py $TRAIN_ARGS --betas 0.9 0.95 --name=$(touch /tmp/x) 2>&1 | tee log
    """
    found = shell_settings(text)
    assert found["lr"] == "1e-4"
    assert found["bf16"] is True
    assert found["betas"] == "0.9 0.95"
    assert found["nproc_per_node"] == "8"


def test_settings_are_read_from_both_suffixes_of_yaml_and_nothing_else(tmp_path):
    for name in ("a.yaml", "a.yml"):
        (tmp_path / name).write_text("model: {lr: 3}")
        assert read_settings([tmp_path / name]) == {"model.lr": 3}
    (tmp_path / "a.txt").write_text("lr: 3")
    with pytest.raises(ConfigError, match="neither a shell script"):
        read_settings([tmp_path / "a.txt"])


def test_the_last_configuration_of_verl_counts_whatever_its_prefixes(tmp_path):
    log = tmp_path / "a.log"
    lines = [
        "x",
        "(T pid=1) {'actor_rollout_ref': {'lr': 1}}",
        "(T pid=1) {'actor_rollout_ref':",
        "(T pid=1)  {'lr': 2,",
    ]
    log.write_text("\n".join([*lines, "(T pid=1)   'path': PosixPath('a')}}", "(T pid=1) more }"]))
    assert read_verl_log(log) == {"actor_rollout_ref": {"lr": 2, "path": "PosixPath('a')"}}
    log.write_text("nothing")
    with pytest.raises(ConfigError, match="looked for a dict that begins with"):
        read_verl_log(log)


def test_arguments_of_slime_are_typed(tmp_path):
    log = tmp_path / "a.log"
    block = ["-" * 20 + " arguments " + "-" * 20, "[0]  lr ....... 1e-6", "[0]  use_profile ... True", "  x .... None"]
    log.write_text("\n".join([*block, "--- end of arguments ---"]))
    assert read_slime_log(log) == {"lr": 1e-6, "x": None}
    log.write_text("nothing")
    with pytest.raises(ConfigError, match="end of arguments"):
        read_slime_log(log)


@pytest.mark.parametrize("script", [
    "A='" + "x" * 60_000 + "'\ntorchrun a.py --b " + "$A" * 20_000,
    "A='" + "x" * 60_000 + "'\nA=\"" + "$A" * 20_000 + "\"\ntorchrun a.py --b $A",
    "A='" + "--x y " * 100 + "'\n" + "torchrun a.py $A\n" * 20_000,
], ids=["in a launch", "in itself", "in many launches"])  # fmt: skip
def test_a_script_that_unfolds_takes_no_more_than_its_length_allows(script):
    """Each would become a gigabyte, or take minutes."""
    tracemalloc.start()
    begin = time.process_time()
    found = shell_settings(script)
    assert time.process_time() - begin < 60
    assert tracemalloc.get_traced_memory()[1] < 40 << 20
    tracemalloc.stop()
    assert found == {"x": "y"} or len(found["b"]) <= 1 << 16


@pytest.mark.slow
def test_a_long_log_is_read_around_its_configurations(tmp_path):
    """Only these are decoded: other letters would take four bytes each."""
    log = tmp_path / "x.log"
    config = "(T pid=1) {'actor_rollout_ref': {'lr': NUMBER,\n(T pid=1)   'n': 5}}\n"
    noise = "(T pid=1) step: \N{GRINNING FACE}\n" * 1_000_000
    log.write_text(config.replace("NUMBER", "1") + noise + config.replace("NUMBER", "2") + noise)
    tracemalloc.start()
    assert read_verl_log(log) == {"actor_rollout_ref": {"lr": 2, "n": 5}}
    assert tracemalloc.get_traced_memory()[1] < 3 * log.stat().st_size
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("changes", "is_same", "is_same_across"),
    [
        ({}, True, True),
        ({"norm": 7.1400003, "mean": -0.0100001}, False, True),
        ({"norm": 7.1410}, False, False),
        ({"mean": -0.0110}, False, False),
        ({"max": 0.5000001}, False, False),
        ({"norm": None}, False, False),
    ],
)
def test_statistics_of_two_frameworks_may_differ_by_the_rounding_of_their_sums(changes, is_same, is_same_across):
    golden = Summary(max=0.5, min=-0.4, mean=-0.0100, norm=7.14)
    sides = ({(0, 0): {"0.weight": replace(golden, **changes)}}, {(0, 0): {"0.weight": golden}})
    for are_foreign, expected in ((False, is_same), (True, is_same_across)):
        found = compare_statistics(Section.WEIGHTS, *sides, are_foreign=are_foreign)
        assert [each.finding.code for each in found.differences] == ([] if expected else [ConfigCode.STATISTICS])
