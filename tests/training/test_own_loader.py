"""Does a loader of the user's own feed ranks as the built-in ones do? Oracle: torch's and DALI's said again, to the last digit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

import stallsim
from sim.cluster.clock import SimProcess
from sim.spec import extensions
from sim.spec.input import Input
from sim.spec.yaml import SpecError
from sim.training.input_pipeline import PIN_BANDWIDTH, DaliPipeline, InputPipeline, LoaderSite, Queue, Synthetic
from stallsim.protocols import Loader

DISK = {"node.storage.volume.bandwidth": "200 MB/s"}


class Dealt(Queue):
    """torch's DataLoader: batches dealt by turns, pinned one after another."""

    def __init__(self, site: LoaderSite, options: Input) -> None:
        super().__init__(site, options.num_workers * options.prefetch_factor)
        self.workers, self.started = options.num_workers, 0
        for worker in range(options.num_workers):
            spread = site.cost.prep + site.cost.read / site.cost.read_cap
            self.env.process(self.work(worker, spread * worker / options.num_workers))

    def work(self, worker: int, start: float) -> SimProcess:
        yield self.env.timeout(start)
        self.started += 1
        for batch in count(worker, self.workers):
            yield from self.room(batch)
            yield from self.site.build(f"worker {worker}", batch)
            self.built(batch, self.to_second_stage)

    def finish(self, batch: int) -> SimProcess:
        start = self.env.now
        yield self.site.network.start("pin", self.site.cost.copy, self.site.pin, cap=PIN_BANDWIDTH).done
        self.site.log.add_work(self.site.rank, "pin", "pin", sim_prep(), start, "pin thread", batch, self.site.cost.copy)

    def state(self) -> tuple[object, ...]:
        return (*super().state(), self.env.now if self.started < self.workers else None)


def sim_prep() -> Any:
    from sim.events import Cause

    return Cause.PREP


class Own:
    """A loader with given results."""

    name = "mine"

    def __init__(self, make: Any) -> None:
        self.make = make

    def made(self, site: LoaderSite, options: Input) -> InputPipeline:
        return self.make(site, options)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    extensions._given[extensions.LOADERS.group].clear()


def figures(machine: str, workload: str, overrides: dict[str, object], loader: Loader | None = None) -> dict[str, Any]:
    """The document of a run, but for what names the loader."""
    document = stallsim.run(machine, workload, overrides=overrides, loader=loader, nodes=2).document
    inputs = {key: value for key, value in document["inputs"]["workload"].items() if "own_loader" not in key}
    named = ("warnings", "inputs_sha256", "inputs")
    return {key: value for key, value in document.items() if key not in named} | {"inputs": {**document["inputs"], "workload": inputs}}


@pytest.mark.parametrize(
    ("make", "overrides"),
    [
        (Dealt, {}),
        (Dealt, DISK | {"input.num_workers": 3}),
        (lambda site, options: DaliPipeline(site, options.num_threads), {"input.loader": "dali_gpu"}),
        (lambda site, options: DaliPipeline(site, options.num_threads), DISK | {"input.loader": "dali_cpu"}),
        (lambda site, options: Synthetic(site), {"input.loader": "synthetic"}),
    ],
)
def test_a_loader_said_again_gives_every_figure_again(make: Any, overrides: dict[str, object]) -> None:
    assert figures("p3.8xlarge", "resnet18", overrides, Own(make)) == figures("p3.8xlarge", "resnet18", overrides)


class Ahead(Dealt):
    """As torch, but with one batch ahead."""

    def __init__(self, site: LoaderSite, options: Input) -> None:
        super().__init__(site, options)
        self.ahead = 1


def test_what_is_ahead_matters_and_results_say_that_it_is_not_validated() -> None:
    slow = DISK | {"input.num_workers": 4}
    own = stallsim.run("p3.8xlarge", "resnet18", overrides=slow, loader=Own(Ahead))
    assert own.step_time > 1.2 * stallsim.run("p3.8xlarge", "resnet18", overrides=slow).step_time
    assert (
        "loader mine is user-defined and not validated; the expected error shown is that of the built-in loaders"
        in own.document["warnings"]
    )


class Empty(Queue):
    """A loader that never has a batch."""

    def __init__(self, site: LoaderSite, options: Input) -> None:
        super().__init__(site, 1)


class Broken(Empty):
    def next_batch(self, rank: int) -> SimProcess:
        yield self.env.timeout(0.001)
        raise KeyError("batch")


class Late(Empty):
    """What fails is a process of its own."""

    def __init__(self, site: LoaderSite, options: Input) -> None:
        super().__init__(site, options)
        self.env.process(self.work())

    def work(self) -> SimProcess:
        yield self.env.timeout(0.5)
        raise ValueError("the shard is empty; write a larger one")


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (Own(Empty), "loader mine: RuntimeError: no more events, but the end was not reached"),
        (Own(Broken), "loader mine: KeyError: 'batch'"),
        (Own(Late), "loader mine: the shard is empty; write a larger one"),
        (
            Own(lambda site, options: site),
            "loader mine: does not return an InputPipeline: it lacks site and next_batch and copy_to_gpu and state",
        ),
        (Own(lambda site: site), "loader mine: TypeError: "),
        (4, "the loader 4: does not follow Loader: it lacks name and made; see docs/develop/own-loader.md for an example"),
        ("lost", "loader=lost: found 'lost'; none is installed; register one of your own (docs/develop/"),
    ],
)
def test_what_goes_wrong_is_told_in_a_sentence(loader: object, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        stallsim.run("p3.8xlarge", "resnet18", loader=loader)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_layouts_refuse_it_since_they_load_nothing() -> None:
    extensions.register(extensions.LOADERS, Own(Dealt))
    with pytest.raises(SpecError, match=r"^input\.own_loader: layouts do not support mine, only torch's loader; leave it out$"):
        stallsim.run("hgx-h100", "llama-3.2-1b", parallel={"tp": 2}, overrides={"input.own_loader": "mine"})
