"""How are the results of AccPar's study written? Step times and speedups of every network, with the published means and differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from calibration.studies.accpar.array import ArrayTimes
from calibration.studies.accpar.strategies import COMPARED, RATIO_STEPS, STRATEGIES
from calibration.studies.accpar.study import PUBLISHED, WIRES, AccparStudy, StepResult
from sim import __version__
from sim.units import show

_ORDER: Final = ("batch", "input", "output")
WIRE_TITLES: Final = {"nic": "boards joined by their NICs", "links": "boards joined by the chips' own links"}
"""Description of each kind of connection between boards."""


def accpar_document(study: AccparStudy) -> dict[str, Any]:
    """Return the JSON document of the study."""
    return {
        "schema": 1,
        "study": "accpar",
        "hardware": study.hardware.spec.name,
        "global_batch": study.batch,
        "boards": [_boards(study, wires) for wires in WIRES],
        "rows": [row for result in study.results for row in _rows(result)],
        "means": [_mean(study, wires, name) for wires in WIRES for name in STRATEGIES],
        "published": "AccPar (HPCA 2020), abstract",
        "as_published": study.as_published,
        "differs": differences(study),
        "assumptions": _assumptions(),
        "warnings": ["all data of the boards are estimates from weak sources ('python -m sim check -v' lists them)"],
        "version": __version__,
        "inputs_sha256": dict(study.inputs),
    }


def _boards(study: AccparStudy, wires: str) -> dict[str, Any]:
    array = study.results_with(wires)[0].case.array
    return {
        "wires": wires,
        "groups": [
            {
                "board": each.board.name,
                "count": each.number,
                "flop_per_s": each.board.speed,
                "bytes_per_s": each.board.bandwidth,
            }
            for each in array.groups
        ],
    }


def _rows(result: StepResult) -> list[dict[str, Any]]:
    return [
        {
            "wires": result.case.wires,
            "model": result.case.model,
            "strategy": name,
            "step_time_s": times.total,
            "inter_layer_s": float(times.edges.sum()),
            "speedup": result.speedup(name),
            **{f"split_by_{dimension}_percent": share for dimension, share in dimension_shares(times).items()},
            "first_ratios": first_ratios(times),
        }
        for name, times in result.times.items()
    ]


def dimension_shares(times: ArrayTimes) -> dict[str, float]:
    """Return the share (%) of layers that are split in each dimension, over all levels."""
    counts = Counter(state.dimension for level in times.levels for state in level)
    layers = sum(counts[dimension] for dimension in _ORDER)
    return {dimension: 100.0 * counts[dimension] / layers if layers else 0.0 for dimension in _ORDER}


def first_ratios(times: ArrayTimes) -> str:
    """Return the range, over layers, of the share that the slowest boards get."""
    ratios = [state.ratio for state in times.levels[0] if state.dimension in _ORDER] if times.levels else [1.0]
    return f"{min(ratios):.2f} to {max(ratios):.2f}" if min(ratios) < max(ratios) else f"{ratios[0]:.2f}"


def _mean(study: AccparStudy, wires: str, strategy: str) -> dict[str, Any]:
    arithmetic, geometric = study.means(wires, strategy)
    return {
        "wires": wires, "strategy": strategy, "arithmetic": arithmetic, "geometric": geometric, "published": PUBLISHED.get(strategy),
    }  # fmt: skip


def differences(study: AccparStudy) -> list[str]:
    """Return reasons why these speedups differ from the paper's."""
    speedups = [result.speedup("AccPar") for result in study.results_with("nic")]
    gains = f"on the same array, AccPar's gain ranges from {min(speedups):.1f} to {max(speedups):.1f} times"
    return [
        f"the mean depends on the networks: {gains if len(speedups) > 1 else 'the gain is'}{',' * (len(speedups) > 1)} largest where "
        "weights outweigh products (AlexNet, VGG)",
        "it depends on the network between boards, whose rate was not verified against the paper: both ways to join boards are shown",
        "matrix products run at peak and nothing overlaps; the paper's simulator also counts memory accesses, which slow all strategies "
        "equally",
        f"ratios are searched exhaustively on a grid of {RATIO_STEPS} steps per layer; the paper solves an equation that balances both "
        "sides of a layer",
        "the networks are torchvision's: AlexNet has 64 channels in its first layer (the authors' has 96)",
        "a board's share of a layer is at least one sample or channel; the authors' program has no such limit",
        "the data that a group fetches are spread over its boards, so data parallelism costs as much as the best all-reduce",
    ]


