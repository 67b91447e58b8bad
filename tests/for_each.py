"""A property of every file of the catalog is one test with one list of failures, not a test a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sim.spec.memo import caching_inside


def for_each(values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Make of a test of one value, or of one tuple of values, a test of all of *values* that names every one that fails."""
    cases = list(values)

    def decorate(test: Callable[..., None]) -> Callable[[], None]:
        def of_all() -> None:
            failures = []
            with caching_inside():  # parts that many of them name are read once
                for case in cases:
                    try:
                        test(*case) if isinstance(case, tuple) else test(case)
                    except Exception as error:
                        failures.append(f"{case}: {type(error).__name__}: {error}")
            assert cases and not failures, f"{len(failures)} of {len(cases)} fail:\n" + "\n".join(failures)

        of_all.__name__, of_all.__doc__, of_all.__module__ = test.__name__, test.__doc__, test.__module__
        return of_all

    return decorate
