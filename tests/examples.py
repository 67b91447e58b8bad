"""Properties that are slow to try: some examples at each change, more of them nightly."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def examples(
    now: int, nightly: int | None, *drawn: st.SearchStrategy[Any], **named: st.SearchStrategy[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that tests a property on *now* drawn examples, and nightly on *nightly* (None: as many as the profile has).

    *drawn* and *named* are the strategies of the property's last parameters; its other parameters are fixtures.
    """

    def of(holds: Callable[..., None]) -> Callable[..., None]:
        names = [name for name in inspect.signature(holds).parameters if name not in named]
        fixtures = names[: len(names) - len(drawn)]

        @pytest.mark.parametrize("tried", [now, pytest.param(nightly or settings().max_examples, marks=pytest.mark.nightly)])
        def test(tried: int, **given_: Any) -> None:
            settings(max_examples=tried)(given(*drawn, **named)(holds))(**given_)

        test.__name__, test.__doc__, test.__module__ = holds.__name__, holds.__doc__, holds.__module__
        parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("tried", *fixtures)]
        test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return test

    return of
