"""Ranks as a second opinion on each other, and signs that need no limit."""

import math
import random

import polars as pl
import pytest

from msprobe_core.monitoring.anomalies import find_anomalies
from msprobe_core.monitoring.history import SCHEMA, Monitored

STEPS, AT, RANKS = 120, 80, 4
LAYERS = tuple(f"layers.{i}.up.weight" for i in range(12))
INPUTS = ("wte.input", "wte.output", *(f"layers.{i}.input" for i in range(6)))


def history(change=None, ranks=RANKS, seed=0):
    """Activations and gradients of ranks' own data, and what is reduced of them; ``change`` gives other values."""
    rows = []
    for rank in range(ranks):
        shared, own = random.Random(seed), random.Random(f"{seed} {rank}")
        for step in range(STEPS):
            for quantity, names, draw in (
                ("actv", INPUTS, own), ("grad_unreduced", LAYERS, own), ("grad_reduced", LAYERS, shared),
                ("exp_avg", LAYERS, shared), ("param_updated", LAYERS, shared),
            ):  # fmt: skip
                micro_step = None if draw is shared else 0
                for place, name in enumerate(names):
                    norm = 5.0 * 1.001**step if quantity == "param_updated" else math.exp(draw.gauss(0, 0.1))
                    norm *= 0.5 if quantity == "grad_reduced" else 1.0  # the mean of what differs is smaller
                    values = [norm * (1 + 1e-4 * draw.random()), draw.random(), -draw.random(), 1e-2 * draw.random()]
                    if change is not None:
                        values = change(rank, step, quantity, name, values)
                    rows.append((rank, quantity, None, name, micro_step, step, place, *values))
    schema = {**SCHEMA, **dict.fromkeys(("norm", "max", "min", "mean"), pl.Float64)}
    return Monitored(frame=pl.DataFrame(rows, schema=schema, orient="row"), statistics=["norm", "max", "min", "mean"])


def first(change, **options):
    found = find_anomalies(history(change, **options)).found
    return (found[0].finding.code, found[0].rank, found[0].step, found[0].place.quantity, found[0].place.name)


@pytest.mark.parametrize("seed", range(3))
def test_healthy_ranks_have_no_anomaly(seed):
    result = find_anomalies(history(seed=seed))
    assert (result.found, result.num_found) == ([], 0)
    assert result.num_judged > RANKS * STEPS * (len(INPUTS) + 3 * len(LAYERS))


@pytest.mark.parametrize("begin", [0, AT])
def test_a_value_that_replicas_must_share(begin):
    def change(rank, step, quantity, name, values):
        is_there = (rank, quantity, name) == (2, "grad_reduced", LAYERS[3]) and step >= begin
        return [1.001 * value for value in values] if is_there else values

    assert first(change) == ("anomaly.replicas-differ", 2, begin, "grad_reduced", LAYERS[3])


def test_a_small_departure_that_was_always_there():
    def change(rank, step, quantity, name, values):
        is_there = (rank, quantity, name) == (1, "grad_unreduced", LAYERS[5])
        return [1.15 * value for value in values] if is_there else values

    code, rank, step, quantity, name = first(change)
    assert (code, rank, quantity, name) == ("anomaly.rank-departs", 1, "grad_unreduced", LAYERS[5])
    assert step <= 10


def test_a_departure_of_all_values_of_a_rank():
    def change(rank, step, quantity, name, values):
        is_there = (rank, quantity) == (3, "grad_unreduced") and step >= AT
        return [0.8 * value for value in values] if is_there else values

    code, rank, step, quantity, _ = first(change)
    assert (code, rank, quantity) == ("anomaly.rank-departs", 3, "grad_unreduced")
    assert abs(step - AT) <= 3


def test_of_two_ranks_neither_is_said_to_depart():
    def change(rank, step, quantity, name, values):
        return [1.15 * value for value in values] if (rank, quantity) == (1, "grad_unreduced") else values

    assert find_anomalies(history(change, ranks=2)).num_found == 0


@pytest.mark.parametrize("begin", [0, AT])
def test_data_that_two_ranks_have(begin):
    kept = {}

    def change(rank, step, quantity, name, values):
        if quantity in ("actv", "grad_unreduced"):
            kept[rank, step, quantity, name] = values
            if rank == 2 and step >= begin:
                return kept[1, step, quantity, name]
        return values

    assert first(change) == ("anomaly.same-data", 2, begin, "actv", "wte.input")


def test_ranks_that_share_only_a_part_of_their_parameters_are_no_replicas():
    """As those of tensor parallelism, which have the same data."""
    kept = {}

    def change(rank, step, quantity, name, values):
        if quantity == "actv":
            return kept.setdefault((step, name), values)
        return values if name in LAYERS[:4] else [(1 + 0.3 * rank) * value for value in values]

    assert find_anomalies(history(change)).num_found == 0


def test_a_sharded_optimizer_has_moments_of_its_own():
    def change(rank, step, quantity, name, values):
        return [(1 + 0.3 * rank) * value for value in values] if quantity == "exp_avg" else values

    assert find_anomalies(history(change)).num_found == 0


def repeats(quantity, names, at=AT):
    last = {}

    def change(rank, step, own, name, values):
        if own == quantity and name in names:
            if step == at:
                return last[rank, name]
            last[rank, name] = values
        return values

    return change


@pytest.mark.parametrize("quantity", ["exp_avg", "param_updated"])
def test_a_value_that_one_update_leaves_as_it_was(quantity):
    assert first(repeats(quantity, LAYERS[2:3]), ranks=1) == ("anomaly.unchanged", 0, AT, quantity, LAYERS[2])


def test_an_update_that_changes_nothing_at_all_is_meant():
    """As that of a step whose scaled loss overflows."""
    assert find_anomalies(history(repeats("param_updated", LAYERS), ranks=1)).num_found == 0


def test_a_batch_that_is_given_twice():
    assert first(repeats("actv", INPUTS[:1]), ranks=1) == ("anomaly.unchanged", 0, AT, "actv", "wte.input")


def test_what_never_changes_is_no_repetition():
    def change(rank, step, quantity, name, values):
        return [3.0, 1.0, 0.0, 0.5] if name == "layers.0.input" else values

    assert find_anomalies(history(change)).num_found == 0


def test_a_layer_that_is_zero_from_the_beginning_where_others_are_not():
    def change(rank, step, quantity, name, values):
        return [0.0] * 4 if name == "layers.3.input" else values

    assert first(change, ranks=1) == ("anomaly.always-zero", 0, 0, "actv", "layers.3.input")


def test_what_is_zero_in_all_layers_is_meant():
    def change(rank, step, quantity, name, values):
        return [0.0] * 4 if quantity == "actv" and name.startswith("layers") else values

    assert find_anomalies(history(change, ranks=1)).num_found == 0


@pytest.mark.parametrize("begin", [0, AT])
def test_a_reduced_gradient_that_no_mean_can_be(begin):
    def change(rank, step, quantity, name, values):
        is_there = (quantity, name) == ("grad_reduced", LAYERS[7]) and step >= begin
        return [4 * value for value in values] if is_there else values

    assert first(change)[1:] == (0, begin, "grad_reduced", LAYERS[7])
    found = find_anomalies(history(change), steps=[begin]).found
    assert {each.finding.code for each in found} >= {"anomaly.beyond-mean"}


def test_gradients_that_are_summed_are_no_fault():
    def change(rank, step, quantity, name, values):
        return [RANKS * value for value in values] if quantity == "grad_reduced" else values

    assert find_anomalies(history(change)).num_found == 0
