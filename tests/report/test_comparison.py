"""Does a comparison say what it compares by? Oracles: figures written down, texts of the picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from sim.cli import main
from sim.report.comparison import (
    MOST_ROWS,
    _error,
    comparison_axes,
    comparison_document,
    comparison_plot,
    comparison_text,
    failure_lines,
    page_notes,
    rows_that_matter,
    width_note,
)
from sim.spec.yaml import SpecError
from sim.study.compare import ComparedMachine

STALLS = dict.fromkeys(("compute", "fetch", "prep", "copy", "interconnect", "network", "straggler", "launch"), 0.0)


def machine(name: str, time: float, cost: float | None, job: dict[str, Any] | None = None, provider: str = "") -> ComparedMachine:
    figures = {
        "hardware": name, "nodes": 1, "gpus": 8, "batch_per_gpu": 32, "precision": "fp32", "stack": "toy", "step_time_s": 0.1,
        "throughput_samples_per_s": 10.0, "epoch_time_s": time, "cost_per_epoch_usd": cost, "price": None,
        "stalls_s": STALLS | {"compute": 0.07, "prep": 0.03}, "expected_error": None, "whole_job": job,
        "first_epoch": {"epoch_time_s": 2 * time, "cost_usd": cost}, "gpu_memory_bytes": {"total": 1e9},
        "workload": "w", "assumptions": ["toy"], "warnings": [], "seed": 0, "inputs_sha256": {"hardware": name, "workload": "w"},
    }  # fmt: skip
    return ComparedMachine(name, 1, figures, "", provider)


def job(given: str, epochs: float, time: float, cost: float | None) -> dict[str, Any]:
    return {"given": given, "epochs": epochs, "time_s": time, "cost_usd": cost, "parts_s": {}}


FASTEST, CHEAPEST, DOMINATED, UNPRICED = machine("a", 10, 4.0), machine("b", 20, 1.0), machine("c", 30, 2.0), machine("d", 5, None)
PRICED = (FASTEST, CHEAPEST, DOMINATED)


def test_the_front_is_what_nothing_beats() -> None:
    comparison = comparison_document("w", PRICED)
    assert {row["hardware"]: row["pareto"] for row in comparison["rows"]} == {"a": True, "b": True, "c": False}


@pytest.mark.parametrize(("sort", "order"), [("time", "dabc"), ("cost", "bcad"), ("name", "abcd"), ("step", "dabc")])
def test_rows_are_sorted_and_those_without_a_figure_come_last(sort: str, order: str) -> None:
    """If all are equal, as their steps are here, the machines keep their order."""
    given = (UNPRICED, FASTEST, CHEAPEST, DOMINATED)
    assert "".join(row["hardware"] for row in comparison_document("w", given, sort)["rows"]) == order


def priced(row: ComparedMachine, usd_per_h: float | None) -> ComparedMachine:
    price = {"market": "on_demand", "usd_per_h": usd_per_h, "date": None, "region": None, "source": None}
    return replace(row, document={**(row.document or {}), "price": price})


def test_a_machine_without_a_price_beside_others_says_how_to_give_one() -> None:
    rows = (priced(FASTEST, 4.0), priced(UNPRICED, None))
    assert comparison_document("w", rows)["note"] == "no price for d; --price d='10 USD/h' sets one"
    assert not comparison_document("w", rows[:1])["note"] and not comparison_document("w", rows[1:])["note"]


def test_a_wrong_sort_is_told() -> None:
    with pytest.raises(SpecError, match=r"--sort size: write one of time, cost, name, step"):
        comparison_document("w", PRICED, "size")


def test_the_text_has_a_line_a_machine_and_the_reasons() -> None:
    failed = ComparedMachine("e", 2, None, "e: does not fit")
    text = comparison_text(comparison_document("w", (*PRICED, failed)))
    assert text.count("0.9 GiB") == len(PRICED)
    lines = text.splitlines()
    assert sum(line.lstrip("* ").startswith(("a ", "b ", "c ")) for line in lines) == 3
    assert next(line for line in lines if " a " in line).startswith("*") and "prep 30%" in text
    assert "does not fit" in text


def test_what_is_compared_is_an_epoch_or_the_whole_job() -> None:
    time, cost = comparison_axes(comparison_document("w", (FASTEST,))["rows"])
    row = comparison_document("w", (FASTEST,))["rows"][0]
    assert (time.title, time.of(row), cost.of(row)) == ("seconds per epoch", 10.0, 4.0)
    for given, value in (("epochs", 7200 / 3600), ("time", 3.0)):
        rows = comparison_document("w", (machine("a", 10, 4.0, job(given, 3.0, 7200.0, 8.0)),))["rows"]
        time, cost = comparison_axes(rows)
        assert (time.of(rows[0]), cost.of(rows[0])) == (value, 8.0)
    nothing_done = comparison_document("w", (machine("a", 10, 4.0, job("time", 0.0, 60.0, 8.0)),))["rows"]
    assert comparison_axes(nothing_done)[0].of(nothing_done[0]) is None  # a logarithmic axis has no place for it


def test_a_job_given_in_tokens_is_compared_by_its_time_and_its_cost() -> None:
    """By hand: 7200 s are 2 h; an epoch of a stream of tokens says nothing, so it has no column."""
    rows = [
        machine("a", 1e6, 4.0, job("tokens", 0.01, 7200.0, 8.0), "lambda"),
        machine("b", 2e6, 4.0, job("tokens", 0.01, 14400.0, 9.0), "gcp"),
    ]
    document = comparison_document("w", rows)
    time, cost = comparison_axes(document["rows"])
    assert (time.title, time.of(document["rows"][0]), cost.of(document["rows"][0])) == ("hours, whole job", 2.0, 8.0)
    head, first = comparison_text(document).splitlines()[2:4]
    assert head.split()[:4] == ["hardware", "provider", "nodes", "GPUs"] and "whole job" in head and "epoch" not in head
    assert first.split()[:3] == ["*", "a", "lambda"] and "2 h" in first and "8.00" in first


def test_reasons_are_told_once_for_all_machines_that_share_them() -> None:
    failed = [
        ComparedMachine(name, 1, None, f"{name}: job.yaml:1:1: training.precision: no bf16 units") for name in ("x", "y", "z", "u", "v")
    ]
    text = comparison_text(comparison_document("w", [FASTEST, *failed]))
    assert text.endswith("\n  - x, y, z, u, v: job.yaml:1:1: training.precision: no bf16 units")


def test_machines_of_one_speed_are_not_said_to_differ() -> None:
    rows = [machine(name, time, 4.0) for name, time in (("a", 10.0), ("b", 10.0001))]
    for row in rows:
        row.document["expected_error"] = {"median": 0.08, "p90": 0.2}  # type: ignore[index]
    assert "a is no faster than b; the expected error is 8%." in comparison_text(comparison_document("w", rows))


@pytest.mark.parametrize("median", [None, 0.08])
def test_three_and_more_machines_of_one_speed_are_equal(median: float | None) -> None:
    """Also without an expected error, and where the cost decides nothing either; another within the error is told apart."""
    rows = [machine(name, time, 4.0) for name, time in (("a", 10.0), ("b", 10.0001), ("c", 10.0), ("d", 10.3))]
    for row in rows:
        row.document["expected_error"] = median and {"median": median, "p90": 0.2}  # type: ignore[index]
    text = comparison_text(comparison_document("w", rows)) + "\n"
    further = "; 1 other is within the expected error of 8%: d" if median else ""
    assert f"\na, c and b are equally fast{further}.\n" in text
    assert "\na, c, b and 1 more are equally cheap.\n" in text


def test_all_machines_within_the_expected_error_of_the_best_are_counted() -> None:
    """By hand: b, c, d and e take up to 8% longer than a; f takes 20% longer, g costs the least by far."""
    times = {"a": 100.0, "b": 100.1, "c": 103.0, "d": 107.0, "e": 107.5, "f": 120.0, "g": 400.0}
    rows = [machine(name, time, 1.0 if name == "g" else 4.0) for name, time in times.items()]
    for row in rows:
        row.document["expected_error"] = {"median": 0.08, "p90": 0.2}  # type: ignore[index]
    lines = comparison_text(comparison_document("w", rows)).splitlines()
    assert "a is the fastest, but 4 others are within the expected error of 8%: b, c, d and 1 more." in lines
    assert not [line for line in lines if "cheap" in line and line.startswith("g is")]
    rows[3].document["expected_error"] = {"median": 0.1, "p90": 0.2}  # type: ignore[index]
    assert "a is the fastest, but 4 others are within the expected error of up to 10%" in comparison_text(comparison_document("w", rows))


def test_machines_that_a_folded_table_leaves_out_are_counted_too() -> None:
    """The page, which has all rows, says the same."""
    rows = [machine(f"m{number:03}", 100.0 + number / 90, None) for number in range(100)]
    for row in rows:
        row.document["expected_error"] = {"median": 0.08, "p90": 0.2}  # type: ignore[index]
    document = comparison_document("w", rows)
    note = "m000, m001, m002 and 2 more are equally fast; 95 others are within the expected error of 8%: m005, m006, m007 and 92 more."
    assert note in comparison_text(document, MOST_ROWS).splitlines() and note in page_notes(document)


def test_cheaper_is_a_share_of_the_dearer_and_faster_of_the_quicker() -> None:
    rows = [machine("a", 100.0, 4.0), machine("b", 110.0, 4.4)]
    for row in rows:
        row.document["expected_error"] = {"median": 0.2, "p90": 0.3}  # type: ignore[index]
    text = comparison_text(comparison_document("w", rows))
    assert "a is only 10.0% faster than b;" in text and "a is only 9.1% cheaper than b;" in text


def texts(svg: bytes) -> set[str]:
    return {"".join(element.itertext()) for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}


def test_the_picture_names_axes_and_machines() -> None:
    said = texts(comparison_plot(comparison_document("w", (*PRICED, UNPRICED))).svg)
    assert {"a", "b", "c", "seconds per epoch", "USD per epoch"} <= said and "d" not in said
    comparison = comparison_document("w", [machine("a", 10, 4.0, job("epochs", 3.0, 7200.0, 8.0))])
    assert {"hours, whole job", "USD, whole job"} <= texts(comparison_plot(comparison).svg)


def test_error_bars_in_pictures_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the axis along which they are; without an expected error there are none to explain."""
    bars = "error bars: 90% of similar predictions were within them"
    sure = machine("a", 10.0, 4.0)
    assert sure.document is not None
    unsure = replace(sure, document={**sure.document, "expected_error": {"median": 0.08, "p90": 0.2}})
    assert f"seconds per epoch; {bars}" in texts(comparison_plot(comparison_document("w", [unsure])).svg)
    assert not any(bars in text for text in texts(comparison_plot(comparison_document("w", [sure])).svg))
    assert main(["whatif", "p3.2xlarge", "alexnet", "-o", str(tmp_path)]) == 0
    capsys.readouterr()
    assert f"milliseconds per step; {bars}" in texts((tmp_path / "whatif.svg").read_bytes())


