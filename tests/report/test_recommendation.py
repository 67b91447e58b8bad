"""Does a recommendation say what was found? Oracles: two candidates by hand."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from sim.analysis.whole_job import JobPlan, WholeJob
from sim.report.page.recommendation import recommendation_page
from sim.report.recommendation import SHOWN, notes_by_machine, recommendation_document, recommendation_plot, recommendation_text
from sim.study.recommend import Budget, Candidate, Recommendation

DOCUMENT = {
    "hardware": "p3.2xlarge", "workload": "w", "nodes": 2, "gpus": 2, "step_time_s": 0.1, "expected_error": None,
    "assumptions": ["all of it"], "warnings": [], "seed": 0, "inputs_sha256": {"hardware": "f00"},
}  # fmt: skip
BEST = Candidate(
    "p3.2xlarge", 2, "spot", DOCUMENT, 3.0, WholeJob(60.0, 1000.0, 2000.0, 0.0, 5.0, 35.0),
    7.5, 600.0,
)  # fmt: skip
OTHER = replace(BEST, hardware="g4dn.xlarge", nodes=1, market="on_demand", job=BEST.job._replace(later_epochs=9000.0), cost=4.0)


def recommended(best: Candidate | None, ranked: tuple[Candidate, ...], budget: Budget | None = None) -> Recommendation:
    near = None if best else next(iter(ranked), None)
    given = budget or Budget(time=3600.0)
    return Recommendation(JobPlan(3.0), given, best, None, near, ranked, {"dgx-2": "dgx-2: no price is known (spot)"}, ["how sure it is"])


def test_the_document_has_every_candidate_whole() -> None:
    document = recommendation_document("w", recommended(BEST, (BEST, OTHER)))
    assert [row["hardware"] for row in document["candidates"]] == ["p3.2xlarge", "g4dn.xlarge"]
    assert document["best"] == document["candidates"][0]
    assert sum(document["best"]["parts_s"].values()) == document["best"]["total_time_s"] == 3100.0
    assert [row["within_budget"] for row in document["candidates"]] == [True, False]


def test_the_answer_comes_first() -> None:
    text = recommendation_text(recommendation_document("w", recommended(BEST, (BEST, OTHER))))
    assert text.startswith("Rent 2 x p3.2xlarge (spot): 3 epochs of w in 51.7 min and $7.50.")
    assert "how sure it is" in text and text.count("\n*") == 2 and "\n* within the budget" in text


def test_an_epoch_of_tokens_says_how_many_it_has() -> None:
    """By hand: 1,000 tokens/s for 2,000 s are 2 million. A budget of tokens needs no such note."""
    decoder = replace(BEST, document={**BEST.document, "tokens_per_s": 1000.0, "epoch_time_s": 2000.0})
    note = "an epoch is 2 million tokens (--tokens N for another budget)"
    answer = recommended(decoder, (decoder,))
    assert note in recommendation_document("w", answer)["notes"]
    assert note not in recommendation_document("w", replace(answer, plan=JobPlan(3.0, tokens=6e6)))["notes"]
    assert note not in recommendation_document("w", recommended(BEST, (BEST,)))["notes"]


def test_notes_that_are_true_of_several_machines_are_told_once() -> None:
    document = recommendation_document("w", recommended(BEST, (BEST, OTHER)))
    document["notes"] = ["p3.2xlarge: not on 3 nodes", "g4dn.xlarge: not on 3 nodes", "tried with 1 node"]
    assert notes_by_machine(document) == ["tried with 1 node", "p3.2xlarge, g4dn.xlarge: not on 3 nodes"]
    assert "p3.2xlarge, g4dn.xlarge: not on 3 nodes" in recommendation_page(document)


def test_a_missed_budget_tells_by_how_much() -> None:
    """By hand: 3100 s are 3.3% more than 3000; 7.5 USD are 7.5 times 1 USD."""
    for budget, words in (
        (Budget(time=3000.0), "The fastest option takes 3.3% longer than the budget: 2 x p3.2xlarge"),
        (Budget(money=1.0), "The cheapest option costs 7.5x the budget"),
    ):
        text = recommendation_text(recommendation_document("w", recommended(None, (BEST,), budget)))
        assert text.startswith("Nothing meets") and words in text and "within the budget" not in text


def test_where_nothing_runs_the_reasons_are_told() -> None:
    text = recommendation_text(recommendation_document("w", recommended(None, ())))
    assert text.startswith("No rentable machine") and "dgx-2: no price is known (spot)" in text
    named = recommendation_text(recommendation_document("w", recommended(None, ()), ["dgx-2"]))
    assert named.startswith("None of these machines can be rented to run w.")


def test_a_long_table_is_cut_and_says_so() -> None:
    many = tuple(replace(OTHER, nodes=1 + place) for place in range(SHOWN + 3))
    text = recommendation_text(recommendation_document("w", recommended(BEST, many)))
    assert text.count("g4dn.xlarge") == SHOWN and "and 3 more" in text


def test_the_picture_names_the_best_and_the_budget() -> None:
    for best, budget in ((BEST, Budget(time=3600.0)), (None, Budget(money=1.0))):
        svg = ElementTree.fromstring(recommendation_plot(recommendation_document("w", recommended(best, (BEST, OTHER), budget))).svg)
        texts = {"".join(element.itertext()) for element in svg.iter("{http://www.w3.org/2000/svg}text")}
        assert {"w", "minutes, whole job", "USD, whole job", "budget", "2 x p3.2xlarge (spot)"} <= texts
    assert recommendation_plot(recommendation_document("w", recommended(None, ()))).png.startswith(b"\x89PNG")


def test_the_picture_names_all_of_the_front_and_how_sure_each_point_is() -> None:
    """The last candidate is the fastest: on the front, and behind as many as the table shows. Each point has bars across and up."""
    sure = {**DOCUMENT, "expected_error": {"median": 0.1, "p90": 0.3}}
    slower = [replace(BEST, nodes=1 + n, document=sure, job=BEST.job._replace(later_epochs=3000.0 + n), cost=8.0 + n) for n in range(SHOWN)]
    fastest = replace(OTHER, document=sure, nodes=99, job=BEST.job._replace(later_epochs=100.0), cost=80.0)
    ranked = (replace(BEST, document=sure), *slower, fastest)
    svg = ElementTree.fromstring(recommendation_plot(recommendation_document("w", recommended(BEST, ranked))).svg)
    texts = {"".join(element.itertext()) for element in svg.iter("{http://www.w3.org/2000/svg}text")}
    assert {"99 x g4dn.xlarge (on-demand)", "nothing is both faster and cheaper", "to rent"} <= texts
    bars = [each for each in svg.iter("{http://www.w3.org/2000/svg}g") if each.get("id", "").startswith("LineCollection")]
    assert len(bars) == 2 * len(ranked)


def test_accumulated_micro_batches_are_named() -> None:
    """A batch that does not fit is divided; the answer says how."""
    for batch, samples in ((2, "2 samples"), (1, "1 sample")):
        divided = replace(BEST, document={**DOCUMENT, "batch_per_gpu": batch, "micro_batches": 16})
        text = recommendation_text(recommendation_document("w", recommended(divided, (divided, OTHER))))
        assert f"  in 16 micro-batches of {samples} per GPU in a step\n" in text
    assert "micro-batches" not in recommendation_text(recommendation_document("w", recommended(BEST, (BEST, OTHER))))
