"""Are tensors shared at the least cost? Oracles: all combinations of states, AccPar's tables, counts of elements that sides lack."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable

import numpy
import pytest

from calibration.studies.accpar.array import Board, BoardArray, Boards, array_times
from calibration.studies.accpar.cost import (
    ELEMENT_BYTES,
    LAYOUTS,
    Side,
    SplitDimension,
    SplitState,
    edge_bytes,
    missing_share,
    partial_sums,
    states_of,
)
from calibration.studies.accpar.document import accpar_document, accpar_text
from calibration.studies.accpar.network import LayerNetwork, LayerNode, NetworkSegment, network_of
from calibration.studies.accpar.page import accpar_page
from calibration.studies.accpar.partition import Costs, best_partition, costs
from calibration.studies.accpar.strategies import STRATEGIES, accpar, hypar, one_weird_trick
from calibration.studies.accpar.study import MODELS, accpar_study, array_of
from sim.cli import main
from sim.spec.library import load_hardware, load_workload
from sim.spec.yaml import SpecError

WAYS: tuple[SplitDimension, ...] = ("batch", "input", "output")


def node(draw: random.Random, kind: str = "conv") -> LayerNode:
    flop = 0.0 if kind == "join" else draw.uniform(1e9, 1e12)
    sizes = [draw.uniform(1e4, 1e8) for _ in range(3)]
    return LayerNode("n", kind, sizes[0], sizes[1], sizes[2], flop, 64, 16, 16, draw.uniform(0.2, 1.0))  # type: ignore[arg-type]


def small_networks() -> list[LayerNetwork]:
    """Return chains, a block with a plain shortcut, one with a layer on it, and two blocks in a row."""
    draw = random.Random(3)
    networks = []
    for _ in range(4):
        chain = [node(draw) for _ in range(5)]
        networks.append(
            LayerNetwork((chain[0]._replace(first=True), *chain[1:]), tuple(NetworkSegment(((),), place) for place in range(5)))
        )
        block = [node(draw), node(draw), node(draw), node(draw, "join"), node(draw)]
        plain = (NetworkSegment(((),), 0), NetworkSegment(((1, 2), ()), 3), NetworkSegment(((),), 4))
        networks += [
            LayerNetwork(tuple(block), plain),
            LayerNetwork(tuple(block), (NetworkSegment(((),), 0), NetworkSegment(((1,), (2,)), 3), NetworkSegment(((),), 4))),
        ]
        twice = [node(draw), node(draw), node(draw, "join"), node(draw), node(draw, "join")]
        networks.append(
            LayerNetwork(tuple(twice), (NetworkSegment(((),), 0), NetworkSegment(((1,), ()), 2), NetworkSegment(((3,), ()), 4)))
        )
    return networks


def least(network: LayerNetwork, states: list[list[SplitState]], sides: tuple[Side, Side], objective: str) -> float:
    """Return the least cost over all combinations of states."""
    cost = costs(network, states, sides, objective)  # type: ignore[arg-type]
    every = (
        sum(cost.nodes[number][place] for number, place in enumerate(places))
        + sum(cost.edges[source, end][places[source], places[end]] for source, end in network.edges())
        for places in itertools.product(*(range(len(own)) for own in states))
    )
    return float(min(every))


def test_the_programme_finds_what_all_combinations_find() -> None:
    """Oracle: every combination of states of small chains and blocks, by time and by bytes; what is returned costs what is said."""
    sides = (Side(1e13, 1e10), Side(3e13, 2e10))
    for number, network in enumerate(small_networks()):
        for objective, ratios in (("time", (0.25, 0.6)), ("bytes", (0.5,))):
            states = [states_of(each, WAYS, ratios) for each in network.nodes]
            value, chosen = best_partition(network, states, sides, objective)  # type: ignore[arg-type]
            assert value == pytest.approx(least(network, states, sides, objective), rel=1e-12), (number, objective)
            alone = best_partition(network, [[state] for state in chosen], sides, objective)[0]  # type: ignore[arg-type]
            assert alone == pytest.approx(value, rel=1e-12)


def test_costs_between_layers_are_those_of_accpar() -> None:
    """Oracle: the nine terms of AccPar's table for ratios a and 1 - a, and the halves of its published program."""
    own = LayerNode("a", "conv", 1.0, 1.0, 100.0, 0.0, 64, 64, 64)
    other = own._replace(input=100.0)
    for share in (0.3, 0.5):
        rest = 1.0 - share
        both = share * rest * 200.0
        table = {
            ("batch", "batch"): 0.0, ("batch", "input"): both, ("batch", "output"): rest * 100.0,
            ("input", "batch"): rest * 100.0, ("input", "input"): rest * 100.0, ("input", "output"): 0.0,
            ("output", "batch"): both, ("output", "input"): 0.0, ("output", "output"): rest * 100.0,
        }  # fmt: skip
        costs_by_pair = {
            (one, two): edge_bytes(own, other, [SplitState(one, share)], [SplitState(two, share)], 0)[0, 0] / ELEMENT_BYTES  # type: ignore[arg-type]
            for one, two in table
        }
        assert costs_by_pair == pytest.approx(table)
    assert [partial_sums(own._replace(weights=2.0, input=3.0, output=4.0), how) / ELEMENT_BYTES for how in WAYS] == [2.0, 4.0, 3.0]


