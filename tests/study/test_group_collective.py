"""What does a group of a mesh pay with all like it at once? Oracles: collectives of all ranks, links by hand, runs with that layout."""

from __future__ import annotations

from typing import Any

import pytest

from sim.events import Cause
from sim.report.collective import collective_document, collective_text
from sim.report.page.collective import collective_page
from sim.spec.yaml import SpecError
from sim.study.collective import collective_table
from sim.study.group_collective import GroupQuestion, group_table
from sim.study.layout import layout_answer
from sim.study.layout_options import layout_of
from sim.study.scenario import Scenario
from sim.training.collectives.price.table import MeshGroup, Table

SIZES = [2**20, 2**26, 2**30]


def grouped(hardware: str, name: str, parallel: str = "", op: str | None = None, stage: int = 0, **machine: Any) -> Table:
    return group_table(hardware, op, machine.pop("sizes", SIZES), GroupQuestion(name, layout_of([parallel]), stage), **machine)


def place(table: Table) -> MeshGroup:
    assert table.group is not None
    return table.group


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_a_group_of_all_ranks_is_the_collective_of_all(op: str) -> None:
    for hardware, name, parallel in (("p3.16xlarge", "dp", ""), ("hgx-h100", "tp", "tp=16"), ("hgx-h100", "everyone", "tp=4,pp=2")):
        ours, plain = grouped(hardware, name, parallel, op, nodes=2), collective_table(hardware, op, SIZES, nodes=2)
        for own, other in zip(ours.rows, plain.rows, strict=True):
            assert own._replace(by_itself=None, time=0, algbw=0, busbw=0) == other._replace(time=0, algbw=0, busbw=0)
            assert (own.time, own.by_itself, own.busbw) == pytest.approx((other.time, other.time, other.busbw), rel=1e-12)


def test_groups_on_one_nic_share_it_evenly_and_those_on_their_own_do_not() -> None:
    """Oracle: eight groups put eight times the bytes of one on the NIC of a p3.16xlarge; an hgx-h100 has a NIC for each."""
    shared = grouped("p3.16xlarge", "dp", "tp=8", "all_gather", nodes=4)
    assert (place(shared).groups, place(shared).on_node) == (8, 8)
    assert place(shared).links[0]._replace(busy=0.0) == ("NIC 0, 25 Gbps", Cause.NETWORK, 1, 8, 0.0)
    sent = 8 * (3 / 4) * 2**30  # by each node, of each group's vector all but the quarter that is another's last hop
    assert place(shared).links[0].busy == pytest.approx(1.0, rel=0.01)
    assert sent / 3.125e9 < shared.rows[-1].time < 1.25 * sent / 3.125e9
    own = grouped("hgx-h100", "dp", "tp=8", nodes=4)
    assert own.rows[-1].time == pytest.approx(own.rows[-1].by_itself, rel=1e-12)
    assert {use.groups for use in place(own).links} == {1}


def test_ranks_and_places_are_those_of_the_mesh() -> None:
    """Oracle: Megatron's order by hand, tensor ranks next to each other, stages far apart."""
    data = grouped("hgx-h100", "dp", "tp=4,pp=2", nodes=2, stage=1)
    assert place(data).ranks == (8, 12) and place(data).places == ((1, 0), (1, 4)) and data.nodes == 1
    tensor = grouped("hgx-h100", "tensor", "tp=4,pp=2", nodes=2)
    assert place(tensor).ranks == (0, 1, 2, 3) and (place(tensor).groups, place(tensor).on_node) == (2, 2)
    experts = grouped("hgx-h100", "ep", "tp=2,ep=4", "all_to_all", nodes=2)
    assert place(experts).ranks == (0, 1, 2, 3) and place(experts).axes == {
        "tensor": 2, "context": 1, "data": 8, "pipeline": 1, "expert": 4,
    }  # fmt: skip
    far = grouped("hgx-h100", "tp", "tp=2", nodes=2, overrides=["training.parallel.order=[data, tensor, context, pipeline]"])
    assert place(far).places == ((0, 0), (1, 0))


