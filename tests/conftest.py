"""What holds for every test: reproducible property tests, what is missing skips, and which tests come first."""

from __future__ import annotations

import dataclasses
import gc
import os
from collections.abc import Callable, Set
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from sim.__main__ import OBJECTS
from sim.spec import elsewhere, extensions, library, yaml
from sim.spec.catalogue import roots
from sim.spec.days import TODAY
from sim.spec.hardware import Hardware
from sim.spec.identity import content
from sim.study import pool, scenario
from sim.training.job import Job
from tests.report.page import browser


def once_per_catalog_file(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return *load*, which loads a file of the catalog with the same written overrides only once on each day that a test sets."""
    catalog = tuple(f"{root}/{folder}/" for root in roots() for folder in ("hardware", "workloads"))

    @lru_cache(maxsize=2048)
    def kept(kind: type, path: Path, overrides: tuple[Any, ...], day: str | None) -> tuple[Any, Set[Path]]:
        with elsewhere.read_files() as files:
            return load(kind, path, overrides, None), files

    def loaded(kind: type, path: Path, overrides: tuple[Any, ...], folders: Any) -> Any:
        if folders is not None or not str(path).startswith(catalog) or not all(isinstance(each, str) for each in overrides):
            return load(kind, path, overrides, folders)
        description, files = kept(kind, path, overrides, os.environ.get(TODAY))
        for file in files:
            elsewhere.record_read(file)
        return description

    loaded.each_time = load  # type: ignore[attr-defined]
    return loaded


def once_per_description(warnings: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Return *warnings*, which simulates a job on hardware some forty times, once for each job and hardware with the same contents."""
    kept: dict[Any, list[str]] = {}

    def of(hardware: Hardware, job: Job, progress: Any = None) -> list[str]:
        if any(extensions._given.values()):  # objects of a test's own
            return warnings(hardware, job, progress)
        fields = {each.name: getattr(job, each.name) for each in dataclasses.fields(job)}
        key = content(hardware), content(fields)
        if key not in kept:
            kept[key] = warnings(hardware, job, progress)
        return list(kept[key])

    return of


# A process for each core runs tests: threads of torch would wait for one another in a loop, for several times the work of small products.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# By default a study starts no processes here: each would import for a second while tests already keep every core busy.
if "PYTEST_XDIST_WORKER" in os.environ:
    pool.cores = lambda: 1

# Most tests load the same few files of the catalog. They do not change meanwhile, and descriptions are frozen; errors are not kept.
yaml.parse = lru_cache(maxsize=512)(yaml.parse)
library._load = once_per_catalog_file(library._load)
# Most runs on the command line are those of few machines and models, with all that is said about their estimates.
scenario.estimate_warnings = once_per_description(scenario.estimate_warnings)

gc.set_threshold(OBJECTS)  # as seldom as the program does

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.register_profile("mutants", derandomize=True, deadline=None, max_examples=50, phases=[Phase.explicit, Phase.generate])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests marked slow before all others, so that no process ends with them alone."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for item in items:
        if item.get_closest_marker("nightly") is not None:
            item.add_marker(pytest.mark.timeout(1800))


def pytest_sessionfinish() -> None:
    """End the browser, if a test started one."""
    browser.close()


def pytest_collection_finish() -> None:
    """Take what was collected out of the search for garbage, as it stays to the end and is large."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose ``needs`` mark names a package that is not installed."""
    for mark in item.iter_markers("needs"):
        for package in mark.args:
            pytest.importorskip(package)
