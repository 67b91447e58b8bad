"""Does the page of parameter servers say what its JSON says? Oracles: the printed document; PHub's formulas by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.report.page.browser import browser
from tests.report.page.written import assert_page_is_the_document, document, looked_at, read, tip, verdict, written


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    command = ["collective", "cm-dare-p100", "--op", "parameter_server", "--nodes", "4", "--bytes", "1MiB..1GiB"]
    return written(tmp_path_factory.mktemp("bound"), command)


def test_figures_are_the_document_s(path: Path) -> None:
    assert_page_is_the_document(path, "collective", 50)


def test_the_verdict_is_the_largest_model_that_hides(path: Path) -> None:
    """By hand: a server on every host must carry 4 x 3 / 4 bytes of the model in 0.1 s, through ports of so many bytes/s."""
    contents = document(path, "collective")
    ports = contents["port_bytes_per_s"]["CS"]
    largest = max(row["bytes"] for row in contents["rows"] if 4 * 3 / 4 * row["bytes"] / 0.1 <= ports)
    assert f"a model of {largest // 2**20} MiB hides" in verdict(read(path)) and "CS" in verdict(read(path))


def test_marks_beyond_the_ports_are_orange(path: Path) -> None:
    contents = document(path, "collective")
    beyond = sum(not hidden for row in contents["rows"] for hidden in row["hidden"].values())
    assert sum("best" in dot.attributes["class"] for dot in read(path).all("circle")) == beyond > 0


def test_the_table_is_written_as_csv(path: Path) -> None:
    with (path.parent / "collective.csv").open() as file:
        rows = list(csv.DictReader(file))
    contents = document(path, "collective")
    assert len(rows) == 4 * len(contents["rows"])
    assert float(rows[0]["needed_bytes_per_s"]) == contents["rows"][0]["needed_bytes_per_s"][rows[0]["placement"]]


@pytest.mark.parametrize("sizes", ["1MiB", "1MiB..4MiB"])
def test_servers_on_the_only_worker_need_no_network(sizes: str, tmp_path: Path) -> None:
    """They had no place on a logarithmic axis, which divided by zero."""
    page_path = written(tmp_path, ["collective", "p3.8xlarge", "--op", "parameter_server", "--bytes", sizes])
    rows = document(page_path, "collective")["rows"]
    needed = [row["needed_bytes_per_s"][name] for row in rows for name in row["needed_bytes_per_s"]]
    assert len(read(page_path).all("circle")) == sum(each > 0 for each in needed) == len(needed) / 2


def test_where_nothing_hides_it_says_so(tmp_path: Path) -> None:
    page_path = written(tmp_path, ["collective", "cm-dare-p100", "--op", "parameter_server", "--nodes", "4", "--bytes", "1GiB"])
    assert verdict(read(page_path)).startswith("No placement hides")


@pytest.mark.skipif(browser() is None, reason="no Chromium or Chrome on this machine")
def test_it_works_in_a_browser(path: Path) -> None:
    with looked_at(path) as tab:
        assert "needed" in tip(tab, "circle")