def test_without_a_price_the_picture_says_so() -> None:
    assert "None of these machines has a price." in texts(comparison_plot(comparison_document("w", [UNPRICED])).svg)


def test_an_extrapolated_error_is_marked() -> None:
    """The mark stands on the error that no measured run is like, and on no other."""
    error = {"median": 0.04, "p90": 0.12, "extrapolates": False}
    assert [_error(each) for each in (error, {**error, "extrapolates": True}, None)] == ["4-12%", "4-12%^", "?"]


def test_an_epoch_of_tokens_says_how_many() -> None:
    """Oracle: seconds of the epoch by tokens a second."""
    row = machine("a", 10.0, 4.0)
    assert "an epoch is" not in comparison_text(comparison_document("w", [row]))
    assert row.document is not None
    row = ComparedMachine(row.hardware, row.nodes, {**row.document, "tokens_per_s": 2e9 / row.document["epoch_time_s"]})
    assert "\nan epoch is 2 billion tokens (--tokens N for another budget)" in comparison_text(comparison_document("w", [row]))


def test_a_long_table_is_folded_to_what_matters_and_says_so() -> None:
    """The front, the best of each provider, the two fastest and the two cheapest stay; the first others fill up to `MOST_ROWS` rows."""
    many = [machine(f"m{number:03}", 100.0 + number, 50.0 + number, provider="one") for number in range(100)]
    late = machine("late", 900.0, 90.0, provider="two")
    rows = [*many, late, CHEAPEST]
    document = comparison_document("w", rows)
    shown = [row["hardware"] for row in rows_that_matter(document["rows"], MOST_ROWS)]
    assert len(shown) == MOST_ROWS and {"late", "b", "m000", "m001"} <= set(shown)
    assert shown == [row["hardware"] for row in document["rows"] if row["hardware"] in shown]
    text = comparison_text(document, MOST_ROWS)
    assert f"\n{len(rows) - MOST_ROWS} more machines: --all shows them\n" in text and "w: 102 machines" in text
    assert "more machines" not in comparison_text(document) and "m099" in comparison_text(document)
    assert comparison_text(document, len(rows)) == comparison_text(document)
    sizes = [replace(row, nodes=count, document={**(row.document or {}), "nodes": count}) for row in many for count in (1, 2)]
    text = comparison_text(comparison_document("w", sizes), MOST_ROWS)
    assert "w: 100 machines, 200 choices of machine and nodes\n" in text and f"\n{200 - MOST_ROWS} more rows: --all shows them\n" in text


