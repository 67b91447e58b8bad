"""How is the energy of a run shown on a page? As tables of a node's power by part, and of the costs and savings of power caps."""

from __future__ import annotations

from typing import Any

from sim.report.energy import job_energy
from sim.report.page.markup import Child, Figures, Html, join, table, tag
from sim.report.page.words import as_carbon, as_energy, as_time
from sim.report.power_error import power_error_text
from sim.units import show

LEAD = "The mean power of a node, and the effect of limits on GPU power on time and energy."
_PARTS = {"gpus": "GPUs", "host": "host, fans, conversion", "network": "NICs and switch ports"}


def energy_tile(figures: Figures) -> list[tuple[str, Child, Child]]:
    """Return the tile of the energy of the whole job in *figures*, or of an epoch; empty if the TDP of its GPU is not specified."""
    if figures.value("energy") is None:
        return []
    error = figures.value("energy/expected_error")
    off = f"; power off by {100 * error['median']:.0f}% (median)" if error else "; error unknown"
    if job := _of_job(figures):
        return [("Energy of the whole job", as_energy(job["energy_kwh"]), f"{as_carbon(job['co2_kg'])} CO2{off}")]
    more = join(figures.format("energy/co2_per_epoch_kg", as_carbon), f" CO2 per epoch{off}")
    return [("Energy per epoch", figures.format("energy/kwh_per_epoch", as_energy), more)]


def _of_job(figures: Figures) -> dict[str, Any] | None:
    """Return kWh and kg of CO2 of the whole job, if the run has one."""
    job = figures.value("whole_job")
    return job_energy(figures.value("energy"), job["time_s"]) if job else None


def energy(figures: Figures) -> Html:
    """Return the tables of the energy of the job in *figures*; empty if the TDP of its GPU is not specified."""
    if figures.value("energy") is None:
        return Html("")
    rows: list[list[Child]] = [
        [name, figures.format(f"energy/parts_w/{key}", _power), figures.share(f"energy/parts_w/{key}", "energy/node_power_w")]
        for key, name in _PARTS.items()
    ]
    rows += [
        ["node", figures.format("energy/node_power_w", _power), None],
        ["job, with PUE", figures.format("energy/site_power_w", _power), None],
    ]
    power = table([("", False), ("power", True), ("share", True)], rows, "Power", "narrow")
    job = _of_job(figures)
    error = tag("p", power_error_text(figures.value("energy"), job["energy_kwh"] if job else None))
    return join(power, error, _caps(figures), _grid(figures))


def _power(watts: float) -> str:
    return show(watts, "power")


def _joules(joules: float) -> str:
    return show(joules, "energy")


def _caps(figures: Figures) -> Html:
    rows: list[list[Child]] = [
        [
            figures.format(f"energy/power_caps/{place}/gpu_cap_w", _power),
            figures.format(f"energy/power_caps/{place}/step_time_s", as_time),
            figures.share(f"energy/power_caps/{place}/step_time_s", "step_time_s", 0),
            figures.format(f"energy/power_caps/{place}/energy_per_sample_j", _joules),
            figures.share(f"energy/power_caps/{place}/energy_per_sample_j", "energy/energy_per_sample_j", 0),
        ]
        for place in range(len(figures.value("energy/power_caps")))
    ]
    head = [("GPU limited to", False), ("step", True), ("of current", True), ("energy per sample", True), ("of current", True)]
    return table(head, rows, "Power caps, estimated without simulating steps again (run --power-cap)")


def _grid(figures: Figures) -> Html:
    grid = figures.value("energy/grid")
    where = "world average, because the region is unknown" if grid["assumed"] else grid["region"]
    rows: list[list[Child]] = [
        ["energy per epoch", figures.format("energy/kwh_per_epoch", as_energy), "PUE " + f"{figures.value('energy/pue'):g}"],
        ["CO2 per epoch", figures.format("energy/co2_per_epoch_kg", as_carbon), f"{where}, {grid['year']}; {grid['source']}"],
    ]
    if job := _of_job(figures):
        rows += [["energy, whole job", as_energy(job["energy_kwh"]), None], ["CO2, whole job", as_carbon(job["co2_kg"]), None]]
    return table([("", False), ("", True), ("", False)], rows, "Energy and carbon", "narrow")
