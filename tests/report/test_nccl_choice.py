"""Does a run say where NCCL's choice is not the quickest? Oracle: the same run with the other algorithm forced."""

from __future__ import annotations

import re

from sim.parallel.lower.exchange_plan import gradient_volume
from sim.report.nccl_choice import choice_warnings, messages_of_step
from sim.study.scenario import Scenario, answer

BERT = {"hardware": "g6e.12xlarge", "workload": "bert-base-seq128", "nodes": 2, "batch": 64, "precision": "tf32"}
FEW = ("dataset.samples=20000",)


def test_a_faster_card_that_makes_nccl_take_a_slower_algorithm_is_explained() -> None:
    """At 50 Gbps NCCL takes trees, at 150 rings: the step is longer, the run says why, and is right that trees shorten it again."""
    stack = "ngc-mxnet-20.03"
    slow, fast, forced = (
        answer(Scenario(**BERT, stack=stack, overrides=(*FEW, *more))).run
        for more in (
            ("node.nic.bandwidth=50 Gbps",),
            ("node.nic.bandwidth=150 Gbps",),
            ("node.nic.bandwidth=150 Gbps", "training.stack.nccl_algo=Tree"),
        )
    )
    steps = [run.jobs[0].warm.step_time for run in (slow, fast, forced)]
    assert steps[1] > 1.1 * steps[0]
    [said] = choice_warnings(fast)
    assert re.match(r"NCCL 2\.7\.3 chooses Ring for (\d+) of \1 all-reduces of a step", said)
    assert "nccl_algo=Tree" in said
    assert steps[2] <= 1.001 * steps[0]
    assert choice_warnings(slow) == choice_warnings(forced) == []
    assert sum(nbytes * count for nbytes, count in messages_of_step(fast).items()) == gradient_volume(fast.jobs[0].job.workload)


def test_nothing_is_said_where_the_links_are_as_nccl_takes_them_to_be() -> None:
    """Four nodes with InfiniBand: NCCL's choice is the quickest of those it weighs, or hidden."""
    assert choice_warnings(answer(Scenario("nc24rs_v3", "resnet50", nodes=4, overrides=FEW)).run) == []
