"""Oracles: the readings on which YAML 1.1 and YAML 1.2 agree, and PyYAML's own resolver as a second implementation of YAML 1.1."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sim.spec.scalars import ScalarError, plain

AGREED = [
    ("", None), ("~", None), ("null", None), ("true", True), ("False", False), ("0", 0), ("-3", -3), ("+4", 4), ("0x1F", 31),
    ("0.5", 0.5), ("-.5", -0.5), ("1.", 1.0), ("1.0e+6", 1e6), ("2.5e-3", 2.5e-3),
    ("2026-07-20", "2026-07-20"), ("0-1", "0-1"), ("25 Gbps", "25 Gbps"), ("V100-SXM2-16GB", "V100-SXM2-16GB"), ("1e", "1e"),
    ("node", "node"), ("none", "none"), ("n", "n"), ("y", "y"), ("fp16", "fp16"), ("fee_1", "fee_1"), ("1.2.3", "1.2.3"), ("=", "="),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), AGREED)
def test_agreed_words_mean_what_both_versions_say(text: str, value: object) -> None:
    assert plain(text) == value
    assert type(plain(text)) is type(value)


MEANS_DIFFERENT = "is ambiguous in YAML; write"
REFUSED = [
    ("12:30", f"'12:30' {MEANS_DIFFERENT} it out in full or, for a text, quote it"),
    ("1:30.5", f"'1:30.5' {MEANS_DIFFERENT} it out in full or, for a text, quote it"),
    ("010", f"'010' {MEANS_DIFFERENT} it out in full or, for a text, quote it"),
    ("08", f"'08' {MEANS_DIFFERENT} it out in full or, for a text, quote it"),
    ("0b11", f"'0b11' {MEANS_DIFFERENT} it out in full or, for a text, quote it"),
    ("0o17", f"'0o17' {MEANS_DIFFERENT} it out in full or, for a text, quote it"),
    ("1_000", f"'1_000' {MEANS_DIFFERENT} it out in full or, for a text, quote it"),
    ("0x_1", f"'0x_1' {MEANS_DIFFERENT} it out in full or, for a text, quote it"),
    ("1e9", f"'1e9' {MEANS_DIFFERENT} 1.0e+9 or, for a text, quote it"),
    ("1e-9", f"'1e-9' {MEANS_DIFFERENT} 1.0e-9 or, for a text, quote it"),
    ("1.5E6", f"'1.5E6' {MEANS_DIFFERENT} 1.5e+6 or, for a text, quote it"),
    ("yes", "'yes' is a boolean to some readers of YAML and text to others; write true, false or 'yes' in quotes"),
    ("Off", "'Off' is a boolean to some readers of YAML and text to others; write true, false or 'Off' in quotes"),
    (".inf", "'.inf' is not a finite number"),
    ("-.INF", "'-.INF' is not a finite number"),
    (".nan", "'.nan' is not a finite number"),
    ("1.0e+999", "'1.0e+999' is not a finite number"),
    ("9" * 5000, f"'{'9' * 36}... is too large for a whole number"),
    ("0x" + "f" * 5000, f"'0x{'f' * 34}... is too large for a whole number"),
    ("9223372036854775808", "'9223372036854775808' is too large for a whole number"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[text[:20] for text, _ in REFUSED])
def test_words_that_readers_disagree_on_are_refused(text: str, message: str) -> None:
    with pytest.raises(ScalarError) as caught:
        plain(text)
    assert str(caught.value) == message


@given(st.from_regex(r"[-+]?[0-9a-fxbo_.:eE+-]{1,8}|[A-Za-z~]{1,5}|[0-9.]{1,6}", fullmatch=True))
def test_what_is_accepted_reads_the_same_in_yaml_1_1(text: str) -> None:
    try:
        value = plain(text)
    except ScalarError:
        return
    resolve: Any = yaml.SafeLoader("").resolve
    tag = resolve(yaml.ScalarNode, text, (True, False)).rpartition(":")[2]
    expected = {"int": int, "float": float, "bool": bool, "null": type(None)}.get(tag, str)
    assert type(value) is expected
