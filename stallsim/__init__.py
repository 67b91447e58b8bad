"""Predict how a training job will run on a machine, and where its time goes.

>>> import stallsim
>>> result = stallsim.run("hgx-h100", "llama-3.1-8b", nodes=2, parallel={"shard": "parameters"})  # doctest: +SKIP
>>> result.stalls  # doctest: +SKIP

`run` returns a result with figures, DataFrames, a page and a trace. `compare`, `recommend`, `plan`, `whatif`, `sweep` and `goodput` return
DataFrames, with the rest of the command's JSON document in ``DataFrame.attrs``. `extract` writes the layer table of a torch model, `load`
reads a description, `check` lists what is wrong with files. Every function raises `SpecError` with one clear sentence for each problem.
Schedules, loaders, collectives, exchanges, prices and failure laws of your own are objects of the protocols in `stallsim.protocols`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, Unpack, overload

from sim import __version__
from sim.spec.yaml import SpecError
from sim.study.options import OptionTerms, PlainRunOptions, RunOptions, documents_options
from sim.units import shorten

if TYPE_CHECKING:
    from os import PathLike

    from sim.api import Result, compare, extract, goodput, plan, recommend, sweep, whatif
    from sim.layout_result import LayoutResult
    from sim.spec.hardware import Hardware
    from sim.spec.workload import Workload

__all__ = [
    "SpecError", "__version__", "check", "compare", "extract", "goodput", "load", "plan", "recommend", "run", "sweep", "whatif",
]  # fmt: skip

_OF_API = frozenset({"compare", "extract", "goodput", "plan", "recommend", "sweep", "whatif"})


def __getattr__(name: str) -> Any:
    if name in _OF_API:
        from sim import api

        return getattr(api, name)
    raise AttributeError(f"module 'stallsim' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)


class _CallOptions(TypedDict, total=False):
    micro_batches: int | None
    nodes: int | None
    gpus: int | None
    overrides: Mapping[str, object] | None
    prices: object
    collective: Annotated[object, OptionTerms("your own all-reduce: a name or an object")]


class _Laid(RunOptions, _CallOptions, total=False):
    batch: int | None


class _PlainOptions(PlainRunOptions, _CallOptions, total=False):
    batch: int | Literal["max"] | None
    thorough: Annotated[bool, OptionTerms("also find the bottleneck and the estimates that decide the result", False)]
    loader: Annotated[object, OptionTerms("your own loader: a name or an object")]
    exchange: Annotated[object, OptionTerms("your own strategy: a name or an object")]


@overload
def run(
    hardware: str | PathLike[str], workload: str | PathLike[str], *, parallel: None = None, **options: Unpack[_PlainOptions]
) -> Result: ...


@overload
def run(
    hardware: str | PathLike[str], workload: str | PathLike[str], *, parallel: Mapping[str, object], **options: Unpack[_Laid]
) -> LayoutResult: ...


@documents_options(_PlainOptions)
def run(
    hardware: str | PathLike[str],
    workload: str | PathLike[str],
    *,
    parallel: Mapping[str, object] | None = None,
    micro_batches: int | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    batch: int | Literal["max"] | None = None,
    overrides: Mapping[str, object] | None = None,
    prices: object = None,
    **options: Any,
) -> Result | LayoutResult:
    """Simulate *workload* on *hardware*; both are catalog names or YAML files.

    *parallel* is a layout such as ``{"tp": 8, "pp": 4, "shard": "optimizer"}``, in addition to the workload's own layout. *batch* is in
    samples per GPU, and *gpus* is the total number of GPUs. *overrides* are fields by dotted key, as after ``--set``. *prices* is a price
    source of your own (a name or an object).
    A stack for layouts, such as ``megatron-core``, runs as one without *parallel* too.
    With a layout, ``placement``, ``thorough``, ``loader`` and ``exchange`` are not available.
    """
    given: dict[str, Any] = {"nodes": nodes, "gpus": gpus, "batch": batch, "micro_batches": micro_batches, "prices": prices}
    laid_out = bool(parallel) or _has_layout(hardware, workload, overrides, options.get("stack"))
    allowed = (_Laid if laid_out else _PlainOptions).__annotations__
    from sim.study.argument_names import require_known

    require_known(options, ["parallel", *allowed], options)
    if laid_out:
        from sim.layout_result import simulate_layout

        return simulate_layout(hardware, workload, parallel or {}, overrides=overrides, **given, **options)
    from sim.api import simulate

    return simulate(hardware, workload, overrides=overrides, **given, **options)


def _has_layout(
    hardware: str | PathLike[str], workload: str | PathLike[str], overrides: Mapping[str, object] | None, stack: str | None
) -> bool:
    """Return whether the workload's own description, with *overrides* and *stack*, runs as a layout."""
    from sim.study.arguments import scenario_of
    from sim.study.scenario import has_layout

    return has_layout(scenario_of(hardware, workload, overrides, stack=stack))


def load(name: str | PathLike[str], overrides: Sequence[str] = ()) -> Hardware | Workload:
    """Return the checked description of *name* (a catalog name or a YAML file), with ``KEY=VALUE`` *overrides*.

    It is for reading: `run` and the other functions take *name* itself.
    """
    from sim.spec.catalog import UnknownName, locate
    from sim.spec.library import load_hardware, load_workload

    text = str(name)
    try:
        locate(text, "hardware")
    except UnknownName:
        try:
            return load_workload(text, list(overrides)).spec
        except UnknownName:
            raise SpecError(check(text)) from None
    with suppress(SpecError):
        return load_hardware(text, list(overrides)).spec
    try:
        return load_workload(text, list(overrides)).spec
    except SpecError as error:
        raise SpecError(check(text) or error.problems) from None


def check(*paths: str | PathLike[str]) -> list[str]:
    """Return the problems in description files (or catalog names), as ``sim check`` reports them; empty if there are none.

    Without *paths*, check the whole catalog.
    """
    from sim.check import validate

    for path in paths:
        if not isinstance(path, str) and not hasattr(path, "__fspath__"):
            raise SpecError(f"{shorten(path)}: expected names or paths, such as check('my-box.yaml', 'vgg16')")
    return [problem for verdict in validate([str(path) for path in paths]) for problem in verdict.problems]