def test_prices_are_listed_of_the_machines_in_the_table_only() -> None:
    rows = [machine(f"m{number:03}", 100.0 + number, 50.0 + number, provider="one") for number in range(40)]
    document = comparison_document("w", rows)
    document["prices"] = [
        {"hardware": row.hardware, "market": "on_demand", "region": "", "date": "", "source": f"source of {row.hardware}"} for row in rows
    ]
    text = comparison_text(document, MOST_ROWS)
    assert text.count("source of") == MOST_ROWS and comparison_text(document).count("source of") == 40


def test_machines_that_train_with_narrower_states_are_named() -> None:
    """Oracle: PRECISION_TRAITS; in bf16 a stack without layouts keeps 2 bytes of each state, layouts keep 4. Autocast keeps 4 in both."""
    plain = {"hardware": "a", "precision": "bf16", "stack": "torch-2.x-ddp"}
    planned = {"hardware": "b", "precision": "bf16", "stack": "megatron-core", "layout_gap": 0.0}
    note = width_note([plain, planned, plain | {"hardware": "c"}])
    assert note.startswith(
        "bf16 differs between machines: on a, c, whose GPUs hold the whole model, weights and optimizer states have 16 bits"
    )
    assert "the layouts of the others keep 32-bit states (megatron-core)" in note
    assert width_note([plain]) == width_note([planned]) == ""
    assert width_note([plain, planned | {"stack": "torch-2.x-ddp"}]) == ""  # the same training, only with smaller micro-batches
    assert width_note([{**each, "precision": "amp_bf16"} for each in (plain, planned)]) == ""


def test_machines_that_cannot_run_it_for_one_reason_share_a_line() -> None:
    """On one node as on several; the command in the reason names each."""

    def failed(name: str, nodes: int) -> dict[str, Any]:
        return {"hardware": name, "nodes": nodes, "problem": f"m does not fit: 'python -m sim plan {name} m' says what would"}

    assert failure_lines([failed("a", 1), failed("b", 1)]) == ["a, b: m does not fit: 'python -m sim plan HW m' says what would"]
    assert failure_lines([failed("a", 2), failed("b", 2)]) == [
        "a, b, 2 nodes each: m does not fit: 'python -m sim plan HW m' says what would"
    ]
    assert failure_lines([failed("a", 2)]) == ["a, 2 nodes: m does not fit: 'python -m sim plan a m' says what would"]
