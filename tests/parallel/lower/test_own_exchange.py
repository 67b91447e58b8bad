"""Do gradients travel as an exchange of the user's own says? Oracle: DDP, apex and Horovod said again, to the last digit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import stallsim
from sim.parallel.lower.fusion import fused_buckets
from sim.spec import extensions
from sim.spec.library import load_workload
from sim.spec.yaml import SpecError
from stallsim.protocols import ExchangeStrategy


class Own:
    """An exchange with given buckets."""

    name = "mine"

    def __init__(self, made: Any) -> None:
        self.made = made

    def buckets(self, sizes: Sequence[float], ready: Sequence[float], ranks: int) -> Any:
        return self.made(sizes, ready, ranks)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    extensions._given[extensions.EXCHANGES.group].clear()


def ddp(sizes: Sequence[float], ready: Sequence[float], ranks: int) -> Any:
    """Buckets close at 1 MiB, then at 25 MiB."""
    messages: list[tuple[list[int], float]] = [([], 0.0)]
    filled = 0.0
    for number, size in enumerate(sizes):
        messages[-1][0].append(number)
        filled += size
        if filled >= (2**20 if len(messages) == 1 else 25 * 2**20) and number < len(sizes) - 1:
            messages.append(([], 0.0))
            filled = 0.0
    return messages


def horovod(sizes: Sequence[float], ready: Sequence[float], ranks: int) -> Any:
    fusion = load_workload("resnet50", ["training.stack=horovod-0.21"]).spec.training.stack.exchange.fusion
    assert fusion is not None and list(ready) == sorted(ready) and ranks == 16
    return [(bucket.tensors, bucket.delay) for bucket in fused_buckets(ready, sizes, fusion, ranks)]


def figures(stack: str, exchange: ExchangeStrategy | None = None) -> dict[str, Any]:
    """The document of a run, without the fields that name the exchange."""
    document = stallsim.run("p3.16xlarge", "resnet50", nodes=2, stack=stack, exchange=exchange).document
    inputs = {key: value for key, value in document["inputs"]["workload"].items() if "own_exchange" not in key}
    left = {key: value for key, value in document.items() if key not in ("warnings", "inputs_sha256", "inputs")}
    return left | {"inputs": {**document["inputs"], "workload": inputs}}


@pytest.mark.parametrize(
    ("stack", "made"),
    [
        ("torch-1.13-ddp", ddp),
        pytest.param(
            "apex-per-tensor",
            lambda sizes, ready, ranks: [([number], 0.0) for number in range(len(sizes))],
            marks=pytest.mark.nightly,
        ),
        pytest.param("horovod-0.21", horovod, marks=pytest.mark.nightly),
    ],
)
def test_an_exchange_said_again_gives_every_figure_again(stack: str, made: Any) -> None:
    assert figures(stack, Own(made)) == figures(stack)


def one_message(sizes: Sequence[float], ready: Sequence[float], ranks: int) -> Any:
    return [(range(len(sizes)), 0.0)]


def test_what_travels_together_matters_and_results_say_that_it_is_not_validated() -> None:
    """One message of all gradients overlaps nothing; a delay of it is waited for whole."""
    runs = [
        stallsim.run("p3.16xlarge", "resnet50", nodes=2, exchange=exchange)
        for exchange in (None, Own(one_message), Own(lambda *given: [(numbers, 0.1) for numbers, _ in one_message(*given)]))
    ]
    overlapped, at_once, late = (run.step_time for run in runs)
    assert at_once > overlapped
    assert late == pytest.approx(at_once + 0.1, rel=1e-6)
    assert (
        "exchange mine is user-defined and not validated; the expected error shown is that of the built-in exchanges"
        in runs[1].document["warnings"]
    )


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda *given: one_message(*given)[1:], "exchange mine: gradient 0 is in no message; write each of the 161 gradients once"),
        (
            lambda *given: [*one_message(*given), ([5], 0.0)],
            "exchange mine: gradient 5 is in 2 messages; write each of the 161 gradients once",
        ),
        (lambda *given: [*one_message(*given), ([161], 0.0)], "exchange mine: a message of the gradients [161]; write numbers below 161"),
        (lambda *given: [*one_message(*given), ([], 0.0)], "exchange mine: a message of the gradients []; write numbers below 161"),
        (lambda sizes, *rest: [(range(len(sizes)), -1.0)], "exchange mine: a message waits -1.0 s; write a delay of 0 or more"),
        (lambda sizes, *rest: [(range(len(sizes)), "0")], "exchange mine: a message waits '0' s; write a delay of 0 or more"),
        (lambda sizes, *rest: [range(len(sizes))], "exchange mine: too many values to unpack (expected 2)"),
        (lambda sizes: sizes, "exchange mine: TypeError: "),
    ],
)
def test_wrong_messages_are_refused_in_a_sentence(made: Any, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        stallsim.run("p3.16xlarge", "resnet50", exchange=Own(made))
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"overrides": {"training.stack.own_exchange": "mine"}, "parallel": {"tp": 2}, "stack": None},
            "training.stack.own_exchange: mine applies only to plain data parallelism; layouts exchange gradients as their framework does",
        ),
        (
            {"exchange": 7},
            "the exchange 7: does not follow ExchangeStrategy: it lacks name and buckets; see docs/develop/own-exchange.md for an example",
        ),
        (
            {"exchange": "lost"},
            "exchange=lost: found 'lost'; write one of mine, or the name of one of your own (docs/",
        ),
        (
            {"exchange": Own(one_message), "stack": "tf-parameter-server"},
            "exchange=mine: applies only to ddp, apex, apex_per_tensor, flat or horovod, but this is strategy parameter_server_async",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as refused:
        extensions.register(extensions.EXCHANGES, Own(one_message))
        model = "gpt2-xl" if "parallel" in given else "resnet50"
        stallsim.run("p3.16xlarge", model, **given)
    assert message in str(refused.value)
