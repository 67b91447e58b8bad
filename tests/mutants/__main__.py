"""``make mutants``: makes mistakes in the modules for prices, sharing, attribution and schedules, and lists those that no test notices.

Each module gets a fixed random sample of mistakes, each tested in its own process. Fails if one is not noticed and not listed in the
committed ``baseline.json``; ``--write`` writes that file.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import json
import math
import os
import random
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from tests.mutants.mistakes import Mistake, mistakes

BASELINE = Path(__file__).with_name("baseline.json")
MODULES = {
    "sim.cluster.fairshare": ["tests/cluster/test_fairshare.py"],
    "sim.analysis.stalls": ["tests/analysis/test_stalls.py"],
    "sim.parallel.schedule": ["tests/parallel/test_schedule.py"],
    "sim.training.collectives.price.pricing": [
        "tests/training/collectives/price/test_pricing.py",
        "tests/training/collectives/price/test_switch_pricing.py",
    ],
    "sim.training.layouts.prices": ["tests/training/layouts/test_prices.py", "tests/training/layouts/test_gloo.py"],
}
"""The modules, each with the tests that answer for it."""
DRAWN = 15
"""Mistakes of each module."""
PATIENCE = 2.0
"""A mistake counts as noticed, as tests no longer end, where they take so many times the CPU time that they take without it."""
MEMORY = 4 << 30
"""Bytes that a process may take."""


OPTIONS = ["-x", "-q", "-n0", "--benchmark-disable", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
"""Of pytest, in a process that has imported what tests import."""


def function_of(module: ModuleType, name: str) -> FunctionType:
    """Return the function *name* of *module*, out of whatever wraps it."""
    member: Any = module
    for part in name.split("."):
        member = inspect.getattr_static(member, part)
    for wrapper, inside in ((functools.cached_property, "func"), (property, "fget"), (staticmethod, "__func__"), (classmethod, "__func__")):
        if isinstance(member, wrapper):
            member = getattr(member, inside)
    return inspect.unwrap(member)


def noticed(function: FunctionType, code: CodeType, tests: Sequence[str], seconds: int = resource.RLIM_INFINITY) -> bool:
    """Run *tests* in a process of so many *seconds* in which *function* has another *code*; tell whether it ends otherwise than well."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        function.__code__ = code
        os._exit(int(pytest.main([*OPTIONS, *tests])))
    _, status = os.waitpid(child, 0)
    return status != 0


def tried(name: str, tests: Sequence[str]) -> dict[str, Any]:
    """Make the mistakes drawn for the module *name*; return how many *tests* notice, and the others."""
    os.environ["HYPOTHESIS_PROFILE"] = "mutants"  # a failure is enough, the simplest one is not looked for
    module = importlib.import_module(name)
    importlib.import_module("tests.conftest")
    for path in tests:
        importlib.import_module(path.removesuffix(".py").replace("/", "."))  # what they import, every process then has
    possible = list(mistakes(inspect.getsource(module)))
    drawn = sorted(random.Random(name).sample(range(len(possible)), min(DRAWN, len(possible))))
    first = function_of(module, possible[0].function)
    before = os.times().children_user
    if noticed(first, first.__code__, tests):
        raise SystemExit(f"{name}: its tests fail as it is")
    seconds = math.ceil(PATIENCE * (os.times().children_user - before))
    missed: list[Mistake] = []
    for count, number in enumerate(drawn, start=1):
        mistake = possible[number]
        if not noticed(function_of(module, mistake.function), mistake.code, tests, seconds):
            missed.append(mistake)
            print(f"{name}.{mistake.function}: no test notices\n  - {mistake.before}\n  + {mistake.after}", flush=True)
        print(f"{name}: {count} of {len(drawn)}, {len(missed)} unnoticed", file=sys.stderr, flush=True)
    return {
        "tests": list(tests),
        "possible": len(possible),
        "tried": len(drawn),
        "unnoticed": [{"function": mistake.function, "before": mistake.before, "after": mistake.after} for mistake in missed],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mistakes of each module; return 1 where one goes unnoticed that did not before."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", default=list(MODULES), help="modules to try (default: all)")
    parser.add_argument("--write", action="store_true", help=f"write {BASELINE.name}")
    options = parser.parse_args(arguments)
    baseline = json.loads(BASELINE.read_text(encoding="utf-8")) if BASELINE.exists() else {}
    new = 0
    for name in options.modules:
        outcome = tried(name, MODULES[name])
        new += sum(mistake not in baseline.get(name, {}).get("unnoticed", []) for mistake in outcome["unnoticed"])
        baseline[name] = outcome
        if options.write:
            BASELINE.write_text(json.dumps(baseline, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return int(new > 0 and not options.write)


if __name__ == "__main__":
    sys.exit(main())
