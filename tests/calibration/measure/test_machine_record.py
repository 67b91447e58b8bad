"""Is a record kept whole, and a broken one refused? Oracles: reading back what was written; one sentence for each way of being wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibration.measure.machine_record import MachineRecord, ProbeRecord, read_record, record_text, round_numbers, write_record
from sim.spec.yaml import SpecError

RECORD = MachineRecord(
    "box",
    {"cpu": "some", "memory_bytes": 8},
    {"torch": "2"},
    "partial",
    {
        "gemm": ProbeRecord("done", "2026-01-01T00:00:00Z", rows=[{"shape": [1, 2], "times_s": [0.001, 0.002]}]),
        "disk": ProbeRecord("failed", "", "full"),
    },
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(path, RECORD)
    assert read_record(path) == RECORD
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]  # no temporary file stays


def test_numbers_keep_five_digits() -> None:
    assert round_numbers({"a": [0.123456789, 7], "b": 1234567.8}) == {"a": [0.12346, 7], "b": 1234600.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (record_text(RECORD)[:-30], ":12:78: the JSON is truncated or invalid"),
        ("[]", "is not a machine record"),
        ('{"schema": 1}', "is not a machine record"),
        (record_text(RECORD).replace('"schema": 1', '"schema": 2'), "schema 2, but this version reads schema 1"),
        (record_text(RECORD).replace('"versions"', '"version"'), "versions: is missing"),
        (
            record_text(RECORD).replace('"state": "done"', '"state": "fine"'),
            "probes.gemm.state: expected 'done', 'partial', 'skipped' or 'failed', not 'fine'",
        ),
        (record_text(RECORD).replace('"reason": ""', '"reasons": ""'), "probes.gemm.reasons: "),
        (json.dumps(json.loads(record_text(RECORD)) | {"probes": []}), "probes: expected a dictionary"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(SpecError) as refused:
        read_record(path)
    assert said in str(refused.value) and str(refused.value).startswith(str(path))


def test_an_unwritable_place_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be written"):
        write_record(tmp_path / "absent" / "record.json", RECORD)