def test_a_stage_hands_on_over_the_links_between() -> None:
    """Oracle: eight messages of a node leave by a NIC each; below pods 4 to 1 of 4 to 1 they share a sixteenth of the bandwidth."""
    plain = grouped("hgx-h100", "pp", "tp=8,pp=4", nodes=8)
    assert plain.op == "send_recv" and place(plain).ranks == (0, 16)
    assert 2**30 / 50e9 < plain.rows[-1].time < 1.1 * 2**30 / 50e9
    inside = grouped("hgx-h100", "pp", "tp=2,pp=4", nodes=1)
    assert place(inside).links[0].tier is Cause.INTERCONNECT and inside.rows[-1].time < plain.rows[-1].time / 5
    thin = grouped("128x-hgx-h100-oversubscribed", "pp", "tp=8,pp=4", stage=2, sizes=[2**30])
    assert place(thin).links[0].groups is None and place(thin).links[0].busy == pytest.approx(1.0, rel=1e-3)
    assert thin.rows[0].by_itself is not None and thin.rows[0].time == pytest.approx(8 * thin.rows[0].by_itself, rel=0.02)


def test_a_run_with_that_layout_pays_the_same() -> None:
    """Oracle: gradients that a simulated step reduces; of two ranks each sends half of them to the other."""
    apart = ("training.stack.mesh.shares_device=false",)
    layout = layout_of(["tp=8,shard=optimizer"])
    run = layout_answer(Scenario("hgx-h100", "llama-3.2-1b", apart, nodes=2, layout=layout, stack="megatron-core")).run
    reductions = [span for span in run.played.log.work if span.name == "gradient reduction"]
    assert reductions
    for span in reductions:
        (row,) = grouped("hgx-h100", "dp", "tp=8", "reduce_scatter", nodes=2, sizes=[round(2 * span.nbytes)]).rows
        assert span.t1 - span.t0 == pytest.approx(row.time, rel=1e-6)


def test_text_json_and_page_say_who_meets_and_which_links_are_shared() -> None:
    table = grouped("p3.16xlarge", "dp", "tp=2,pp=2", nodes=4)
    text, document = collective_text(table), collective_document(table)
    assert text.splitlines()[0] == "all_reduce in groups 'dp' of tensor 2 x data 8 x pipeline 2 on p3.16xlarge: 8 GPUs on 2 nodes"
    assert "at the same time: 2 groups of stage 0, 2 with ranks on its first node" in text and "NIC 0, 25 Gbps: 2 groups" in text
    assert document["group"]["ranks"] == [0, 2, 4, 6, 8, 10, 12, 14] and document["group"]["links"][0]["groups"] == 2
    assert document["rows"][-1]["by_itself_s"] < document["rows"][-1]["time_s"]
    assert "groups that share links, measured one at a time" in text
    page = collective_page(document)
    assert "Links that groups share" in page and "one of 2 concurrent groups" in page


@pytest.mark.parametrize(
    ("name", "parallel", "op", "stage", "words"),
    [
        ("foo", "", None, 0, "--group foo: write one of tp, cp"),
        ("tp", "", None, 0, "--group tp: has only 1 rank, which exchanges nothing; write, for example, --tp 2"),
        ("pp", "pp=2", "all_reduce", 0, "pipeline stages only send to each other"),
        ("pp", "pp=2", None, 1, "--stage 1: the last stage sends nothing on"),
        ("tp", "tp=2", None, 1, "--stage 1: there are 1 stages; write 0 to 0"),
        ("dp", "replicate=2,shard=parameters", None, 0, "write --group shard"),
        ("tp", "tp=3", None, 0, "do not divide 16 GPUs"),
        ("tp", "tp=2,micro_batches=3", None, 0, "micro_batches=3: has no effect on which ranks form a group"),
        ("tp", "tp=2", "all_redux", 0, "--op all_redux: write one of"),
        ("tp", "tp=2,foo=2", None, 0, "unknown key"),
    ],
)
def test_what_cannot_be_is_told(name: str, parallel: str, op: str | None, stage: int, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        grouped("hgx-h100", name, parallel, op, stage, nodes=2)


def test_fields_of_a_workload_other_than_its_layout_are_refused() -> None:
    with pytest.raises(SpecError, match="only hardware fields can be set"):
        grouped("hgx-h100", "tp", "tp=2", overrides=["training.batch=2"])
