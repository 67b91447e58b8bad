"""Does a process answer, and does it end if its answer is no longer needed? Against the functions themselves, and the table of
processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import Any

from sim.spec.catalogue import catalogue
from sim.ui.choice import choice_of
from sim.ui.view import view_of
from sim.ui.work import Worker, answers_to


def runs(process: int | None) -> bool:
    try:
        os.kill(process or 0, 0)
    except ProcessLookupError:
        return False
    return True


def test_answers_end_and_refusals_are_sentences() -> None:
    assert [how for how, _ in answers_to("view", choice_of([("workload", "alexnet")]))] == ["said", "done"]
    assert next(answers_to("file", choice_of([("workload", "alexnett")]), "run.json")) == (
        "refused", ["alexnett is not in the catalog (workloads/); did you mean alexnet?"]
    )  # fmt: skip
    assert list(answers_to("nothing", choice_of([]))) == [("refused", ["internal error: KeyError: 'nothing'"]), ("done", None)]


async def _all(answers: AsyncGenerator[Any, None]) -> list[Any]:
    return [message async for message in answers]


def test_a_task_that_is_given_up_ends_its_process_and_the_next_is_answered() -> None:
    small = choice_of([("workload", "alexnet"), ("hardware", "p3.8xlarge")])
    everything = choice_of([("workload", "resnet50")])

    async def both() -> None:
        worker = Worker()
        try:
            first = await _all(worker.answers("view", small))
            before = worker.process
            assert await _all(worker.answers("view", small)) == first
            assert worker.process == before, "one process for task after task"
            long = worker.answers("machines", everything, list(catalogue("hardware")))
            message = await anext(long)
            assert message[1]["done"] < message[1]["of"]
            await long.aclose()
            assert worker.process is None
            assert not runs(before)
            assert await _all(worker.answers("view", small)) == first == [("said", view_of(small))]
        finally:
            worker.end()

    asyncio.run(both())
