"""What holds for every test: reproducible property tests, what is missing skips, and which tests come first."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import Phase, settings

from sim.__main__ import OBJECTS
from sim.spec import library, yaml
from sim.study import pool, scenario
from tests import kept
from tests.report.page import browser

# A process for each core runs tests: threads of torch would wait for one another in a loop, for several times the work of small products.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# By default a study starts no processes here: each would import for a second while tests already keep every core busy.
if "PYTEST_XDIST_WORKER" in os.environ:
    pool.cores = lambda: 1

# Most tests load the same few files of the catalog, and most runs on the command line are those of few machines and models.
kept.watch_patches()
yaml.parse = kept.once_per_text(yaml.parse)
library._load = kept.once_per_catalog_file(library._load)
scenario.estimate_warnings = kept.once_per_description(scenario.estimate_warnings)

gc.set_threshold(5 * OBJECTS)  # most objects of a test are gone before so many are made: at OBJECTS a tenth of the time is spent on them

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