def _assumptions() -> list[str]:
    return [
        "closed form, no event simulation: each layer waits for the slower side at every level",
        "bfloat16 tensors; data parallelism, one weird trick and HyPar always split in halves",
        "HyPar includes shortcuts; its authors' program ignores them",
        "'by speed' is data parallelism with batches proportional to the boards' speeds; it is not in the paper",
    ]


def verdict_of(document: Mapping[str, Any]) -> str:
    """Return a sentence that compares AccPar's speedup with the published one."""
    means = {(mean["wires"], mean["strategy"]): mean for mean in document["means"]}
    gains = " and ".join(f"{means[wires, 'AccPar']['arithmetic']:.2f} times ({named})" for wires, named in WIRE_TITLES.items())
    models = list(dict.fromkeys(row["model"] for row in document["rows"]))
    scope = f"for {models[0]}" if len(models) == 1 else "on average"
    published = f"the paper says {PUBLISHED['AccPar']:.2f}"
    if not document["as_published"]:
        published = f"the published {PUBLISHED['AccPar']:.2f} is for other networks, or another array or batch"
    return f"AccPar is {gains} faster than data parallelism {scope}; {published}."


def accpar_text(document: Mapping[str, Any]) -> str:
    """Return the text for a terminal."""
    lines = [
        f"AccPar on {document['hardware']}: step time for {document['global_batch']} samples with data parallelism in halves, and the "
        "speedup of the other strategies"
    ]
    lines.append(f"  {verdict_of(document)}")
    for part in document["boards"]:
        wires = part["wires"]
        named = " and ".join(
            f"{each['count']} x {each['board']} ({each['flop_per_s'] / 1e12:.0f} TFLOP/s, {show(each['bytes_per_s'], 'bandwidth')})"
            for each in part["groups"]
        )
        lines += ["", f"  {WIRE_TITLES[wires]}: {named}", f"  {'':12}{'data parallel':>14}" + "".join(f"{name:>17}" for name in COMPARED)]
        rows = [row for row in document["rows"] if row["wires"] == wires]
        for model in dict.fromkeys(row["model"] for row in rows):
            lines.append(_line(model, {row["strategy"]: row for row in rows if row["model"] == model}))
        lines += _mean_lines([mean for mean in document["means"] if mean["wires"] == wires], document)
    lines += [
        "",
        "  Why the means differ from the paper:" if document["as_published"] else "  Where this differs from the paper:",
        *(f"    - {text}" for text in document["differs"]),
    ]
    lines += ["  Assumed:", *(f"    - {text}" for text in document["assumptions"])]
    lines += ["  Warnings:", *(f"    - {text}" for text in document["warnings"])]
    return "\n".join(lines)


def _line(model: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    gains = "".join(f"{rows[name]['speedup']:>16.2f}x" for name in COMPARED)
    return f"  {model:<12}{show(rows['data parallel']['step_time_s'], 'time'):>14}{gains}"


def _mean_lines(means: Sequence[Mapping[str, Any]], document: Mapping[str, Any]) -> list[str]:
    """Return lines with the means if there are several networks, and the published means if networks and array are the paper's."""
    own = {mean["strategy"]: mean for mean in means}

    def line(title: str, key: str) -> str:
        cells = "".join(f"{own[name][key]:>16.2f}x" if own[name][key] is not None else f"{'-':>17}" for name in COMPARED)
        return f"  {title:<12}{'':>14}{cells}"

    several = len({row["model"] for row in document["rows"]}) > 1
    lines = [line("mean", "arithmetic"), line("geometric", "geometric")] if several else []
    return [*lines, line("published", "published")] if document["as_published"] else lines
