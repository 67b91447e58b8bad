"""Does the program speak as it should? Oracles: exit codes by hand, what stands on stdout and stderr, files."""

from __future__ import annotations

import errno
import json
import re
import sys
import time
from pathlib import Path

import pytest
import typer

from sim.cli import main
from sim.report.picture import Picture
from sim.spec.yaml import SpecError
from sim.terminal import Console, exit_code, json_text, messages, print_json, show_table, show_text, split_global_options, write_result


def test_options_that_may_stand_anywhere_are_taken_out() -> None:
    assert split_global_options(["run", "-q", "a", "--debug"]) == (["run", "a"], {"quiet", "debug"})
    assert split_global_options(["run", "--", "-q"]) == (["run", "--", "-q"], set())


def app(problem: BaseException | None) -> typer.Typer:
    made = typer.Typer(pretty_exceptions_enable=False)

    @made.command()
    def act() -> None:
        if problem is not None:
            raise problem
        typer.echo("done")

    return made


@pytest.mark.parametrize(
    ("problem", "code", "said"),
    [
        (None, 0, ""), (SpecError("x: wrong"), 2, "x: wrong\n"), (KeyboardInterrupt(), 130, "interrupted\n"), (typer.Exit(1), 1, ""),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "the output: cannot be written: No space left on device\n"),
        (OSError(errno.EIO, "Input/output error", "a.csv"), 2, "a.csv: cannot be written: Input/output error\n"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "a" * 300), 2, f"'{'a' * 36}...: the name is too long for a file\n"),
        (ValueError("oops"), 2, "internal error: ValueError: oops; --debug shows where\n"),
    ],
)  # fmt: skip
def test_how_it_ends(problem: BaseException | None, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(app(problem), []) == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_closed_streams_change_no_exit_code(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python sets sys.stdout or sys.stderr to None where the shell closed it (>&-), as a service without a terminal may."""
    shown = typer.Typer(pretty_exceptions_enable=False)
    shown.command()(lambda: show_text("text"))
    for program, code in ((app(None), 0), (app(SpecError("x: wrong")), 2), (app(KeyboardInterrupt()), 130), (shown, 0)):
        monkeypatch.setattr(sys, stream, None)
        assert exit_code(program, []) == code
        getattr(sys, stream).close()


def test_debug_shows_where(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="oops"):
        exit_code(app(ValueError("oops")), ["--debug"])


def test_quiet_says_nothing_but_errors(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code(app(None), ["-q"])
    messages("wrote it")
    assert capsys.readouterr().err == ""
    exit_code(app(None), [])
    messages("wrote it")
    assert capsys.readouterr().err == "wrote it\n"


def test_one_form_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    for forms, shown in (((True, False), '{\n  "a": 1\n}\n'), ((False, True), "csv"), ((False, False), "text\n")):
        show_table({"a": 1}, "text", "csv", *forms)
        assert capsys.readouterr().out == shown


def test_a_result_is_written_in_all_its_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    messages.quiet = False
    document = {"a": 1}
    made: list[dict[str, int]] = []

    def page(given: dict[str, int]) -> str:
        made.append(given)
        return "<html>"

    write_result(tmp_path / "out", tmp_path / "x.html", "it", (document, "text"), page, lambda _: Picture(b"png", b"svg"), {"it.csv": "c"})
    files = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert files == {
        "it.json": json_text(document).encode(), "it.txt": b"text\n", "it.html": b"<html>", "it.csv": b"c", "it.png": b"png",
        "it.svg": b"svg",
    }  # fmt: skip
    assert json.loads(files["it.json"]) == document and (tmp_path / "x.html").read_text() == "<html>" and len(made) == 1
    assert capsys.readouterr().err.count("wrote ") == 2


def test_without_a_place_nothing_is_drawn() -> None:
    write_result(None, None, "it", ({}, ""), lambda _: pytest.fail("drawn for nothing"))


def test_a_pipe_gets_every_byte_and_a_terminal_what_fits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wide = "one   " + "word " * 30 + "end"
    show_text(wide)
    assert capsys.readouterr().out == wide + "\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    for name, value, color in (("NO_COLOR", "", True), ("NO_COLOR", "1", False), ("TERM", "dumb", False)):
        with monkeypatch.context() as patch:
            patch.setenv("NO_COLOR", "")
            patch.setenv(name, value)
            show_text(wide)
            shown = capsys.readouterr().out
        assert max(map(len, re.sub(r"\x1b\[\d+m", "", shown).splitlines())) <= 60
        assert ("\x1b" in shown) is color


def test_progress_is_a_line_a_minute_without_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: a point each 20 s, so 3 points a minute, and 20 s more for each that is left."""
    clock = [1000.0]
    monkeypatch.setattr("sim.terminal.time.monotonic", lambda: clock[0])
    console = Console()
    done = console.counter("points")
    for number in range(1, 10):
        clock[0] += 20
        done(number, 1000 if number == 6 else 10)
    assert capsys.readouterr().err.splitlines() == [
        "3 of 10 points, about 2.3 min left",
        "6 of 1,000 points, about 5.5 h left",
        "9 of 10 points, about 20 s left",
    ]
    other = console.counter("runs")
    for after, number in ((100, 1), (1, 2), (1, 3), (1, 4)):  # the first waits for its processes to start, the others take a second
        clock[0] += after
        other(number, 100)
    clock[0] += 58
    other(62, 100)
    assert capsys.readouterr().err.splitlines() == ["1 of 100 runs", "62 of 100 runs, about 38 s left"]
    machines = console.counter("machines")
    machines(0, 105)
    for after, number in ((170, 1), (60, 2), (60, 3)):  # the first of many takes much longer: no estimate from it alone
        clock[0] += after
        machines(number, 105)
    expected = ["1 of 105 machines", "2 of 105 machines", "3 of 105 machines, about 2.7 h left"]
    assert capsys.readouterr().err.splitlines() == expected
    console.quiet = True
    clock[0] += 600
    done(10, 10)
    assert capsys.readouterr().err == ""


def test_progress_is_repeated_while_an_item_takes_minutes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A machine with thousands of layouts says nothing until it is planned; the command must not look as if it hung."""
    monkeypatch.setattr("sim.terminal.MINUTE", 0.05)
    console, lines, waited = Console(), [], 0
    console.counter("machines planned")(0, 11)
    while len(lines) < 2 and waited < 500:
        time.sleep(0.01)
        waited += 1
        lines += capsys.readouterr().err.splitlines()
    assert lines[:2] == ["0 of 11 machines planned"] * 2
    console.end()
    time.sleep(0.06)  # what was being written
    capsys.readouterr()
    time.sleep(0.2)
    assert capsys.readouterr().err == "" and console.ended is None


def test_what_is_said_names_the_program_as_it_was_called(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for called, named in (("/usr/bin/stallsim", "stallsim"), ("/src/sim/__main__.py", "python -m sim")):
        monkeypatch.setattr(sys, "argv", [called])
        messages("wrote mine.yaml\nnext: python -m sim run hgx-h100 mine.yaml")
        assert capsys.readouterr().err == f"wrote mine.yaml\nnext: {named} run hgx-h100 mine.yaml\n"
        show_text("Run the best: python -m sim run hgx-h100 mine.yaml")
        assert capsys.readouterr().out == f"Run the best: {named} run hgx-h100 mine.yaml\n"


def test_documents_pages_and_files_name_the_program_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "python -m sim run hgx-h100 mine.yaml"
    for called, named in (("/usr/bin/stallsim", "stallsim"), ("/src/sim/__main__.py", "python -m sim")):
        monkeypatch.setattr(sys, "argv", [called])
        print_json({"command": said})
        assert json.loads(capsys.readouterr().out) == {"command": f"{named} run hgx-h100 mine.yaml"}
        write_result(
            tmp_path, tmp_path / "page.html", "it", ({"command": said}, said), lambda document: f"<pre>{document['command']}</pre>"
        )
        written = [(tmp_path / name).read_text() for name in ("it.json", "it.txt", "it.html", "page.html")]
        assert all(f"{named} run hgx-h100 mine.yaml" in text for text in written)


def test_checks_and_new_files_name_the_program_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/stallsim"])
    monkeypatch.chdir(tmp_path)
    assert main(["check", "nosuch.yaml"]) == 2
    assert "'stallsim list'" in capsys.readouterr().err
    assert main(["new", "workload", "llama-3.2-1b", "-o", "mine.yaml"]) == 0
    text = Path("mine.yaml").read_text(encoding="utf-8")
    assert "'stallsim schema -o schemas'" in text and "# stallsim run " in text and "python -m sim" not in text
