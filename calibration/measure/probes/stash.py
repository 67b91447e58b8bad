"""What do Stash's four runs take on this machine? RUN0 synthetic on one rank, RUN1 on all, RUN2 real and cold, RUN3 real and warm.

As harness.py of aakash-sharma/DS-Analyzer does, with few steps: steps before the first timed one are left out, every run makes as many, a
step is the mean over ranks. Real data are JPEG files written here, read by torch's DataLoader with the cores shared out as workers. The
page cache is emptied before RUN2 where that is allowed; else the row's ``cache`` says what was done instead: ``advised`` files may
still have been in memory, and files cannot be read past it here, so ``direct`` means that as well.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

from calibration.measure.ddp_steps import RankSteps, StepsWanted, run_rank, spawn
from calibration.measure.machine_record import AnswerRow
from calibration.measure.probes.disk import forget
from calibration.measure.probes.loading import no_pillow
from calibration.measure.probes.pictures import EDGE, Files, jpeg
from calibration.measure.probes.probe import Bench, JobModel, Probe
from calibration.measure.probes.training import SMALL, models, step_task, wanted_steps
from calibration.measure.team import TeamRank
from sim.analysis.differential import RunTimes, Stall, fetch, interconnect, prep

RUNS: Final = ("RUN0", "RUN1", "RUN2", "RUN3")
STEPS, QUICK_STEPS = 10, 3
_DISTINCT: Final = 12
"""Pictures that are made; files are copies of them, which the disk does not know."""


def _job(bench: Bench) -> JobModel:
    first = models(bench)[0]
    return JobModel(SMALL[1].target, (f"3x{EDGE}x{EDGE}",), 4) if bench.quick and not bench.models else first


def _skipped(bench: Bench) -> str:
    if bench.team.nodes > 1:
        return "ranks on several machines: Stash's runs use one"
    if bench.team.ranks == 1:
        return "one rank: RUN0 and RUN1 are the same"
    if _job(bench).inputs != (f"3x{EDGE}x{EDGE}",):
        return f"the model does not accept images of 3x{EDGE}x{EDGE}"
    return no_pillow(bench)


def stash_questions(bench: Bench) -> list[AnswerRow]:
    """Return the four runs."""
    workers = max(1, bench.cores // bench.neighbours)
    return [_job(bench).asked | {"run": run, "ranks": 1 if run == "RUN0" else bench.team.ranks, "workers": workers} for run in RUNS]


def stash_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Make one run: seconds of each step by rank."""
    wanted = wanted_steps(question, bench, exchange=True)
    wanted = StepsWanted(**(vars(wanted) | {"steps": QUICK_STEPS if bench.quick else STEPS}))
    if question["run"] == "RUN0":
        return _row(spawn(wanted, 1))
    if question["run"] == "RUN1":
        return _row(bench.team.ask(step_task, wanted))
    count = bench.team.ranks * wanted.batch * (wanted.steps + wanted.warmup + 2 * question["workers"])
    folder = bench.once("pictures", lambda: _pictures(bench, count))
    cache = forget(*folder.iterdir()) if question["run"] == "RUN2" else _read(folder)
    return {"cache": cache} | _row(bench.team.ask(real_task, wanted, folder, question["workers"]))


def _row(by_rank: list[RankSteps]) -> AnswerRow:
    return {"times_by_rank_s": [one.times for one in by_rank]}


def _pictures(bench: Bench, count: int) -> Path:
    """Return a new folder with *count* pictures, which goes when the probe ends."""
    folder = Path(bench.made.enter_context(tempfile.TemporaryDirectory(dir=bench.folder, prefix=".stallsim-pictures-")))
    made = [jpeg(seed) for seed in range(_DISTINCT)]
    for number in range(count):
        (folder / f"{number:06}.jpg").write_bytes(made[number % _DISTINCT])
    return folder


def _read(folder: Path) -> str:
    for path in folder.iterdir():
        path.read_bytes()
    return "warm"


def real_task(rank: TeamRank, wanted: StepsWanted, folder: Path, workers: int) -> RankSteps:
    """Run the steps as one rank on its part of the pictures."""
    from torch.utils.data import DataLoader

    paths = sorted(folder.iterdir())[rank.rank :: rank.ranks]
    pinned = rank.device == "cuda"
    loader: Any = DataLoader(Files(paths), batch_size=wanted.batch, num_workers=workers, pin_memory=pinned, drop_last=True)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    return run_rank(wanted, lambda: ((next(batches),), {}))


def stalls(rows: list[AnswerRow]) -> dict[str, Stall]:
    """Return Stash's stalls per step of the four runs, seconds and shares; empty where a run is missing."""
    step_of = {row["run"]: statistics.fmean(statistics.fmean(times) for times in row["times_by_rank_s"]) for row in rows}
    if set(step_of) != set(RUNS):
        return {}
    times = RunTimes(*(step_of[run] for run in RUNS))
    return {"interconnect": interconnect(times), "prep": prep(times), "fetch": fetch(times)}


STASH = Probe("stash", "Stash's RUN0 to RUN3: synthetic and real data, cold and warm", stash_questions, stash_answer, _skipped)
