"""How is a run shown on a page? The verdict in words, then where a step goes, its timeline, the machine's links, and what would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.analysis.bottleneck import Bottleneck
from sim.report.energy import epoch_tokens
from sim.report.expected_error import interval_text
from sim.report.kinds import batch_text, gpus_text, tightest_gpu
from sim.report.page.bars import BarPiece, bar, named_bars, p90_error, stalls, swatch
from sim.report.page.drawing import JobBound, drawings, use_table
from sim.report.page.energy import LEAD, energy, energy_tile
from sim.report.page.frame import PagePart, page
from sim.report.page.goodput import with_failures
from sim.report.page.markup import Child, Figures, Html, bullets, details, join, note_box, section, step, table, tag, tiles
from sim.report.page.provenance import PRICES_LEAD, price_table, provenance
from sim.report.page.timeline import STEPS, shown_span, timeline
from sim.report.page.use import Use, uses, uses_document
from sim.report.page.whole_job import whole_job
from sim.report.page.words import as_bandwidth, as_memory, as_money, as_percent, as_time, unbroken
from sim.report.trace.excerpt import Excerpt, excerpt
from sim.report.verdict import bound_by
from sim.report.whatif import NAMES
from sim.report.whole_job import tokens_text
from sim.simulate import Run
from sim.units import pluralized, rate_text

_TITLES = {
    "time": "Where the time goes", "job": "The whole job", "failures": "With failures",
    "steps": "Step by step", "machine": "The machine", "memory": "GPU memory",
    "energy": "Energy", "help": "What would help", "assumed": "Assumptions", "inputs": "Inputs", "prices": "Prices",
}  # fmt: skip
_KNOWN = 1e-4
"""Half-width of an interval, as a share of the step, up to which it is not shown."""


def run_page(run: Run, document: Mapping[str, Any], bottlenecks: Sequence[Bottleneck] = ()) -> str:
    """Return the page of *run*, whose JSON is *document*; it shows the use of links if the run kept its rates."""
    hero, parts, view = run_parts(run, document, bottlenecks)
    title = f"{', '.join(job.job.workload.name for job in run.jobs)} on {run.hardware.name}"
    return page(title, "run", hero, parts, {"run": document, "view": view})


def run_parts(run: Run, document: Mapping[str, Any], bottlenecks: Sequence[Bottleneck] = ()) -> tuple[Html, list[PagePart], dict[str, Any]]:
    """Return the outcome of *run*, the parts of its page, and a document of figures that *document* does not have; see `run_page`."""
    chosen = excerpt(run, STEPS)
    view: dict[str, Any] = {"note": chosen.note, "jobs": []}
    of_jobs = [*bottlenecks, *[None] * len(run.jobs)]
    jobs = [_JobPage(run, number, document, chosen, view, of_jobs[number]) for number in range(len(run.jobs))]
    parts = [part for job in jobs for part in job.parts()]
    return tag("div", *(job.hero() for job in jobs), id="result", class_="heroes"), parts, view


class _JobPage:
    """The parts of one job's page; figures that *document* does not have go into *view*."""

    def __init__(
        self, run: Run, number: int, document: Mapping[str, Any], chosen: Excerpt, view: dict[str, Any], bottleneck: Bottleneck | None
    ) -> None:
        self.run, self.number, self.chosen, self.bottleneck = run, number, chosen, bottleneck
        self.several = "jobs" in document
        self.figures = Figures(document, "run", f"jobs/{number}" if self.several else "")
        ranks = [rank for rank in chosen.ranks if run.log.ranks[rank.index].job == number]
        self.span = shown_span(ranks) if ranks else None
        self.uses: dict[str, Use] = uses(run, chosen, self.span.start, self.span.end) if self.span else {}
        view["jobs"].append(
            {"links": uses_document(self.uses), "waited_for": _waited(run, number), "gpu_memory_bytes": tightest_gpu(run, number).memory}
        )
        self.own = Figures(view, "view", f"jobs/{number}")

    # --- the outcome ---------------------------------------------------------------------------------------------

    def hero(self) -> Html:
        """Return the verdict, the set-up and the main figures."""
        figures = self.figures
        nodes = figures.value("nodes")
        set_up = (
            f"{gpus_text(self.run, self.number)} on {pluralized(nodes, 'node')}, {batch_text(figures.value(''))}, "
            f"{figures.value('precision')}, {figures.value('stack')}"
        )
        name = f"Job {self.number}: " if self.several else ""
        head = tag("h1", f"{name}{figures.value('workload')} on {figures.value('hardware')}")
        verdict = tag("p", unbroken(figures.value("verdict")), class_="verdict")
        return tag(
            "div",
            head,
            verdict,
            tag("p", set_up, class_="set-up"),
            self._tiles(),
            note_box("Warnings", figures.value("warnings")),
            class_="hero",
        )

    def _tiles(self) -> Html:
        figures = self.figures
        error = figures.value("expected_error")
        interval = (figures.value("step_time_half_width_s") or 0.0) > _KNOWN * figures.value("step_time_s")
        gpus = figures.value("gpus")
        epoch = figures.format("cost_per_epoch_usd", as_money)
        tokens = epoch_tokens(figures.value(""))
        rows: list[tuple[str, Child, Child]] = [
            (
                "Step",
                figures.format("step_time_s", as_time),
                join("± ", figures.format("step_time_half_width_s", as_time)) if interval else None,
            ),
            (
                "Samples per second",
                figures.format("throughput_samples_per_s", rate_text),
                f"total of {gpus:,} GPUs" if gpus > 1 else "one GPU",
            ),
            ("Epoch" if tokens is None else f"Epoch of {tokens_text(tokens)}", figures.format("epoch_time_s", as_time), epoch),
            ("First epoch", figures.format("first_epoch/epoch_time_s", as_time), figures.format("first_epoch/cost_usd", as_money)),
            (
                "GPU memory",
                figures.format("gpu_memory_bytes/total", as_memory),
                join("of ", self.own.format("gpu_memory_bytes", as_memory)),
            ),
            *energy_tile(self.figures),
            ("Expected error", figures.format("expected_error/median", as_percent) if error else "unknown", self._error(error)),
        ]
        if figures.value("whole_job"):
            costs = figures.format("whole_job/cost_usd", as_money)
            rows.append(("Whole job", figures.format("whole_job/time_s", as_time), costs))
        return tiles(rows)

    def _error(self, error: Mapping[str, Any] | None) -> Html:
        if error is None:
            return Html("no similar run was measured")
        return join("median; one in ten above ", self.figures.format("expected_error/p90", as_percent))

    # --- the parts -----------------------------------------------------------------------------------------------

    def parts(self) -> list[PagePart]:
        """Return all parts of the job."""
        contents = {
            "time": self._time(), "job": self._job(), "failures": with_failures(self.figures),
            "steps": self._steps(), "machine": self._machine(), "memory": self._memory(),
            "energy": energy(self.figures),
            "help": self._help(), "assumed": self._assumed(),
            "prices": price_table(self.figures),
            "inputs": details("All inputs, sources and hashes", provenance(self.run, self.number, self.figures)),
        }  # fmt: skip
        leads = {
            "time": "A rank's step by what it does or waits for; mean over ranks.",
            "job": "From the start of the machines to the last checkpoint.",
            "steps": "Activity of one rank, its streams and its loader, and the utilization of links.",
            "machine": self._exchange(),
            "memory": "Peak GPU memory of a step.",
            "energy": LEAD,
            "help": self._help_lead(),
            "prices": PRICES_LEAD,
        }
        return [self._part(ident, html, leads.get(ident)) for ident, html in contents.items() if html]

    def _part(self, ident: str, html: Html, lead: Child) -> PagePart:
        name = f"{ident}-{self.number}" if self.several else ident
        title = f"Job {self.number}: {_TITLES[ident].lower()}" if self.several else _TITLES[ident]
        listed = title if not self.several else f"Job {self.number}: {self.figures.value('workload')}" if ident == "time" else ""
        return PagePart(name, listed, section(name, title, html, lead=lead))

    def _time(self) -> Html:
        rows: list[list[Child]] = [
            [join(swatch(row["cause"]), row["cause"]), row["resource"], self.own.format(f"waited_for/{place}/time_s", as_time)]
            for place, row in enumerate(self.own.value("waited_for"))
        ]
        head = [("cause", False), ("resource", False), ("a warm step", True)]
        return join(stalls(self.figures), details("All resources that were waited for", table(head, rows, "Waited for in a warm step")))

    def _job(self) -> Html:
        if not self.figures.value("whole_job"):
            return Html("")
        return whole_job(self.figures.subfigures("whole_job"), p90_error(self.figures))

    def _steps(self) -> Html:
        if self.span is None:
            return Html("")
        bound = next((name for name, use in self.uses.items() if self._slowest and use.description.startswith(self._slowest)), "")
        lanes = timeline(self.run, self.number, self.chosen, self.span, list(self.uses.values()), bound)
        return join(lanes, details("Use of resources (table)", use_table(list(self.uses.values()), self.own)))

    @property
    def _slowest(self) -> str:
        """Return the description of the link that bounds the exchange of gradients."""
        collective = self.figures.value("collective")
        return str(collective["bottleneck"]) if collective else ""

    def _machine(self) -> Html:
        resource = bound_by(self.run, self.number, self.bottleneck)
        return drawings(self.run, self.number, self.uses, JobBound(resource, self._slowest))

    def _exchange(self) -> Child:
        exchange = self.figures.value("collective")
        if exchange is None:
            return "One GPU: no gradient exchange."
        how = f"{exchange['algorithm']} {exchange['protocol'] or ''}".replace("_", " ").strip()
        bus = self.figures.format("collective/busbw_bytes_per_s", as_bandwidth)
        return join(f"Gradient exchange: {how}, bus bandwidth ", bus, f", bound by {exchange['bottleneck']}.")

    def _memory(self) -> Html:
        uses_of = {name: value for name, value in self.figures.value("gpu_memory_bytes").items() if name != "total" and value > 0}
        pieces = [
            BarPiece(f"gpu_memory_bytes/{name}", name, name.replace("_", " "), as_memory(value)) for name, value in uses_of.items()
        ]  # fmt: skip
        capacity = self.own.value("gpu_memory_bytes")
        filled = tag("div", bar(self.figures, pieces, "gpu_memory_bytes/total", capacity), class_="room")
        chart = named_bars([("one GPU", filled, self.own.format("gpu_memory_bytes", as_memory))], "GPU memory by use")
        rows: list[list[Child]] = [
            [join(swatch(name), name.replace("_", " ")), self.figures.format(f"gpu_memory_bytes/{name}", as_memory)] for name in uses_of
        ]
        rows.append(["total", self.figures.format("gpu_memory_bytes/total", as_memory)])
        return join(tag("figure", chart), table([("use", False), ("bytes", True)], rows, "GPU memory by use", "narrow"))

    def _help(self) -> Html:
        freed = self.figures.value("freed_step_time_s")
        if not freed:
            return Html("")
        now = self.figures.value("step_time_s")
        ranked = sorted(freed, key=lambda name: freed[name])
        rows: list[tuple[Child, Html, Child]] = [(NAMES[name], self._step_bar(name, now), self._saved(name)) for name in ranked]
        chart = tag("div", named_bars(rows, "Step time with one resource infinitely fast"), class_="short")
        cells: list[list[Child]] = [
            [NAMES[name], self.figures.format(f"freed_step_time_s/{step(name)}", as_time), self._saved(name)] for name in ranked
        ]
        head = [("infinitely fast", False), ("step", True), ("saves", True)]
        return join(tag("figure", chart), details("As a table", table(head, cells, "What would help", "narrow")))

    def _step_bar(self, name: str, now: float) -> Html:
        value = self.figures.value(f"freed_step_time_s/{step(name)}")
        mark = tag(
            "div", class_="mark piece", style=f"width:{100 * value / now:.4f}%;background:var(--busy)", data_value=repr(value),
            data_at=self.figures.place(f"freed_step_time_s/{step(name)}"),
            data_tip=f"{NAMES[name]} infinitely fast\na step takes {as_time(value)}",
        )  # fmt: skip
        return tag("div", tag("div", mark, class_="stack"), class_="room")

    def _saved(self, name: str) -> Html:
        freed, now = self.figures.value(f"freed_step_time_s/{step(name)}"), self.figures.value("step_time_s")
        return Html(f"-{100 * (1 - freed / now):.1f}%") if freed < now else Html("nothing")

    def _help_lead(self) -> str:
        if not self.figures.value("freed_step_time_s"):
            return ""
        return (
            "Step time with one resource infinitely fast and all else unchanged; hatched: the time saved. The stalls above show what ranks "
            "wait for; this shows what would help. Resources that no rank waits for are omitted; python -m sim whatif tries more."
        )

    def _assumed(self) -> Html:
        warned = self.figures.value("warnings")
        error = self.figures.value("expected_error")
        interval = interval_text(error, self.figures.value("step_time_s")) if error else ""
        return join(
            bullets(self.figures.value("assumptions")),
            tag("h3", "Warnings") if warned else None, bullets(warned) if warned else None,
            tag("h3", "Where the expected error comes from") if error else None,
            tag("p", f"{interval[:1].upper()}{interval[1:]}.") if error else None, tag("p", error["basis"]) if error else None,
        )  # fmt: skip


def _waited(run: Run, number: int) -> list[dict[str, Any]]:
    return [
        {"cause": row.cause.value, "resource": row.resource, "time_s": row.seconds}
        for row in run.jobs[number].warm.resources
        if row.seconds > 1e-12
    ]
