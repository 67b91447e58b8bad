"""``make fuzz``: many inputs, on all cores; prints each that ended in anything but a result or a sentence."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from tests.fuzz.attack import EACH, Finding, attack

_SAID = 10_000
"""Inputs between two lines of progress without a terminal."""
_TASKS = 20
"""Tasks of a process before another takes its place: what one leaves behind reaches no further."""
_PART = 500
"""Inputs of one task."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Attack with as many inputs as were asked for; return 1 where one was answered wrongly."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first input, to make one again")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=EACH, help="one input in so many is a command line; 1: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes; all cores by default")
    options = parser.parse_args(arguments)
    end = options.first + options.inputs
    parts = [range(start, min(start + _PART, end)) for start in range(options.first, end, _PART)]
    wrong = 0
    for part, findings in zip(parts, _attacked(parts, options.jobs, options.seed, options.each), strict=True):
        wrong += len(findings)
        for finding in findings:
            print(_shown(finding), flush=True)
        if sys.stderr.isatty() or part.stop == end or part.stop % _SAID == 0:
            print(f"\r{part.stop - options.first} of {options.inputs} inputs, {wrong} wrong", end="", file=sys.stderr, flush=True)
    print(f"{options.inputs} inputs, {wrong} ended in neither a result nor a sentence")
    return int(wrong > 0)


def _attacked(parts: Sequence[range], jobs: int, seed: int, each: int) -> Iterator[list[Finding]]:
    """Yield what went wrong in each of *parts*, which *jobs* processes share.

    Processes of multiprocessing.Pool may not start others, as pages do. With max_tasks_per_child, those of ProcessPoolExecutor may wait for
    ever once the first have ended (python/cpython#115634), so each batch of tasks has its own.
    """
    for start in range(0, len(parts), _TASKS * jobs):
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            yield from pool.map(partial(attack, seed=seed, each=each), parts[start : start + _TASKS * jobs])


def _shown(finding: Finding) -> str:
    return f"--- {finding.kind}, --first {finding.number} --inputs 1\n{finding.message}\n{finding.content}\n"


if __name__ == "__main__":
    sys.exit(main())
