"""Is the license of every source told? Oracle: the sources that the records and the price blocks name."""

from __future__ import annotations

import csv
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "calibration" / "records"


def named(text: str) -> set[str]:
    """Return the repositories at the beginning of a source's *text*; all rounds of MLPerf's results are one."""
    match = re.match(r"(?:(?:issue|pull request) )?([A-Za-z][\w-]+/[\w.-]*\w)", text)
    return {match[1].partition("_v")[0] if "training_results" in match[1] else match[1]} if match else set()


def test_every_source_of_a_record_is_listed_with_its_license() -> None:
    listed = (RECORDS / "SOURCES.md").read_text(encoding="utf-8")
    sources: dict[str, str] = {}
    for path in [*RECORDS.glob("*.csv"), *RECORDS.glob("llm/*.csv"), *RECORDS.glob("longrun/*.csv")]:
        with path.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(line for line in lines if not line.startswith("#")):
                sources |= dict.fromkeys(named(row.get("source") or ""), path.name)
    own = {source for source in sources if source.startswith(("blind/", "calibration/"))}
    assert len(sources) > 40
    assert not {source: file for source, file in sources.items() if source not in own and source not in listed}


def test_every_source_of_a_price_is_listed_with_its_license() -> None:
    listed = (ROOT / "hardware" / "SOURCES.md").read_text(encoding="utf-8")
    sources: dict[str, str] = {}
    for path in (ROOT / "hardware").glob("*.yaml"):
        block = re.search(r"^price:\n(?:[ ]+.*\n?)+", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for text in re.findall(r'"([^"]*)"', block[0] if block else ""):
            for part in text.split("; "):
                sources |= dict.fromkeys(named(part), path.name)
    assert len(sources) > 8
    assert not {source: file for source, file in sources.items() if source not in listed}


def test_every_file_of_records_is_listed() -> None:
    listed = (RECORDS / "SOURCES.md").read_text(encoding="utf-8")
    files = [path.relative_to(RECORDS).as_posix() for path in RECORDS.rglob("*.csv")]
    own = ("blind/", "lab", "machines/", "collective_errors.csv")
    assert not [file for file in files if file not in listed and not file.startswith(own)]
