"""Weights at each hop of each transfer: planted faults by hop, tensor and class, and healthy transfers without one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from weight_chains import LAYERS, MODEL, PLANTED, exchange, make  # noqa: E402

from msprobe_core.errors import ConfigError, DumpError  # noqa: E402
from msprobe_core.rl import Hop, RunWriter, WeightLog, places_asked_for  # noqa: E402
from msprobe_core.rl.weight_chain import compare_chain  # noqa: E402

Run = Callable[..., tuple[int, str, str]]
QUICK = ("stale tensor in the engine", "one shard missing", "memory freed in sleep")


def assert_named(root: Path, size: int, fault: str) -> None:
    planted = PLANTED[fault]
    outcome = compare_chain(exchange(root, size, planted=planted))
    assert outcome.headline.startswith("DIFFERENT: sync 2, ")
    assert f"to {planted.hop.value}: " in outcome.headline
    first = outcome.findings[0]
    assert planted.name in first.place
    assert f", {planted.fault}" in outcome.headline
    assert {finding.step for finding in outcome.findings} == {2}


@pytest.mark.parametrize("fault", QUICK)
def test_a_fault_is_named(tmp_path: Path, fault: str) -> None:
    assert_named(tmp_path, 2, fault)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("fault", PLANTED)
def test_every_fault_is_named_by_hop_tensor_and_class(tmp_path: Path, fault: str, size: int) -> None:
    if fault == "one shard missing" and size == 1:
        pytest.skip("an engine of one process has no shards")
    assert_named(tmp_path, size, fault)


def test_healthy_transfers_agree(run: Run, tmp_path: Path) -> None:
    exchange(tmp_path / "log", 2)
    code, out, err = run("weights", "compare", tmp_path / "log", "-o", tmp_path)
    assert (code, err) == (0, "")
    assert "AGREE: every hop passed on the weights that it was given." in out
    assert json.loads((tmp_path / "chain_weights.json").read_text())["numbers"]["hops"] == 12


@pytest.mark.slow
@pytest.mark.parametrize(("size", "dtype"), [(1, torch.float32), (2, torch.bfloat16), (4, torch.float16)])
def test_a_hundred_healthy_transfers_agree(tmp_path: Path, size: int, dtype: torch.dtype) -> None:
    assert compare_chain(exchange(tmp_path, size, syncs=34, dtype=dtype)).agrees


def test_a_fault_ends_with_1_and_a_chosen_chain_may_not_see_it(run: Run, tmp_path: Path) -> None:
    exchange(tmp_path / "log", 1, planted=PLANTED["zeros"])
    code, out, _ = run("weights", "compare", tmp_path / "log", "-o", tmp_path)
    assert code == 1
    assert "loaded to awake: model.layers.1.self_attn.o_proj.weight, freed memory" in out
    assert run("weights", "compare", tmp_path / "log", "--chain", "P2_sender,P5", "-o", tmp_path)[0] == 0


def test_what_ranks_hold_twice_must_be_equal(tmp_path: Path) -> None:
    def change(now: list[dict[str, torch.Tensor]], _: object) -> None:
        now[1]["model.layers.0.input_layernorm.weight"] = torch.ones(16, dtype=torch.bfloat16)

    from weight_chains import Planted

    outcome = compare_chain(exchange(tmp_path, 2, planted=Planted(Hop.LOADED, "", "", change)))
    assert "model.layers.0.input_layernorm.weight, ranks have different copies" in outcome.headline


def test_a_tensor_takes_less_than_300_bytes(tmp_path: Path) -> None:
    log = WeightLog(tmp_path, "sent", model=MODEL)
    log.sync(0)
    count = 0
    for copy in range(8):
        for name, weight in make(copy).items():
            log.add(name.replace("layers.", f"layers.{copy * LAYERS}"), weight)
            count += 1
    log.close()
    assert (tmp_path / "sync0" / "sent" / "rank0.fingerprint.arrow").stat().st_size < 300 * count


def test_the_weights_of_a_recorded_run_are_a_chain_of_two_places(tmp_path: Path) -> None:
    run, weights = RunWriter(tmp_path), make(0)
    for step in range(2):
        run.weights_sent(step, weights.items(), model=MODEL)
        received = weights if step == 0 else weights | {"lm_head.weight": weights["lm_head.weight"] * 2}
        run.weights_received(step, received.items(), model=MODEL)
    outcome = compare_chain(tmp_path)
    assert outcome.headline == "DIFFERENT: sync 1, sent to received: lm_head.weight, scaled."


def test_names_of_a_hop_may_be_others(run: Run, tmp_path: Path) -> None:
    weights = make(0)
    for hop, prefix in ((Hop.SENT, "model."), (Hop.RECEIVED, "policy.net.")):
        log = WeightLog(tmp_path / "log", hop, model=MODEL)
        log.sync(0)
        for name, weight in weights.items():
            log.add(name.replace("model.", prefix), weight)
        log.close()
    assert run("weights", "compare", tmp_path / "log", "-o", tmp_path)[0] == 1
    names = tmp_path / "names.yaml"
    names.write_text(r"'policy\.net\.(.*)': 'model.\1'")
    code, out, _ = run("weights", "compare", tmp_path / "log", "--map", names, "--enforce", "-o", tmp_path)
    assert (code, "AGREE" in out) == (0, True)
    for text, error in (
        ("'[': 'x'", "is no pattern of names"), ("nothing: x", "'nothing' fits no name"),
        (r"'policy.*': '\2'", "cannot be filled in"),
    ):  # fmt: skip
        names.write_text(text)
        code, _, err = run("weights", "compare", tmp_path / "log", "--map", names, "-o", tmp_path)
        assert (code, error in err) == (2, True), err


def test_what_is_not_everywhere_is_a_difference_if_enforced(run: Run, tmp_path: Path) -> None:
    weights = make(0)
    for sync in range(2):
        for hop in (Hop.SENT, Hop.LOADED, Hop.AWAKE)[: 3 - sync]:
            log = WeightLog(tmp_path / "log", hop, model=MODEL)
            log.sync(sync)
            for name, weight in weights.items():
                log.add(name, weight)
            if hop is Hop.LOADED and sync:
                log.add("model.layers.0.extra.weight", torch.ones(3))
            log.close()
    arguments = ("weights", "compare", tmp_path / "log", "-o", tmp_path)
    assert run(*arguments)[0] == 0
    code, out, _ = run(*arguments, "--enforce")
    assert code == 1
    assert "nothing was logged at awake, as it was in other transfers" in out
    assert "model.layers.0.extra.weight, missing: sent has no such tensor" in out


def test_the_published_reports(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange(tmp_path / "log", 1, planted=PLANTED["zeros"])
    monkeypatch.setenv("UWC_ENABLE", "1")
    assert run("weights", "compare", tmp_path / "log", "-o", tmp_path)[0] == 1
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["stages"] == {"stage1_bridge": "SKIP", "stage2_transfer": "PASS", "stage3_vllm": "FAIL"}
    report = json.loads((tmp_path / "stage3_vllm" / "report.json").read_text())
    assert report["total"] - report["equal"] == 1
    assert {(hop["sync"], hop["hop"]) for hop in report["hops"] if hop["wrong"]} == {(2, "awake")}


def test_the_published_variables_select_hops(tmp_path: Path) -> None:
    assert places_asked_for({}) is None
    assert places_asked_for({"UWC_ENABLE": "0"}) is None
    places = places_asked_for({"UWC_ENABLE": "1", "UWC_DUMP_DIR": str(tmp_path), "UWC_STAGE1": "0", "UWC_STAGE3": "0"})
    assert places is not None
    assert places.path == tmp_path
    assert [hop.value for hop in places.hops] == ["shard", "gathered", "sent", "received"]


def test_misuse_is_answered(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="known are disk, exported"):
        WeightLog(tmp_path, "P9")
    with pytest.raises(ConfigError, match=r"call WeightLog\.sync"):
        WeightLog(tmp_path, "P5").add("w", torch.zeros(2))
    with pytest.raises(DumpError, match="holds no weights of two places of one transfer"):
        compare_chain(tmp_path)
