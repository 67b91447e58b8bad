"""Predict how a training job will run on a machine, and where its time goes.

>>> import stallsim
>>> result = stallsim.run("hgx-h100", "llama-3.1-8b", nodes=2, parallel={"shard": "parameters"})  # doctest: +SKIP
>>> result.stalls  # doctest: +SKIP

`run` returns a result with figures, DataFrames, a page and a trace; `compare`, `sweep` and `whatif` return DataFrames; `load` reads a
description, `check` lists what is wrong with files. Every function raises `SpecError` with one clear sentence for each problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sim import __version__
from sim.spec.yaml import SpecError

if TYPE_CHECKING:
    from os import PathLike

    from sim.api import Result, compare, sweep, whatif
    from sim.laid_out import LayoutResult
    from sim.spec.hardware import Hardware
    from sim.spec.workload import Workload

__all__ = ["SpecError", "__version__", "check", "compare", "load", "run", "sweep", "whatif"]

_OF_API = frozenset({"compare", "sweep", "whatif"})


def __getattr__(name: str) -> Any:
    if name in _OF_API:
        from sim import api

        return getattr(api, name)
    raise AttributeError(f"module 'stallsim' has no attribute '{name}'")


def run(
    hardware: str | PathLike[str],
    workload: str | PathLike[str],
    *,
    parallel: Mapping[str, object] | None = None,
    micro_batches: int | None = None,
    **options: Any,
) -> Result | LayoutResult:
    """Simulate *workload* on *hardware*; both are catalogue names or YAML files.

    *parallel* is a layout such as ``{"tp": 8, "pp": 4, "shard": "optimizer"}``. *options* are those of ``sim run``: ``nodes``, ``gpus``,
    ``batch``, ``global_batch``, ``precision``, ``stack``, ``overrides`` (a mapping of dotted keys).
    """
    if parallel:
        from sim.laid_out import lay_out

        return lay_out(hardware, workload, parallel, micro_batches=micro_batches, **options)
    from sim.api import simulate

    if micro_batches is not None:
        options["overrides"] = {**options.get("overrides", {}), "training.gradient_accumulation_steps": micro_batches}
    return simulate(hardware, workload, **options)


def load(name: str | PathLike[str], overrides: Sequence[str] = ()) -> Hardware | Workload:
    """Return the checked description that *name* (a catalogue name or a YAML file) stands for, with ``KEY=VALUE`` *overrides*."""
    from sim.spec.catalogue import UnknownName, locate
    from sim.spec.library import load_hardware, load_workload

    text = str(name)
    try:
        locate(text, "hardware")
    except UnknownName:
        return load_workload(text, list(overrides)).spec
    try:
        return load_hardware(text, list(overrides)).spec
    except SpecError:
        return load_workload(text, list(overrides)).spec


def check(*paths: str | PathLike[str]) -> list[str]:
    """Return what is wrong with description files, one sentence each with file and line; empty where nothing is."""
    problems = []
    for path in paths:
        try:
            load(path)
        except SpecError as error:
            problems += list(error.problems)
    return problems
