"""Are marks distinguishable in the light and the dark scheme? Oracle: WCAG 2.2's contrast, and its own example values of luminance."""

from __future__ import annotations

import re

import pytest

from sim.causes import COLORS
from sim.report.page.colors import DARK, DARK_CAUSES, DARK_USES, LIGHT, USES, fill, luminance, style_tokens


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_luminance_is_wcag_s() -> None:
    assert luminance("#ffffff") == pytest.approx(1.0) and luminance("#000000") == 0.0
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("paper", [LIGHT, DARK], ids=["light", "dark"])
def test_words_are_readable(paper: dict[str, str]) -> None:
    for text in ("ink", "muted", "accent", "link"):
        assert contrast(paper[text], paper["paper"]) >= 4.5 and contrast(paper[text], paper["ground"]) >= 4.5, text


def test_marks_stand_out_in_the_dark() -> None:
    shown = {cause.value: color for cause, color in COLORS.items()} | DARK_CAUSES | USES | DARK_USES
    assert {name: contrast(color, DARK["paper"]) for name, color in shown.items() if contrast(color, DARK["paper"]) < 3} == {}


def test_names_on_marks_are_readable() -> None:
    """Oracle: the tokens of both papers, read back from the style sheet."""
    for block in style_tokens().split("{")[1:]:
        tokens = dict(re.findall(r"--([a-z-]+):(#[0-9a-f]{6})", block))
        pairs = {name: tokens[name.removeprefix("on-")] for name in tokens if name.startswith("on-")}
        assert all(contrast(tokens[name], color) >= 4.5 for name, color in pairs.items())


def test_every_mark_has_its_tokens() -> None:
    assert fill("optimizer_state") == "background:var(--optimizer-state);color:var(--on-optimizer-state)"
    assert all(f"--{name.replace('_', '-')}:" in style_tokens() for name in (*USES, *(cause.value for cause in COLORS)))
