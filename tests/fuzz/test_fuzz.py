"""A small part of ``make fuzz`` in every run of the tests, and what hypothesis thinks of for the parts of a command line."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cli import main
from sim.spec.strict import csv_rows, parse_json
from sim.spec.yaml import SpecError
from sim.study.ranges import whole_numbers
from sim.study.space import axis
from tests.examples import examples
from tests.fuzz import __main__ as fuzz
from tests.fuzz.attack import attack
from tests.fuzz.commands import ODD_WORDS, OTHER_OPTIONS, command_line, commands, flag, values_of
from tests.fuzz.mutation import mutated
from tests.fuzz.readers import readers


def test_every_reader_takes_its_own_file(tmp_path: Path) -> None:
    """Without it a seed that is refused would hide every mutation behind one sentence."""
    for reader in readers().values():
        path = tmp_path / reader.file
        path.write_bytes(reader.content)
        reader.read(path)


@pytest.mark.parametrize(("count", "each"), [(400, 40), pytest.param(1_000, 1, marks=pytest.mark.nightly)])
def test_inputs_end_in_a_result_or_a_sentence(count: int, each: int) -> None:
    """Nightly a thousand command lines, of all commands."""
    findings = attack(range(1, count), each=each)
    assert not findings, "\n".join(f"{finding.kind} {finding.number}: {finding.message}\n{finding.content}" for finding in findings)


def test_every_command_and_every_option_is_typed() -> None:
    """Oracle: the parsers. A new command or option is typed by itself; one whose values nobody can guess needs some in `typed_values`."""
    due = {(name, flag(option)) for name, typed in commands().items() for option in typed.options}
    assert len(due) > 400 and len(commands()) > 30
    typed_ones, names = set(), set()
    for number in range(30_000):
        program, words = command_line(Random(number))
        line = f"{program} {' '.join(words)} "
        name = max((name for name in commands() if line.startswith(f"{name} ")), key=len)
        names.add(name)
        own = {word.partition("=")[0] for word in words}
        typed_ones |= {(name, flag(option)) for option in commands()[name].options if own & {*option.opts, *option.secondary_opts}}
    assert not names ^ set(commands())
    assert not due - typed_ones
    unknown = [pair for pair in due if not _is_flag(*pair) and pair[1] != "--set" and not values_of(*pair)]
    assert not unknown, "options without a value that is right"


def _is_flag(name: str, option: str) -> bool:
    return next(bool(each.is_flag) for each in commands()[name].options if flag(each) == option)


def test_many_command_lines_do_what_they_say(tmp_path: Path) -> None:
    """A fuzzer whose inputs are all refused by the parser would attack nothing else."""
    done: Counter[int] = Counter()
    attack(range(30), each=1, codes=done)
    assert done[0] > 6, done


@pytest.mark.nightly
def test_the_attack_goes_on_when_its_processes_are_replaced(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """More tasks than processes may do before they are replaced, which stopped it once."""
    monkeypatch.setattr(fuzz, "_PART", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(fuzz, "_TASKS", 2)
    inputs = 5
    assert fuzz.main(["--inputs", str(inputs)]) == 0
    assert capsys.readouterr().out == f"{inputs} inputs, 0 ended in neither a result nor a sentence\n"


def test_a_mutation_changes_and_repeats() -> None:
    seed = readers()["trace"].content
    made = [mutated(seed, Random(number)) for number in range(50)]
    assert made == [mutated(seed, Random(number)) for number in range(50)]
    assert sum(one != seed for one in made) > 40


FLAGS = sorted({flag(option) for typed in commands().values() for option in typed.options} | set(OTHER_OPTIONS))
WORDS = st.sampled_from(FLAGS) | st.sampled_from(ODD_WORDS) | st.text(max_size=6)


@examples(15, 40, st.sampled_from([name.split()[1] for name in commands() if name.startswith("sim ")]), st.lists(WORDS, max_size=3))
def test_any_words_after_a_command(command: str, words: list[str]) -> None:
    stderr = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(stderr):
        code = main([command, "--help", *words])
    assert code in (0, 2) and "internal error" not in stderr.getvalue()


@given(
    st.text(max_size=30) | st.from_regex(r"[a-z.]{0,6}=?[0-9]{0,12}(\.\.[0-9]{0,12})?(:(log)?[0-9]{0,12})? ?[A-Za-z]{0,4}", fullmatch=True)
)
def test_any_range(text: str) -> None:
    for read in (lambda given: axis(given).values, lambda given: whole_numbers(given, "--nodes")):
        with contextlib.suppress(SpecError):
            assert len(read(text)) <= 100_000


@given(st.text(max_size=60) | st.recursive(st.none() | st.floats() | st.integers() | st.text(max_size=4), st.lists).map(json.dumps))
def test_strict_json_agrees_with_json(text: str) -> None:
    """Oracle: Python's json, where it accepts; what is not finite or not JSON is a sentence."""
    try:
        parsed = parse_json(text, "f")
    except SpecError as error:
        assert str(error).startswith("f")
    else:
        assert parsed == json.loads(text)


@given(st.lists(st.text(max_size=20), min_size=1, max_size=4))
def test_any_table(lines: list[str]) -> None:
    with contextlib.suppress(SpecError):
        assert all(1 <= number <= len(lines) for number, _ in csv_rows(list(enumerate(lines, 1)), "f"))
