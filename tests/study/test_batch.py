"""``--batch``: a number, or as many samples as fit."""

from __future__ import annotations

import pytest

from sim.analysis.memory import gpu_memory
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario, batch_of, prepare


def test_max_fits_and_one_more_does_not() -> None:
    """Oracle: the refusal of a batch that does not fit."""
    question = prepare(Scenario("p3.16xlarge", "vgg16", batch="max"))
    workload = question.jobs[0].workload
    most, gpu = workload.training.batch, question.hardware.groups[0].node.gpu
    assert most > 64
    assert gpu_memory(workload, gpu, ranks=8).total <= gpu.memory
    with pytest.raises(SpecError, match=f"the largest batch that fits is {most}"):
        prepare(Scenario("p3.16xlarge", "vgg16", batch=most + 1))


def test_max_of_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(SpecError, match="not even one sample fits"):
        prepare(Scenario("p3.2xlarge", "gpt2-xl", batch="max", precision="fp32"))


@pytest.mark.parametrize("text", ["0", "-3", "many", "3.5", "²", ""])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="1 or more, or max"):
        batch_of(text)


def test_numbers() -> None:
    assert (batch_of("12"), batch_of("max")) == (12, "max")
