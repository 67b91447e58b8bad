"""Oracles: PyYAML's own loader for values, the text itself for lines and columns, and a table of exact messages."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml as pyyaml
from hypothesis import given
from hypothesis import strategies as st

from sim.spec import yaml
from sim.spec.yaml import SpecError


def complaint(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        yaml.parse(text, "f")
    return caught.value.problems


def test_every_value_has_its_place() -> None:
    text = "a: 1\nb:\n  c: [x, {d: 2}]\n  - e\n".replace("  - e\n", "")
    document = yaml.parse(text, "f")
    assert document.value == {"a": 1, "b": {"c": ["x", {"d": 2}]}}
    places = {(): "f:1:1", ("a",): "f:1:1", ("b",): "f:2:1", ("b", "c"): "f:3:3", ("b", "c", 0): "f:3:7", ("b", "c", 1): "f:3:10"}
    assert {key: str(document.mark(key)) for key in places} == places
    assert str(document.mark(("b", "c", 1, "d"))) == "f:3:11"


def test_an_absent_key_has_the_place_of_what_should_hold_it() -> None:
    assert str(yaml.parse("a: {b: 1}", "f").mark(("a", "x", "y"))) == "f:1:1"


def test_aliases_stand_for_their_values() -> None:
    document = yaml.parse("a: &one {b: 1}\nc: *one\nd: [*one, &two x, *two]", "f")
    assert document.value == {"a": {"b": 1}, "c": {"b": 1}, "d": [{"b": 1}, "x", "x"]}
    assert str(document.mark(("c", "b"))) == "f:1:10"


EACH = [
    ("", "f: file is empty; write a description, for example the line 'extends: p3.8xlarge' or 'extends: resnet50'"),
    ("# only a comment", "f: file is empty; write a description, for example the line 'extends: p3.8xlarge' or 'extends: resnet50'"),
    ("a: 1\na: 2", "f:2:1: a: appears twice, first at line 1; write a key once"),
    ("a: {b: 1, b: {c: 2}}", "f:1:11: a.b: appears twice, first at line 1; write a key once"),
    ("a: [1, 12:30]", "f:1:8: a.1: '12:30' is ambiguous in YAML; write it out in full or, for a text, quote it"),
    ("a:\n\tb: 1", "f:2:1: not valid YAML: found character that cannot start any token; indent with spaces, because YAML does not allow "
    "tabs"),
    ("a: [1, 2", "f:1:9: not valid YAML: did not find expected ',' or ']'"),
    ("a: b: c", "f:1:5: not valid YAML: mapping values are not allowed in this context"),
    (
        "a: !!python/object/apply:os.system [ls]",
        "f:1:4: a: the tag 'tag:yaml.org,2002:python/object/appl... is not supported; write the value without it",
    ),
    ("a: !x 3", "f:1:4: a: the tag '!x' is not supported; write the value without it"),
    ("&a [*a]", "f:1:5: *a refers to itself"),
    ("a: *b", "f:1:4: there is no anchor &b before this alias"),
    ("[1]: 2", "f:1:1: found a list, block or alias; expected a key, which is plain text"),
    ("? {a: 1}\n: 2", "f:1:3: found a list, block or alias; expected a key, which is plain text"),
    ("a: &x y\n*x : 1", "f:2:1: found a list, block or alias; expected a key, which is plain text"),
    ("!!str a: 1", "f:1:1: a: a key must be plain text, without tag or anchor"),
    ("<<: {a: 1}", "f:1:1: <<: '<<' is not supported; use 'extends: NAME'"),
    ("? \n: 4", "f:1:2: an empty key; expected a name"),
    ("a: 1\n---\nb: 2", "f:2:1: a second document starts here ('---'); a file must hold only one"),
    ("a: 1\nb\0: 2", "f:2:2: not plain text (control characters are not allowed); expected a YAML file"),
    ("a: \ud800", "f:1:1: not plain text (surrogates not allowed); expected a YAML file"),
    ("[" * 100, "f:1:42: nested deeper than 40 levels"),
    ("- " * 100 + "x", "f:1:83: nested deeper than 40 levels"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), EACH, ids=[text[:20] for text, _ in EACH])
def test_bad_text_has_one_message_with_its_place(text: str, message: str) -> None:
    assert complaint(text) == [message]


def test_all_problems_are_told_at_once() -> None:
    places = [problem.split(" ")[0] for problem in complaint("a: yes\nb: 1e9\na: 3\nc: 010\nd: .inf\ne: [")]
    assert places == ["f:1:4:", "f:2:4:", "f:3:1:", "f:4:4:", "f:5:4:", "f:6:5:"]


def test_a_long_list_of_problems_is_cut_when_written_but_kept() -> None:
    error = SpecError([f"problem {number}" for number in range(60)])
    assert str(error).splitlines()[-2:] == ["problem 49", "... and 10 more"]
    assert len(error.problems) == 60


def test_text_beside_files_has_no_line() -> None:
    with pytest.raises(SpecError) as caught:
        yaml.parse("yes", "--set a=yes", located=False)
    assert str(caught.value).startswith("--set a=yes: 'yes' is a boolean")


@pytest.mark.parametrize(
    "bomb",
    [
        "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{c}: &{c} [{','.join(['*' + p] * 9)}]\n" for p, c in pairwise("abcdefghi")),
        "a0: &a0 [x]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}]\n" for i in range(60)),
        "[" * 3_000_000,
        "- " * 3_000_000 + "x",
        "{a: " * 1_000_000,
        "a: &x {}\n" + "b: [" + "*x, " * 300_000 + "]",
    ],
    ids=["billion laughs", "chain of aliases", "brackets", "dashes", "braces", "many aliases"],
)
def test_bombs_go_off_harmlessly(bomb: str) -> None:
    """libyaml's own composer dies of a stack overflow on the nested ones."""
    start = time.process_time()
    assert "than" in complaint(bomb)[0]
    assert time.process_time() - start < 5


