"""Whatever is read, either a description comes out or a SpecError with a sentence per problem: never a traceback.

Oracle: the contract itself. Descriptions that load are checked as well, so that the checks never stumble either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml as pyyaml
from hypothesis import given
from hypothesis import strategies as st

from sim import check
from sim.spec import catalog, listing, yaml
from sim.spec.hardware import Hardware
from sim.spec.library import Loaded, load_hardware, load_workload
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from tests.spec.documents import FILES, MACHINE, WORKLOAD, write_library


@pytest.fixture(scope="module")
def shelves(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The toy library as the only catalog for this file."""
    folder = write_library(tmp_path_factory.mktemp("fuzz"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "roots", lambda: [folder])
        yield folder


def survives(step: Callable[[], Any]) -> Any:
    """Return what *step* returns, or None where it refuses in sentences."""
    try:
        return step()
    except SpecError as error:
        assert error.problems
        assert all(isinstance(problem, str) and problem.strip() for problem in error.problems)
        assert str(error).encode("utf-8", errors="backslashreplace")
        return None


def survives_load(text: str | bytes, folder: Path, overrides: list[str] | None = None, workload: bool = False) -> None:
    path = folder / "fuzz.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", errors="surrogatepass"))
    load: Callable[..., Loaded[Any]] = load_workload if workload else load_hardware
    loaded = survives(lambda: load(str(path), overrides or ()))
    if loaded is None:
        return
    examine: Callable[..., list[str]] = check.check_workload if workload else check.check_hardware
    assert all(isinstance(problem, str) for problem in examine(loaded.spec, loaded.document))
    check.count_estimates(loaded.spec, loaded.document)


@given(st.text() | st.text("[]{}:,-&*!|>'\"%@`#?<\n\t 0a", max_size=60))
def test_any_text(shelves: Path, text: str) -> None:
    survives(lambda: yaml.parse(text))
    survives_load(text, shelves)


@given(st.binary(max_size=60))
def test_any_bytes(shelves: Path, content: bytes) -> None:
    survives_load(content, shelves)


SNIPPETS = [
    "null", "~", "[]", "{}", "[", "}", ":", "- ", "&a ", "*a", "<<: ", "!!int ", "!x ", "'", '"', "\t", "\n", "#", "|", ">", "%",
    "12:30", "1e9", "010", "yes", ".inf", "-1", "0", "1.5", "9" * 400, "0x" + "f" * 40, "25 Gbps", "16 GiB", "-3 us", "1e999 GB",
    "toy", "toy-gpu", "wire", "hop", "extends: toy", "extends: fuzz.yaml", "node: fuzz.yaml", "extends: [1]", "groups: []", "node: {}",
    "0-1", "gpu0", "socket0", "estimate", "[[1, 2], [3]]", "[[[[]]]]", "\0", "\x85", "\ufeff", "\U0001f600",
]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, text: str) -> str:
    """*text* with up to four pieces cut out, put in or doubled."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 30)))
        piece = draw(st.sampled_from(["", text[start:end] * 2, *SNIPPETS]))
        text = text[:start] + piece + text[end:]
    return text


@given(mutated(MACHINE))
def test_mutated_hardware(shelves: Path, text: str) -> None:
    survives_load(text, shelves)


@given(mutated(WORKLOAD))
def test_mutated_workloads(shelves: Path, text: str) -> None:
    survives_load(text, shelves, workload=True)


@given(st.sampled_from(sorted(FILES)).flatmap(lambda name: st.tuples(st.just(name), mutated(FILES[name]))))
def test_mutated_parts(shelves: Path, change: tuple[str, str]) -> None:
    name, text = change
    try:
        (shelves / name).write_text(text, encoding="utf-8")
        survives(lambda: load_hardware("toy"))
        survives(lambda: load_workload("toy-job"))
        listing.hardware_rows()
        listing.workload_rows()
    finally:
        (shelves / name).write_text(FILES[name], encoding="utf-8")


NAMES = st.text(max_size=5) | st.sampled_from(["node", "source", "extends"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(SNIPPETS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


def leaf_keys(value: Any, key: tuple[str | int, ...] = ()) -> Iterator[str]:
    """The dotted key of every single value in *value*."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inside is None:
        yield yaml.dotted_key(key)
    for name, child in inside or ():
        yield from leaf_keys(child, (*key, name))


MACHINE_KEYS, WORKLOAD_KEYS = (list(leaf_keys(pyyaml.safe_load(text))) for text in (MACHINE, WORKLOAD))
KEYS = sorted({*MACHINE_KEYS, *WORKLOAD_KEYS})
DEEPER = {"groups", "memory", "peak", "efficiency", "layers", "extends", "0", "1", "-1"}
STEPS = sorted(DEEPER | {step for key in KEYS for step in key.split(".")})


@given(st.sampled_from(KEYS), VALUES)
def test_any_value_at_any_key(shelves: Path, key: str, value: Any) -> None:
    """The value stands in the file itself, at a key that a machine or a workload has."""
    text = MACHINE if key in MACHINE_KEYS else WORKLOAD
    content = pyyaml.safe_load(text)
    holder: Any = content
    *steps, last = key.split(".")
    for step in steps:
        holder = holder[int(step) if isinstance(holder, list) else step]
    holder[int(last) if isinstance(holder, list) else last] = value
    survives_load(pyyaml.safe_dump(content), shelves, workload=text is WORKLOAD)


PATHS = st.lists(st.sampled_from(STEPS) | st.text(max_size=4), min_size=1, max_size=6).map(".".join)
OVERRIDES = st.text() | st.builds(
    lambda key, value: f"{key}={value}",
    PATHS | st.sampled_from(KEYS),
    st.text(max_size=12) | st.sampled_from(SNIPPETS) | VALUES.map(repr),
)


@given(st.lists(OVERRIDES, min_size=1, max_size=3))
def test_any_override(shelves: Path, overrides: list[str]) -> None:
    survives_load(MACHINE, shelves, overrides)
    survives_load(WORKLOAD, shelves, overrides, workload=True)


@given(st.text() | st.text("./\\~a-z", max_size=10))
def test_any_name(shelves: Path, name: str) -> None:
    survives(lambda: load_hardware(name))
    survives(lambda: load_workload(name, library=shelves))
    assert isinstance(check.validate_path(name), list)


@given(st.text() | st.from_regex(r"[a-z_]{0,8} ?[<>=!]{0,3} ?[0-9A-Za-z*]{0,5}"))
def test_any_filter(text: str) -> None:
    row: listing.Row = {column.name: 1 if column.dimension else "x" for column in listing.HARDWARE}
    survives(lambda: listing.select([row], [text], listing.HARDWARE))


@given(VALUES)
def test_any_data_given_to_the_models(value: Any) -> None:
    """Validators see data of any shape: beside pydantic's own error nothing may come out of them."""
    for kind in (Hardware, Workload):
        for data in (value, {"name": value, "groups": [{"node": value}], "model": value, "training": {"batch": value}}):
            try:
                kind.model_validate(data)
            except ValueError as error:
                assert type(error).__name__ == "ValidationError"
