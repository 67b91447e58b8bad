"""How far off may the power of a run be? The errors of predictions for measured nodes, or GPUs, of the same kind.

``make validated`` writes ``hardware/validated_power.json`` from the measured powers that come with `calibration`: nodes of MLPerf, metered
at the wall, and single GPUs of Zeus. No constant of the power model was fitted to these rows. Energy and CO2 have the errors of power,
step, PUE and grid together (`sim.analysis.energy_error`) if the power of nodes was measured; no energy of a whole run was compared. Other
GPUs, and fewer than five rows, have no expected error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sim.analysis.energy import KWH, country_ratios, power_model
from sim.analysis.energy_error import PowerLaw, SpreadOf, energy_ratios, intensity_ratios, intervals
from sim.report.validated import spread_text, validated_groups
from sim.units import show

if TYPE_CHECKING:
    from sim.analysis.energy_error import Array

SUMMARY: Final = "hardware/validated_power.json"
_OF: Final = {"node_power_w": "node power", "gpu_power_w": "GPU power"}


def power_error(gpus: Collection[str], by_kernel: bool) -> dict[str, Any] | None:
    """Return the expected error (fractions) of the power of a run on *gpus*, or None if the power of these was not measured.

    *by_kernel*: whether the run's kernels are known, as in the measured runs.
    """
    if len(gpus) != 1 or not by_kernel:
        return None
    (gpu,) = gpus
    measured = validated_groups(SUMMARY).get(gpu)
    return None if measured is None else {"gpu": gpu, **measured}


def brief_power_error(error: Mapping[str, Any] | None) -> str:
    """Return a clause on the expected *error* of the power in a document."""
    if error is None:
        return "error unknown: no run like this one was measured"
    return f"error of {_OF[error['of']]}: {spread_text(error)}, {error['points']} runs of {', '.join(error['sources'])}"


def energy_intervals(
    error: Mapping[str, Any] | None, step: Mapping[str, Any] | None, grid: Mapping[str, Any], kwh: Array | None = None,
    given_time: bool = False,
) -> dict[str, Any] | None:  # fmt: skip
    """Return intervals of energy and CO2 with all their errors; None if the error of power or of the step is unknown.

    *error* is that of power, and *step* the expected error of the step, which does not count for a job of *given_time*. *grid* are the
    figures of the grid. With the *kwh* of drawn courses of a job, the intervals are in kWh and kg; without, they are relative to the
    prediction.
    """
    if error is None or "log_error" not in error or (step is None and not given_time):
        return None
    import numpy as np

    model = power_model()
    ends = None if step is None or given_time else SpreadOf(**step["measured_over_predicted_95"])
    pue = SpreadOf(*(end / model.pue for end in model.pue_interval))
    ratios = energy_ratios(PowerLaw(error["log_error"], error["kinds"]), pue, ends)
    of_co2 = ratios * intensity_ratios(SpreadOf(*model.intensity_change), country_ratios() if grid["assumed"] else ())
    of_errors = {"errors_of": ["power", *([] if ends is None else ["step"]), "PUE"]}
    if kwh is None:
        return of_errors | {"energy": intervals(np.ones(1), ratios), "co2": intervals(np.ones(1), of_co2)}
    return of_errors | {"energy_kwh": intervals(kwh, ratios), "co2_kg": intervals(kwh * grid["kg_per_kwh"], of_co2)}


def interval_words(errors_of: Sequence[str], kwh: Sequence[float], co2: Sequence[float]) -> str:
    """Return a clause with the 95% intervals of energy (*kwh*) and of CO2 (kg), with the errors of *errors_of*."""
    energy = " and ".join(show(KWH * end, "billed energy") for end in kwh)
    carbon = " and ".join(show(end, "mass") for end in co2)
    *first, last = errors_of
    return f"95% between {energy} with the errors of {', '.join(first)} and {last}; CO2, with that of the grid, between {carbon}"


def with_energy_error(energy: dict[str, Any] | None, step: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the *energy* of a run's document with the intervals of its errors, given the expected error of the *step*."""
    if energy is None or energy["expected_error"] is None:
        return energy
    spread = energy_intervals(energy["expected_error"], step, energy["grid"])
    return energy | {"expected_error": energy["expected_error"] | {"true_over_predicted": spread}}


def energy_error_words(energy: Mapping[str, Any], kwh: float) -> str:
    """Return a clause with the 95% intervals of *kwh* predicted by the *energy* of a run's document; empty if its error is unknown."""
    spread = (energy["expected_error"] or {}).get("true_over_predicted")
    if spread is None:
        return ""
    co2 = kwh * energy["grid"]["kg_per_kwh"]
    return interval_words(
        spread["errors_of"], *([of * end for end in spread[key]["interval95"]] for key, of in (("energy", kwh), ("co2", co2)))
    )


def power_error_text(energy: Mapping[str, Any], kwh: float | None = None) -> str:
    """Return sentences on the expected error of the power in the *energy* of a document, and on those of energy and CO2.

    Those are of a whole job of *kwh*, or of an epoch.
    """
    text = brief_power_error(energy["expected_error"])
    within = energy_error_words(energy, energy["kwh_per_epoch"] if kwh is None else kwh)
    of_energy = (
        f"Energy of {'an epoch' if kwh is None else 'the whole job'}: {within}."
        if within
        else "Energy and CO2 are power times time, so they also have the error of the step."
    )
    return f"{text[0].upper()}{text[1:]}. {of_energy}"