def test_libyaml_counts_levels_ahead_of_its_events_and_says_the_same() -> None:
    """From 0.2.6 on it stops at 1000 levels, before the events of the first 41 are out."""
    assert complaint("[" * 3000)[0].endswith(": nested deeper than 40 levels")


def test_files_that_hold_no_text(tmp_path: Path) -> None:
    binary, large, absent = tmp_path / "binary.yaml", tmp_path / "large.yaml", tmp_path / "absent.yaml"
    binary.write_bytes(b"\x89PNG\r\n")
    large.write_bytes(b"#" * (yaml.MAX_BYTES + 1))
    expected = {
        binary: f"{binary}: not a text file (byte 0 is not UTF-8); expected a YAML file",
        large: f"{large}: larger than 8388608 bytes; a description is smaller",
        absent: f"{absent}: no such file",
        tmp_path: f"{tmp_path}: is a folder; expected a file",
    }
    for path, message in expected.items():
        with pytest.raises(SpecError) as caught:
            yaml.read(path)
        assert str(caught.value) == message


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    document = yaml.read(path)
    assert document.value == {"a": 1}
    assert str(document.mark(("a",))) == f"{path}:1:1"


def test_the_head_of_a_file_is_read_without_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text("name: x\nlayers:\n  - ] broken [\n")
    assert yaml.read_head(path, "layers").value == {"name": "x"}


def test_the_key_of_an_override_is_not_written_twice() -> None:
    document = yaml.parse("{b: 1}", "--set a={b: 1}", located=False)
    assert document.message_start(()) == "--set a={b: 1}: "
    assert yaml.message_start(document.root, "a") == "--set a={b: 1}: "
    assert yaml.message_start(document.root, "a.b") == "--set a={b: 1}: a.b: "


PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(min_size=1), inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN.filter(lambda value: value is not None))
def test_what_pyyaml_writes_is_read_back(value: Any) -> None:
    """PyYAML writes floats such as ``1e+16`` and integers in a form all readers share; quotes guard every trap."""
    assert yaml.parse(pyyaml.safe_dump(value)).value == value
