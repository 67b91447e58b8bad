"""What else can a run's document contain? On request: a checkpoint written during its steps, a GPU power limit, weeks with failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sim.analysis.whole_job import JobPlan
from sim.simulate import Run
from sim.spec.yaml import SpecError
from sim.study.arguments import require_power_cap
from sim.study.options import Weeks

if TYPE_CHECKING:
    from sim.mesh import LayoutRun


_WITHOUT_LIMIT: Final = "what limits steps, the waits for single resources and the timeline are those without the power limit (--power-cap)"


def require_failures(with_failures: bool, reliability: str | None, spares: int | None) -> None:
    """Raise SpecError if *reliability* or *spares* are set without failures, or are invalid."""
    for option, value in (("--reliability", reliability), ("--spares", spares)):
        if value is not None and not with_failures:
            raise SpecError(f"{option} {value}: applies only to failures; add --with-failures")
    if reliability is not None or spares is not None:
        from sim.study.weeks import check_weeks, with_reliability  # not needed by a plain run

        check_weeks(with_reliability(Weeks(days=1.0, spares=spares), reliability))


class RunExtras(NamedTuple):
    """The optional parts that are requested; none by default."""

    with_failures: bool = False
    store: str | None = None
    """Where a checkpoint is written: a name, a file, or ``disk``."""
    power_cap: str | None = None
    """Power limit of each GPU, such as ``500 W``."""
    reliability: str | None = None
    """How often machines fail: a level or a file. None means the middle level."""
    spares: int | None = None
    """Spare nodes. None means the default of `sim.study.weeks`."""

    def check(self, plan: JobPlan | None, one: bool = True) -> None:
        """Raise SpecError if parts are requested for several runs (*one* is False), or failures without a job length (*plan*)."""
        options = {"--with-failures": self.with_failures, "--store": self.store, "--power-cap": self.power_cap}
        for option, value in options.items():
            if value and not one:
                raise SpecError(f"{option}: write one number of nodes or GPUs")
        require_power_cap(self.power_cap)
        if self.store is not None:
            from sim.study.weeks import store_of  # not needed by a plain run

            store_of(self.store)
        if self.with_failures and plan is None:
            raise SpecError("--with-failures: set the length of the job with --epochs, --hours or --tokens")
        require_failures(self.with_failures, self.reliability, self.spares)

    def add_to(self, document: dict[str, Any], run: Run | LayoutRun, plan: JobPlan | None) -> dict[str, Any]:
        """Return the *document* of *run* with the requested parts added; *plan* is the whole job. Raise SpecError for several jobs."""
        if "jobs" in document:
            for option, value in (("--power-cap", self.power_cap), ("--with-failures", self.with_failures)):
                if value:
                    raise SpecError(f"{option}: takes one workload, not several jobs")
        if self == RunExtras():
            return document
        from sim.report.goodput import goodput_of_run  # not needed by a plain run
        from sim.report.limited import under_power_cap
        from sim.report.saving import saved_document
        from sim.study.power_cap import slower_runs
        from sim.study.saving import saved_during_run, slowdown_by_store

        workload = run.jobs[0].job.workload if isinstance(run, Run) else run.workload
        shown, slower = document | {}, slower_runs(run)
        if self.power_cap is not None:
            shown = under_power_cap(document, run.hardware, workload, self.power_cap, plan, slower)
            shown["assumptions"] = [*shown["assumptions"], _WITHOUT_LIMIT]
        if self.store is not None:
            longer = shown["step_time_s"] - document["step_time_s"]
            shown["checkpoint"] = saved_document(saved_during_run(run, self.store).with_longer_steps(longer))
        if self.with_failures and plan is not None:
            weeks = goodput_of_run(
                document, run.hardware, workload, plan, slowdown_by_store(run), self.store, self.power_cap, spares=self.spares,
                reliability=self.reliability, slower=slower,
            )  # fmt: skip
            shown["with_failures"] = weeks
        return shown
