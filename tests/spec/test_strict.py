"""Is a file that is not YAML read within limits, whatever it is? Oracle: a sentence with its name, in less than a second."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from calibration.blind import table as blind_table
from calibration.cli import main as calibration
from calibration.llm import table as llm_table
from calibration.run_records import read_records
from sim.cli import main
from sim.spec.catalog import locate
from sim.spec.foreign.chakra_files import read_groups, read_trace
from sim.spec.foreign.topo_import import read_topology
from sim.spec.price_files import skypilot_offers
from sim.spec.strict import csv_lines, csv_rows, parse_json, parse_toml, read_bytes
from sim.spec.yaml import SpecError, read

READERS: list[Callable[[Path], object]] = [
    read_bytes, csv_lines, read, read_topology, read_records, skypilot_offers, llm_table.read_table, blind_table.read_table,
    lambda path: read_groups(path, 2), lambda path: read_trace(str(path)),
]  # fmt: skip


@pytest.mark.parametrize("text", [r'"\ud800"', r'{"\uDBFFa": 1}', r'[1, {"a": ["\udfff\ud83d"]}]', r'"\\\ud83d\\ude00"'])
def test_half_of_a_character_is_no_text(text: str) -> None:
    """Nothing could print it, nor write it to a page. Oracle: the codec."""
    with pytest.raises(UnicodeEncodeError):
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    with pytest.raises(SpecError, match=r"run\.json: a text holds '\\ud.*', which is half of a character"):
        parse_json(text, "run.json")
    assert parse_json(r'["\ud83d\uDE00", "\\ud83d", "\u00e9"]', "run.json") == ["\U0001f600", r"\ud83d", "\xe9"]


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_is_not_waited_for(tmp_path: Path, reader: Callable[[Path], object]) -> None:
    pipe = tmp_path / "runs.0.et"
    os.mkfifo(pipe)
    with pytest.raises(SpecError, match=r"runs\.0\.et: (is not a regular file; write its content to a file first|no such trace)"):
        reader(pipe)
    assert not llm_table.is_llm_table(pipe)


def test_commands_do_not_wait_for_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = str(tmp_path / "pipe.json")
    os.mkfifo(pipe)
    for program, words in (
        (main, ["diff", pipe, pipe]),
        (calibration, ["fit", pipe]),
        (calibration, ["validate", pipe]),
        (main, ["new", "hardware", "--from-topo", pipe, "-o", "a.yaml"]),
    ):
        assert program(words) == 2, words
        assert "is not a regular file" in capsys.readouterr().err
    with pytest.raises(SpecError):
        locate(pipe, "hardware")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = " + "[" * 50_000 + "]" * 50_000, "is nested more than 40 levels deep"),
        ("a = " + "[" * 50 + "]" * 50, "is nested more than 40 levels deep"),
        ("a = 1\na = 2", "is not TOML: "), ("a = nan", "is not TOML: nan is not a number"),
        ("a = 1e999", "is not TOML: the number '1e999' is too large"), (f"a = {'9' * 5000}", "is not TOML: Exceeds the limit"),
        ("a = [" + "1," * 5_000_000 + "]", "holds more than 4,000,000 values"),
    ],
    ids=range(7),
)  # fmt: skip
def test_toml_is_read_as_strictly(text: str, says: str) -> None:
    with pytest.raises(SpecError, match=rf"^f\.toml: {says}"):
        parse_toml(text, "f.toml")
    assert parse_toml("a = 1\n[b]\nc = [1.5]", "f") == {"a": 1, "b": {"c": [1.5]}}


def test_toml_has_integers_of_64_bits() -> None:
    """Oracle: the specification, toml.io/en/v1.0.0#integer."""
    assert parse_toml(f"a = [{2**63 - 1}, -{2**63}]", "f") == {"a": [2**63 - 1, -(2**63)]}
    for number, line in ((2**63, 3), (-(2**63) - 1, 3), (10**79, 3)):
        with pytest.raises(SpecError, match=rf"^f\.toml:{line}: -?\d[\d.]* is too large for a whole number$"):
            parse_toml(f"a = 1\n[b]\nc = [{{d = {number}}}]", "f.toml")
    with pytest.raises(SpecError, match=r"^f\.toml:1: 1"):
        parse_toml("a = 1_000_000_000_000_000_000_000", "f.toml")
    with pytest.raises(SpecError, match=r"^f\.toml: 1180591620717411303424 is too"):
        parse_toml(f"a = {hex(2**70)}", "f.toml")


def test_a_cell_that_is_too_long_is_told_in_our_words() -> None:
    with pytest.raises(SpecError, match=r"^f:2: is not CSV: a cell has more than 131,072 characters$"):
        list(csv_rows([(1, "a"), (2, f'"{"b" * 200_000}"')], "f"))


@pytest.mark.parametrize("cell", ["nan", "-1", "0", "x"])
def test_a_figure_of_a_blind_table_is_a_number(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "predicted.csv"
    path.write_text(",".join(blind_table.COLUMNS) + f"\nstep,a,fp16,1,s,{cell},,,,\n")
    with pytest.raises(SpecError, match=rf"predicted\.csv:2: predicted: '{cell}' is not a number above 0"):
        blind_table.read_table(path)
