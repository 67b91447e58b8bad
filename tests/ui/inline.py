"""Views of machines without processes: workers that answer in this one, each as soon as it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from sim.spec.listing import hardware_rows
from sim.ui.choice import Choice
from sim.ui.machines import KeptResults, WorkMessage, machine_views
from sim.ui.work import answers_to


class InlineWorker:
    """Answers as a worker's process does, and counts what it was asked."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Any, ...]] = []

    async def answers(self, task: str, *arguments: Any) -> AsyncGenerator[WorkMessage, None]:
        self.tasks.append(arguments[1:])
        await asyncio.sleep(0)
        for message in list(answers_to(task, *arguments)):  # whole, because the cache is open meanwhile
            if message[0] != "done" and message != ("said", None):
                yield message


def views_of(
    choice: Choice, names: Sequence[str], team: Sequence[InlineWorker] = (), kept: KeptResults | None = None
) -> list[dict[str, Any]]:
    """All views of the machines *names*, by *team*; by default two workers."""
    gpus = {str(row["name"]): str(row["gpu"]) for row in hardware_rows()[0]}

    async def collect() -> list[dict[str, Any]]:
        workers = team or [InlineWorker(), InlineWorker()]
        return [view async for view in machine_views(choice, names, gpus, workers, kept or KeptResults())]

    return asyncio.run(collect())
