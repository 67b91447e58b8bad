"""Does a process answer, and does it end if its answer is no longer needed? Against the functions themselves, and the table of
processes."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from sim.spec.catalog import catalog
from sim.ui import work
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


def test_a_task_that_is_given_up_ends_and_the_next_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    small = choice_of([("workload", "alexnet"), ("hardware", "p3.8xlarge")])
    everything = choice_of([("workload", "resnet50")])
    layout = [("tp", "8"), ("pp", "16"), ("micro_batches", "2048"), ("batch", "1"), ("checkpointing", "blocks")]
    minutes = choice_of([("workload", "llama-3.1-405b"), ("hardware", "hgx-h100"), ("nodes", "32"), ("stack", "megatron-core"), *layout])

    sent: list[Any] = []
    send = Connection.send

    def record_sent(connection: Connection, task: Any) -> None:
        send(connection, task)
        sent.append(task)

    monkeypatch.setattr(Connection, "send", record_sent)

    async def both() -> None:
        worker = Worker()
        try:
            first = await _all(worker.answers("view", small))
            before = worker.process
            assert await _all(worker.answers("view", small)) == first
            assert worker.process == before, "one process for task after task"
            monkeypatch.setattr(work, "_GRACE", 20.0)  # the machine that is simulated now ends in that time, even beside other tests
            long = asyncio.ensure_future(anext(bounds := worker.answers("machines", everything, "bound", list(catalog("hardware")))))
            while not any(task[0] == "machines" for task in filter(None, sent)):
                await asyncio.sleep(0.01)
            long.cancel()
            await asyncio.wait({long})
            await bounds.aclose()
            monkeypatch.setattr(work, "_GRACE", 0.1)
            assert await _all(worker.answers("view", small)) == first == [("said", view_of(small))]
            assert worker.process == before, "it ended at the next machine, and keeps what it has read"
            step = asyncio.ensure_future(anext(longest := worker.answers("view", minutes)))
            while ("view", minutes) not in sent:  # a task that was not sent yet needs no end
                await asyncio.sleep(0.01)
            step.cancel()
            await asyncio.wait({step})
            await longest.aclose()
            assert worker.process is None
            assert not runs(before)
            assert await _all(worker.answers("view", small)) == first
        finally:
            worker.end()

    asyncio.run(both())


def test_an_own_file_is_read_again_when_it_changes_and_only_then(tmp_path: Path) -> None:
    base, own = tmp_path / "base.yaml", tmp_path / "own.yaml"
    base.write_text("extends: p3.8xlarge\nname: base\nprice: {on_demand: 1 USD/h, date: 2026-01-01, source: x}\n", encoding="utf-8")
    own.write_text("extends: base\nname: own\n", encoding="utf-8")
    chosen = choice_of([("workload", "alexnet"), ("hardware", str(own))])

    def cost() -> str:
        (kind, view), _ = answers_to("view", chosen)
        assert kind == "said"
        return str(view["brief"])

    before, name = cost(), work.cache_name(chosen)
    assert work.cache_name(chosen) == name != work.cache_name(choice_of([]))
    base.write_text(base.read_text(encoding="utf-8").replace("1 USD/h", "1000 USD/h"), encoding="utf-8")
    assert cost() != before, "a file that the user's file extends"


def test_a_package_of_the_same_name_in_the_current_folder_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "sim").mkdir()
    (tmp_path / "sim" / "__init__.py").write_text("", encoding="utf-8")
    script = tmp_path / "scripts" / "ask.py"
    script.parent.mkdir()
    script.write_text(
        "import asyncio\n"
        "from sim.ui.choice import choice_of\n"
        "from sim.ui.work import Worker\n"
        "async def ask():\n"
        "    worker = Worker()\n"
        "    chosen = choice_of([('workload', 'alexnet')])\n"
        "    print([kind async for kind, _ in worker.answers('view', chosen)])\n"
        "    worker.end()\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(ask())\n",
        encoding="utf-8",
    )
    root = str(Path(work.__file__).resolve().parents[2])
    said = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=os.environ | {"PYTHONPATH": root}, capture_output=True, text=True
    )
    assert said.stdout == "['said']\n", said.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads the signals of a process from /proc")
def test_ctrl_c_does_not_reach_the_process_even_while_it_starts() -> None:
    """Ctrl-C in the first seconds printed tracebacks of the fork server and of importing processes; the signal mask is inherited."""
    worker = Worker()
    try:
        worker._started()
        status = Path(f"/proc/{worker.process}/status").read_text()
    finally:
        worker.end()
    blocked = int(next(line for line in status.splitlines() if line.startswith("SigBlk:")).split()[1], 16)
    assert blocked >> (signal.SIGINT - 1) & 1
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_process_that_is_killed_in_the_middle_of_a_task_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C printed tracebacks of futures whose exception nobody retrieved, where a process did not stop in time."""
    monkeypatch.setattr(work, "_GRACE", 0.05)
    complaints: list[Any] = []

    async def give_up() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        worker = Worker()
        try:
            assert await _all(worker.answers("view", choice_of([("workload", "alexnet")])))
            task = asyncio.create_task(_all(worker.answers("view", choice_of([("workload", "resnet18")]))))
            os.kill(worker.process or 0, signal.SIGSTOP)
            await asyncio.sleep(0.2)
            task.cancel()
            await asyncio.wait([task])
        finally:
            worker.end()
        await asyncio.sleep(0.2)
        gc.collect(1)

    asyncio.run(give_up())
    gc.collect(1)
    assert complaints == []