def test_what_a_side_lacks_is_counted_element_by_element() -> None:
    """Oracle: a tensor of 20 rows and 20 columns of which each side's elements are listed."""
    places: dict[str, Callable[[int, int, int], bool]] = {
        "rows": lambda i, j, share: i < share, "columns": lambda i, j, share: j < share, "all": lambda i, j, share: True,
    }  # fmt: skip
    for have, need in itertools.product(places, repeat=2):
        for held, wanted in itertools.product((3, 10, 16), repeat=2):
            lacking = sum(places[need](i, j, wanted) and not places[have](i, j, held) for i, j in itertools.product(range(20), repeat=2))
            missing = missing_share(have, numpy.array(held / 20), need, numpy.array(wanted / 20))  # type: ignore[arg-type]
            assert missing == pytest.approx(lacking / 400), (have, need, held, wanted)
    assert {tuple(layouts) for layouts in LAYOUTS.values()} >= {("rows",) * 4, ("all",) * 4}


def test_data_parallelism_costs_an_all_reduce() -> None:
    """Oracle: 2 (1 - 1/n) times the gradients' bytes over a board's rate, and the products at the peak, on equal boards."""
    network = network_of(load_workload("alexnet").spec.model, 64)
    for count in (2, 8, 16):
        step_time = array_times(network, BoardArray((Boards(Board("b", 1e14, 1e9), count),)), STRATEGIES["data parallel"]).total
        weights = ELEMENT_BYTES * sum(each.weights for each in network.nodes)
        products = sum(each.flop for each in network.nodes) / (count * 1e14)
        assert step_time == pytest.approx(2 * (1 - 1 / count) * weights / 1e9 + products)


def test_the_other_strategies_are_special_cases() -> None:
    """Oracles: what each may choose; on one pair of equal boards AccPar is no slower than any, as each is among its states."""
    network = network_of(load_workload("vgg11").spec.model, 64)
    pair = (BoardArray((Boards(Board("b", 1e14, 1e9), 1),)),) * 2
    trick = {each.kind: state.dimension for each, state in zip(network.nodes, one_weird_trick(network, pair), strict=True)}
    assert trick == {"conv": "batch", "gemm": "input"}
    assert {state.dimension for state in hypar(network, pair)} <= {"batch", "input"}
    array = BoardArray((Boards(Board("b", 1e14, 1e9), 2),))
    times = {name: array_times(network, array, choose).total for name, choose in STRATEGIES.items()}
    assert min(times, key=lambda name: times[name]) == "AccPar"
    states = [states_of(each, ("batch", "input"), (0.5,)) for each in network.nodes]
    sent = costs(network, states, (pair[0].side, pair[1].side), "bytes")
    chosen = [own.index(state) for own, state in zip(states, hypar(network, pair), strict=True)]
    total = sum(sent.nodes[number][place] for number, place in enumerate(chosen))
    total += sum(sent.edges[source, end][chosen[source], chosen[end]] for source, end in network.edges())
    assert total == pytest.approx(least_of_chain(sent, states))


def least_of_chain(sent: Costs, states: list[list[SplitState]]) -> float:
    """Return the least cost of a chain, by relaxing edges from the end to the start."""
    value = [0.0] * len(states[-1])
    for number in range(len(states) - 1, 0, -1):
        value = [
            min(float(edge) + float(own) + later for edge, own, later in zip(row, sent.nodes[number], value, strict=True))
            for row in sent.edges[number - 1, number]
        ]
    return min(float(own) + later for own, later in zip(sent.nodes[0], value, strict=True))


