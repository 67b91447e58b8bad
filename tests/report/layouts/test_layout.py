"""Slots of a pipeline are stated where the closed form m + p - 1 (arXiv 2104.04473, 2.2) holds, and only there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sim.events import Cause
from sim.report.layouts.layout import layout_document, layout_text, verdict
from sim.study.layout import layout_answer
from sim.study.scenario import Scenario


def run(schedule: str, busy: list[float], micro_batches: int = 8, chunks: int = 1) -> Any:
    """Return a step of 10 s, in which stages compute for *busy* seconds and wait for each other the rest."""
    stages = [SimpleNamespace(stalls={Cause.COMPUTE: time}, resources={(Cause.PIPELINE, "stages"): 10.0 - time}) for time in busy]
    return SimpleNamespace(
        step_time=10.0, stalls={Cause.COMPUTE: sum(busy) / len(busy)}, played=SimpleNamespace(stages=stages),
        mesh=SimpleNamespace(stages=len(busy), parallel=SimpleNamespace(chunks=chunks)),
        layout=SimpleNamespace(micro_batches=micro_batches, schedule=schedule),
    )  # fmt: skip


@pytest.mark.parametrize(("schedule", "chunks", "slots"), [("gpipe", 1, 11), ("1f1b", 1, 11), ("interleaved_1f1b", 2, 19)])
def test_equal_stages_fill_slots(schedule: str, chunks: int, slots: int) -> None:
    text = verdict(run(schedule, [7.3] * 4, chunks=chunks))
    assert f"takes 27% (3 of {slots} slots with 4 stages and 8 micro-batches)" in text
    assert ("virtual stages" in text) == (schedule != "gpipe")


def test_one_micro_batch_is_no_plural() -> None:
    assert "(3 of 4 slots with 4 stages and 1 micro-batch);" in verdict(run("1f1b", [2.5] * 4, micro_batches=1))


@pytest.mark.parametrize("schedule", ["zb_h1", "zbv", "dualpipev", "mine"])
def test_other_schedules_have_a_share_and_no_slots(schedule: str) -> None:
    text = verdict(run(schedule, [9.0] * 4))
    assert "takes 10% with 4 stages and 8 micro-batches" in text and "slots" not in text and "virtual" not in text


def test_unequal_stages_name_the_longest() -> None:
    text = verdict(run("1f1b", [5.0, 5.0, 9.0, 5.0]))
    assert "takes 40%; stages are unequal: stage 2 computes 50% longer than the mean stage" in text and "slots" not in text


def test_a_wait_for_samples_says_what_is_copied() -> None:
    waiting = run("1f1b", [9.0])
    waiting.played.stages[0].resources = {(Cause.COPY, "host to device"): 1.0}
    assert verdict(waiting).endswith("the longest wait is 10%, for the copy of samples to the GPU.")


def document(precision: str = "bf16", **sizes: int) -> dict[str, Any]:
    """Return the document of a small decoder of odd *sizes* on two nodes, sharded."""
    overrides = tuple(f"model.transformer.{name}={size}" for name, size in sizes.items())
    layout = (("--shard", "parallel.shard", "parameters"),)
    answer = layout_answer(Scenario("hgx-h100", "llama-3.2-1b", overrides, nodes=2, layout=layout, precision=precision))
    return {**layout_document(answer), "text": layout_text(answer.run, layout_document(answer))}


def test_reads_through_the_nics_are_said_not_to_slow_messages() -> None:
    """Only if samples come that way, and if there are messages between nodes."""
    sentence = "samples that arrive through the NICs do not slow messages between nodes"
    over = ("node.storage.volume.over_network=true",)
    for overrides, nodes in ((over, 2), (over, 1), ((), 2), ((*over, "input.loader=synthetic"), 2)):
        scenario = Scenario("hgx-h100", "llama-3.2-1b", overrides, nodes=nodes, layout=(("--shard", "parallel.shard", "parameters"),))
        assert (sentence in layout_document(layout_answer(scenario))["assumptions"]) == ((overrides, nodes) == (over, 2))


def test_an_epoch_of_a_stream_says_its_tokens() -> None:
    """Oracle: the data set of tokens has 100 billion."""
    assert "CO2 per epoch of 100 billion tokens (" in document()["text"]


def test_the_tokens_of_a_sample_and_whole_cents_are_shown() -> None:
    """By hand: the sequence of the catalog; 0.1999 USD are $0.20, with both digits."""
    answer = layout_answer(Scenario("hgx-h100", "llama-3.2-1b", layout=(("--shard", "parallel.shard", "parameters"),)))
    document = layout_document(answer)
    assert ", global batch 8, 8,192 tokens per sample\n" in layout_text(answer.run, document)
    assert "cost: $0.20 per million tokens" in layout_text(answer.run, document | {"cost_per_token_usd": 0.1999e-6})


def test_widths_that_tensor_cores_do_not_want_are_told() -> None:
    """Oracle: multiples of 8 elements of 16 bits (NVIDIA, Matrix Multiplication Background, 'Requirements to use Tensor Cores')."""

    def width_notes(**given: Any) -> list[str]:
        return [line for line in document(**given)["assumptions"] if "multiple" in line]

    assert not width_notes()
    assert width_notes(vocab=50257) == [
        "vocab 50,257 is not a multiple of 8: products are timed as if padded; without padding they take longer (pad the model)"
    ]
    assert width_notes(vocab=50257, ffn=8191)[0].startswith("ffn 8,191 and vocab 50,257 are not multiples of 8: ")
    assert not width_notes(vocab=50257, precision="fp32")


@pytest.mark.parametrize(
    ("checkpointing", "words"),
    [
        ("model", "no activations recomputed"), ("none", "no activations recomputed"), ("selective", "attention recomputed"),
        ("blocks", "activations of all blocks recomputed"),
        ("blocks;training.recompute_saves=[attention.qkv]", "activations of all blocks recomputed, outputs of attention.qkv saved"),
    ],
)  # fmt: skip
def test_what_is_recomputed_is_said_in_words(checkpointing: str, words: str) -> None:
    layout = (("--shard", "parallel.shard", "parameters"),)
    overrides = tuple(f"training.activation_checkpointing={checkpointing}".split(";"))
    described = layout_document(layout_answer(Scenario("hgx-h100", "llama-3.2-1b", overrides, nodes=1, layout=layout)))
    assert described["assumptions"][0] == f"software stack torchtitan-2.x, bf16, {words}"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ((), "half of causal attention"),
        (("window=512",), "causal attention inside windows of 512 tokens"),
        (("window=512", "global_every=2"), "half of causal attention, in windows of 512 tokens where layers have them,"),
        (("window=512", "chunked=true"), "causal attention inside chunks of 512 tokens"),
        (("window=4096",), "half of causal attention"),
        (("causal=false",), "all of attention both ways"),
        (("causal=false", "window=512"), "attention inside windows of 512 tokens on either side"),
    ],
)
def test_what_attention_the_utilization_counts_is_said(fields: tuple[str, ...], words: str) -> None:
    layout = (("--shard", "parallel.shard", "parameters"),)
    overrides = ("model.sequence=2048", *(f"model.transformer.{field}" for field in fields))
    described = layout_document(layout_answer(Scenario("hgx-h100", "llama-3.2-1b", overrides, nodes=1, layout=layout)))
    sentence = f"model FLOPS utilization counts {words} and no recomputation, relative to the dense 16-bit peak"
    assert sentence in described["assumptions"]


@pytest.mark.parametrize("schedule", ["dualpipev", "1f1b"])
def test_experts_that_nothing_hides_are_told(schedule: str) -> None:
    """DualPipeV was made to hide dispatch (github.com/deepseek-ai/DualPipe), but not every stack runs its pairs together."""
    field, nodes = "training.stack.mesh.expert_overlap", 2
    layout = (("--pp", "parallel.pipeline", 2), ("--ep", "parallel.expert", 8), ("--shard", "parallel.shard", "optimizer"))
    layout = (*layout, ("--schedule", "parallel.schedule", schedule), ("--micro-batches", "gradient_accumulation_steps", 4))

    def said(*overrides: str) -> list[str]:
        overrides = ("node.nic.bandwidth=50 Gbps", "node.topology.nvlink.link.bandwidth=5 GB/s", *overrides)
        answer = layout_answer(Scenario("hgx-h100", "deepseek-v2-lite", overrides, nodes=nodes, layout=layout, stack="torchtitan-2.x"))
        assert answer.run.exposed["expert"] > 0.05 * answer.run.step_time
        return [text for text in layout_document(answer)["assumptions"] if field in text]

    (sentence,) = said()
    assert ("runs the forward and backward of dualpipev's pairs one after the other" in sentence) == (schedule == "dualpipev")
    assert said(f"{field}=20%") == []
    assert bool(said("training.stack.mesh.paired_schedules=[dualpipev]")) == (schedule == "1f1b")
