"""How long do the steps of Stash's four runs take on this machine? This probe repeats them with few steps.

RUN0 uses synthetic data on one rank, RUN1 synthetic data on all ranks, RUN2 real data with a cold page cache, RUN3 real data with a warm
one. As in harness.py of aakash-sharma/DS-Analyzer, warm-up steps are excluded, all runs have the same number of steps, and a step time is
the mean over ranks. Real data are JPEG files that the probe writes and torch's DataLoader reads, with the cores divided into workers. The
page cache is dropped before RUN2 if that is permitted. Otherwise ``cache`` of the row records what was done instead. With ``advised``,
files may still have been in memory; the same holds for ``direct``, because the loader does not read with O_DIRECT.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

from calibration.measure.ddp_steps import RankSteps, StepRequest, run_rank, spawn
from calibration.measure.machine_record import AnswerRow
from calibration.measure.probes.disk import drop_page_cache
from calibration.measure.probes.loading import missing_pillow
from calibration.measure.probes.pictures import PICTURE_EDGE, PictureFiles, jpeg
from calibration.measure.probes.probe import Bench, JobModel, Probe
from calibration.measure.probes.training import SMALL_MODELS, models, step_request, step_task
from calibration.measure.team import TeamRank
from sim.analysis.differential import RunTimes, Stall, fetch_stall, interconnect_stall, prep_stall

RUNS: Final = ("RUN0", "RUN1", "RUN2", "RUN3")
STEPS, QUICK_STEPS = 10, 3
_DISTINCT: Final = 12
"""Number of distinct pictures; the files are copies of them, which makes no difference to the disk."""


def _job(bench: Bench) -> JobModel:
    first = models(bench)[0]
    return JobModel(SMALL_MODELS[1].target, (f"3x{PICTURE_EDGE}x{PICTURE_EDGE}",), 4) if bench.quick and not bench.models else first


def _skipped(bench: Bench) -> str:
    if bench.team.nodes > 1:
        return "ranks on several machines: Stash's runs use one"
    if bench.team.ranks == 1:
        return "one rank: RUN0 and RUN1 are the same"
    if _job(bench).inputs != (f"3x{PICTURE_EDGE}x{PICTURE_EDGE}",):
        return f"the model does not accept images of 3x{PICTURE_EDGE}x{PICTURE_EDGE}"
    return missing_pillow(bench)


def stash_questions(bench: Bench) -> list[AnswerRow]:
    """Return one question for each of the four runs."""
    workers = max(1, bench.cores // bench.neighbors)
    return [_job(bench).question | {"run": run, "ranks": 1 if run == "RUN0" else bench.team.ranks, "workers": workers} for run in RUNS]


def stash_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Measure one run: the times (s) of its steps by rank."""
    request = step_request(question, bench, exchange=True)
    request = StepRequest(**(vars(request) | {"steps": QUICK_STEPS if bench.quick else STEPS}))
    if question["run"] == "RUN0":
        return _row(spawn(request, 1))
    if question["run"] == "RUN1":
        return _row(bench.team.ask(step_task, request))
    count = bench.team.ranks * request.batch * (request.steps + request.warmup + 2 * question["workers"])
    folder = bench.once("pictures", lambda: _write_pictures(bench, count))
    cache = drop_page_cache(*folder.iterdir()) if question["run"] == "RUN2" else _read_files(folder)
    return {"cache": cache} | _row(bench.team.ask(real_task, request, folder, question["workers"]))


def _row(by_rank: list[RankSteps]) -> AnswerRow:
    return {"times_by_rank_s": [one.times for one in by_rank]}


def _write_pictures(bench: Bench, count: int) -> Path:
    """Return a new folder with *count* pictures, which is deleted when the probe ends."""
    folder = Path(bench.resources.enter_context(tempfile.TemporaryDirectory(dir=bench.folder, prefix=".stallsim-pictures-")))
    pictures = [jpeg(seed) for seed in range(_DISTINCT)]
    for number in range(count):
        (folder / f"{number:06}.jpg").write_bytes(pictures[number % _DISTINCT])
    return folder


def _read_files(folder: Path) -> str:
    for path in folder.iterdir():
        path.read_bytes()
    return "warm"


def real_task(rank: TeamRank, request: StepRequest, folder: Path, workers: int) -> RankSteps:
    """Run the steps of one rank on its share of the pictures."""
    from torch.utils.data import DataLoader

    paths = sorted(folder.iterdir())[rank.rank :: rank.ranks]
    pinned = rank.device == "cuda"
    loader: Any = DataLoader(PictureFiles(paths), batch_size=request.batch, num_workers=workers, pin_memory=pinned, drop_last=True)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    return run_rank(request, lambda: ((next(batches),), {}))


def stalls(rows: list[AnswerRow]) -> dict[str, Stall]:
    """Return Stash's stalls per step, as seconds and shares, from the four runs; empty if a run is missing."""
    step_of = {row["run"]: statistics.fmean(statistics.fmean(times) for times in row["times_by_rank_s"]) for row in rows}
    if set(step_of) != set(RUNS):
        return {}
    times = RunTimes(*(step_of[run] for run in RUNS))
    return {"interconnect": interconnect_stall(times), "prep": prep_stall(times), "fetch": fetch_stall(times)}


STASH = Probe("stash", "Stash's RUN0 to RUN3: synthetic and real data, cold and warm", stash_questions, stash_answer, _skipped)