def test_unlike_boards_get_unlike_shares() -> None:
    """Oracle: with free wires a layer's time is least where both sides take equally long: the ratio of their speeds."""
    network = network_of(load_workload("alexnet").spec.model, 512)
    array = BoardArray((Boards(Board("slow", 1e13, 1e30), 1), Boards(Board("fast", 3e13, 1e30), 1)))
    states = accpar(network, array.halves())
    assert {state.ratio for state in states} == {0.25}
    flop = sum(each.flop for each in network.nodes)
    assert array_times(network, array, accpar).total == pytest.approx(flop / 4e13)
    assert array_times(network, array, STRATEGIES["by speed"]).total == pytest.approx(flop / 4e13)
    assert array_times(network, array, STRATEGIES["data parallel"]).total == pytest.approx(flop / 2e13)


def test_tensors_of_the_catalog_are_those_of_the_networks() -> None:
    """Oracle: sizes by hand of VGG-16 and ResNet-18 (Simonyan and Zisserman; He et al.), and the number of paths."""
    vgg = network_of(load_workload("vgg16").spec.model, 2)
    first, second, *_, last = vgg.nodes
    assert (first.input, first.output, first.weights, first.first) == (2 * 3 * 224**2, 2 * 64 * 224**2, 64 * 3 * 9, True)
    assert (second.input, second.shrink) == (2 * 64 * 224**2, 1.0)
    assert vgg.nodes[2].shrink == 0.25
    assert (last.weights, last.output, last.rows) == (4096 * 1000, 2000, 2)
    assert len(vgg.nodes) == 16
    resnet = network_of(load_workload("resnet18").spec.model, 1)
    assert sum(each.kind == "conv" for each in resnet.nodes) == 20
    assert sum(len(paths) == 2 for paths, _ in resnet.segments) == 8
    assert sum(bool(len(paths) == 2 and paths[1]) for paths, _ in resnet.segments) == 3
    wrong = {
        "googlenet": "merges paths",
        "mobilenet_v2": "depthwise",
        "resnext50_32x4d": "grouped convolution",
        "gnmt": "merges paths|of kind|no convolution|residual",
    }
    for name, words in wrong.items():
        with pytest.raises(SpecError, match=words):
            network_of(load_workload(name).spec.model, 1)


def test_the_study_says_what_it_solved(capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: each row solved individually; means by hand; the published means are shown but not reproduced."""
    study = accpar_study(models=("alexnet", "vgg11"), processes=1)
    document = accpar_document(study)
    network = network_of(load_workload("vgg11").spec.model, 512)
    array = array_of(load_hardware("256x-tpu-v2-v3").spec, "nic")
    row = next(row for row in document["rows"] if (row["wires"], row["model"], row["strategy"]) == ("nic", "vgg11", "AccPar"))
    assert row["step_time_s"] == array_times(network, array, accpar).total
    gains = [row["speedup"] for row in document["rows"] if row["wires"] == "links" and row["strategy"] == "HyPar"]
    mean = next(mean for mean in document["means"] if mean["wires"] == "links" and mean["strategy"] == "HyPar")
    assert (mean["arithmetic"], mean["geometric"]) == pytest.approx((sum(gains) / 2, (gains[0] * gains[1]) ** 0.5))
    assert {each["count"] for part in document["boards"] for each in part["groups"]} == {128}
    text = accpar_text(document)
    assert "the published 6.30 is for other networks" in text and "  published " not in text
    assert not document["as_published"] and accpar_study(models=MODELS[:1], processes=1).means("nic", "AccPar")[0] == pytest.approx(
        next(row["speedup"] for row in document["rows"] if (row["wires"], row["model"], row["strategy"]) == ("nic", "alexnet", "AccPar"))
    )
    assert "What differs" in accpar_page(document)
    assert main(["study", "accpar", "--models", "vgg11", "--jobs", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [row for row in document["rows"] if row["model"] == "vgg11"]


def test_bad_input_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    cases = {
        ("p3.16xlarge", "--models", "alexnet"): "no bf16 units",
        ("--models", " , "): "write model names",
        ("--models", "alexnet", "--global-batch", "4"): "larger --global-batch",
        ("hgx-h100", "--models", "alexnet"): "no link",
    }
    for words, message in cases.items():
        assert main(["study", "accpar", *words, "--jobs", "1"]) == 2
        assert message in capsys.readouterr().err
