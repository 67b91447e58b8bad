"""Is a model compared with torch again once its table or the code changes?"""

from __future__ import annotations

from tests.extract.compared import DRAWN, due_of, now


def test_a_changed_table_is_compared_again() -> None:
    current = now()
    assert due_of(current, current) == frozenset()
    for name in list(current["models"])[:3]:
        assert due_of(current | {"models": current["models"] | {name: "another"}}, current) == {name}
    absent = {name: digest for name, digest in current["models"].items() if name != "vgg16"}
    assert due_of(current | {"models": absent}, current) == {"vgg16"}


def test_changed_code_is_compared_on_a_draw_that_depends_on_it() -> None:
    current = now()
    draws = {due_of(current, current | {"code": code}) for code in ("one", "two", "three")}
    assert {len(draw) for draw in draws} == {DRAWN} and len(draws) > 1
