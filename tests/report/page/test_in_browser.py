"""Does a page work where it is read, in a browser? Oracles: Chromium's console, network, geometry, pointer, keys, accessibility tree."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.cli import main
from tests.report.page.browser import Tab, browser, opened
from tests.report.page.cases import html

pytestmark = pytest.mark.skipif(browser() is None, reason="no Chromium or Chrome on this machine")

COUNT = "document.querySelectorAll({!r}).length"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html("exchange"), encoding="utf-8")
    with opened(path) as opened_tab:
        opened_tab.size(1200, 900)
        opened_tab.wear("light")
        yield opened_tab


def shown_tip(tab: Tab) -> str | None:
    tip: str | None = tab.evaluate("(tip => tip.hidden ? null : tip.textContent)(document.getElementById('tip'))")
    return tip


def test_nothing_is_loaded_and_nothing_goes_wrong(tab: Tab) -> None:
    assert tab.requests() == []
    assert tab.complaints() == []


def test_charts_have_marks_that_are_seen(tab: Tab) -> None:
    """Oracle: every chart holds marks with an area, inside the chart."""
    charts = tab.evaluate(
        "[...document.querySelectorAll('.marks')].filter(chart => chart.getClientRects().length).map(chart => "
        "[...chart.querySelectorAll('[data-tip]')].map(mark => mark.getBoundingClientRect())"
        ".filter(box => box.width + box.height > 0).length)"
    )
    assert len(charts) == 5 and min(charts) >= 2, charts


@pytest.mark.parametrize(
    ("selector", "says"),
    [
        ("#time .piece", "compute\n"),
        ("#steps .lane .mark", "copy"),
        ("#steps .lane.tall .mark", "% of "),
        ("#machine .device.mark", "GPU 0\n"),
        ("#machine .hit.mark", "used"),
        ("#memory .piece", "weights\n"),
        ("#help .piece", "infinitely fast"),
    ],
)
def test_pointing_at_a_mark_tells_what_it_is(tab: Tab, selector: str, says: str) -> None:
    tab.point("h1")
    assert shown_tip(tab) is None
    tab.point(selector)
    tip = shown_tip(tab)
    assert tip is not None and says in tip, tip
    inside = tab.evaluate("(box => box.left >= 0 && box.right <= innerWidth && box.bottom <= innerHeight)(tip.getBoundingClientRect())")
    assert inside


def test_arrow_keys_go_from_mark_to_mark(tab: Tab) -> None:
    tab.evaluate("document.querySelector('#time .marks').focus()")
    said = []
    for _ in range(2):
        tab.press("ArrowRight")
        said.append(tab.evaluate("document.getElementById('said').textContent"))
    assert said[0].startswith("compute, ") and said[1] != said[0]
    tab.press("Escape")
    assert shown_tip(tab) is None


def test_the_timeline_zooms(tab: Tab) -> None:
    """Oracle: marks grow with the canvas, the axis is written anew, the middle stays."""
    width = "document.querySelector('.canvas').getBoundingClientRect().width"
    full_width = tab.evaluate(width)
    ticks = tab.evaluate("[...document.querySelectorAll('.axis span')].map(tick => tick.textContent)")
    tab.click("[data-zoom=in]")
    assert tab.evaluate(width) == pytest.approx(2 * full_width, rel=0.01)
    assert tab.evaluate("[...document.querySelectorAll('.axis span')].map(tick => tick.textContent)") != ticks
    middle = tab.evaluate("(box => (box.scrollLeft + box.clientWidth / 2) / box.scrollWidth)(document.querySelector('.scroller'))")
    assert middle == pytest.approx(0.5, abs=0.01)
    tab.evaluate("document.querySelector('.canvas').focus()")
    tab.press("0")
    assert tab.evaluate(width) == pytest.approx(full_width)
    assert tab.evaluate("[...document.querySelectorAll('.axis span')].map(tick => tick.textContent)") == ticks


def test_dragging_zooms_to_what_was_dragged_over(tab: Tab) -> None:
    tab.point(".canvas .lane")
    left, top, width = tab.evaluate("(box => [box.left, box.top, box.width])(document.querySelector('.canvas').getBoundingClientRect())")
    for kind, share in (("mousePressed", 0.25), ("mouseMoved", 0.4), ("mouseReleased", 0.5)):
        tab.ask("Input.dispatchMouseEvent", type=kind, x=left + share * width, y=top + 60, button="left", buttons=1, clickCount=1)
    zoomed = tab.evaluate(
        "(box => [box.scrollLeft / box.scrollWidth, box.clientWidth / box.scrollWidth])(document.querySelector('.scroller'))"
    )
    assert zoomed == pytest.approx([0.25, 0.25], abs=0.01)
    tab.click("[data-zoom=all]")


def test_another_rank_can_be_chosen(tab: Tab) -> None:
    shown = "[...document.querySelectorAll('.canvas [data-rank]')].map(lanes => !lanes.hidden)"
    before = tab.evaluate(shown)
    tab.evaluate("(choice => { choice.value = '1'; choice.dispatchEvent(new Event('change')); })(document.querySelector('[data-ranks]'))")
    assert before[:2] == [True, False] and tab.evaluate(shown)[:2] == [False, True]
    tab.evaluate("(choice => { choice.value = '0'; choice.dispatchEvent(new Event('change')); })(document.querySelector('[data-ranks]'))")


def test_a_table_sorts(tab: Tab) -> None:
    tab.evaluate("document.querySelectorAll('#steps details').forEach(fold => { fold.open = true; })")
    column = "[...document.querySelectorAll('#steps table.sortable tbody tr')].map(row => +row.cells[4].querySelector('data').value)"
    tab.click("#steps table.sortable th:nth-child(5) button")
    values = tab.evaluate(column)
    assert values == sorted(values) and len(values) > 5
    tab.click("#steps table.sortable th:nth-child(5) button")
    assert tab.evaluate(column) == values[::-1] or tab.evaluate(column) == sorted(values, reverse=True)


def contrast(tab: Tab, selector: str) -> float:
    """The contrast (WCAG 2.2) of the text that *selector* finds on what is painted behind it."""
    ratio: float = tab.evaluate(
        """(element => {
          const parts = (color) => color.match(/[0-9.]+/g).map(Number);
          const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, place) => sum + v * [0.2126, 0.7152, 0.0722][place], 0);
          let behind = element;
          while (parts(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
          const tones = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor].map(c => light(parts(c))).sort();
          return (Math.max(...tones) + 0.05) / (Math.min(...tones) + 0.05);
        })(document.querySelector("""
        + json.dumps(selector)
        + "))"
    )
    return ratio


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_both_themes(tab: Tab, scheme: str) -> None:
    """Oracle: WCAG 2.2 asks 4.5 of text."""
    tab.wear(scheme)
    texts = (
        ".verdict",
        ".set-up",
        ".lead",
        "figcaption",
        "tbody td",
        "thead th button",
        "summary",
        "nav a",
        ".flag",
        ".lane-name",
        ".tiles dd + dd",
    )
    contrasts = {text: contrast(tab, text) for text in texts}
    assert min(contrasts.values()) >= 4.5, contrasts
    tab.wear("light")


def test_the_reader_s_theme_wins(tab: Tab) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = tab.evaluate(ground)
    tab.click("#theme")
    assert tab.evaluate("document.getElementById('theme').textContent") == "Theme: light"
    tab.wear("dark")
    assert tab.evaluate(ground) == light
    tab.click("#theme")
    dark = tab.evaluate(ground)
    assert dark != light and tab.evaluate("document.getElementById('theme').textContent") == "Theme: dark"
    tab.click("#theme")
    tab.wear("light")
    assert tab.evaluate(ground) == light


@pytest.mark.parametrize("width", [1200, 768, 390, 320])
def test_the_page_fits_its_window(tab: Tab, width: int) -> None:
    tab.size(width, 800)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tab.size(1200, 900)


def test_no_table_is_cut_at_1400_and_a_phone_shows_figures_beside_names(tab: Tab, tmp_path: Path) -> None:
    compared = tmp_path / "compared.html"
    names = ["p3.16xlarge", "gpu-h100-sxm_8gpu-128vcpu-1600gb"]
    assert main(["compare", "alexnet", *names, "--html", str(compared)]) == 0
    with opened(compared) as other:
        for each in (tab, other):
            each.size(1400, 900)
            assert each.evaluate(f"[...document.querySelectorAll('.table, nav')].filter(part => {WIDER}).map(part => part.innerText)") == []
        other.size(400, 900)
        assert other.evaluate(f"document.querySelector({COST!r}).getBoundingClientRect().left") < 300
    tab.size(1200, 900)


WIDER = "part.getBoundingClientRect().width > 0 && part.scrollWidth > part.clientWidth"
COST = "#table tbody td:nth-child(4)"


def test_paper_shows_what_matters(tab: Tab) -> None:
    tab.wear("dark", "print")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.evaluate("getComputedStyle(document.querySelector('header')).display") == "none"
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.evaluate("document.querySelectorAll('main section:not(#document, #inputs) details:not([open])').length") == 0
    tab.wear("light")


def test_a_screen_reader_finds_landmarks_and_names(tab: Tab) -> None:
    nodes = tab.ask("Accessibility.getFullAXTree")["nodes"]
    named = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if "role" in node and not node.get("ignored")}
    roles = {role for role, _ in named}
    assert {"banner", "navigation", "main", "contentinfo", "region", "table", "figure", "button"} <= roles
    assert {"Where the time goes", "Step by step", "The machine", "GPU memory"} <= {name for role, name in named if role == "region"}
    assert all(name for role, name in named if role in ("button", "region", "link", "table"))


def test_it_says_nothing_at_the_end_either(tab: Tab) -> None:
    assert tab.complaints() == [] and tab.requests() == []


@pytest.mark.parametrize("case", ["one GPU", "several jobs", "servers"])
def test_other_runs_open_as_well(case: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(html(case), encoding="utf-8")
    with opened(path) as other:
        other.size(1200, 900)
        assert other.evaluate(COUNT.format(".mark")) > 20
        other.point(".lane .mark")
        assert shown_tip(other)
        assert other.complaints() == [] and other.requests() == []


def test_text_of_drawings_and_charts_is_readable_on_a_phone(tab: Tab, tmp_path: Path) -> None:
    """At 400 pixels no text is under 9, and none is cut off at the edge of its drawing."""
    curve = tmp_path / "curve.html"
    assert main(["collective", "p3.16xlarge", "--html", str(curve)]) == 0
    tab.size(400, 900)
    with opened(curve) as other:
        other.size(400, 900)
        for each in (tab, other):
            sizes = each.evaluate(f"[...document.querySelectorAll('svg text')].filter(text => {SEEN}).map(text => {HEIGHT})")
            assert len(sizes) > 10 and min(sizes) > 9
            assert each.evaluate(f"[...document.querySelectorAll('svg text')].filter(text => {SEEN} && {CUT}).length") == 0
    tab.size(1200, 900)


HEIGHT = "text.getBoundingClientRect().height"
SEEN = f"{HEIGHT} > 0"
CUT = "text.getBoundingClientRect().left < text.ownerSVGElement.getBoundingClientRect().left - 1"
