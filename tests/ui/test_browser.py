"""Does the page work in a browser, by keyboard, wide and narrow, with nothing from elsewhere? In headless Chromium, if installed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.report.page.browser import Tab, opened
from tests.report.page.browser import browser as installed

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.needs("starlette", "uvicorn"),
    pytest.mark.skipif(installed() is None, reason="no Chromium or Chrome on the path"),
    pytest.mark.timeout(300),
]
VERDICT = "document.querySelector('#hero .verdict')?.textContent"
SETTLED = "document.getElementById('state')?.textContent.startsWith('Computed')"
OVERFLOW = "document.documentElement.scrollWidth - innerWidth"

FAINT = """(() => {
  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const bright = (color) => {
    const [r, g, b] = color.match(/[\\d.]+/g).map((text) => linear(text / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    const color = getComputedStyle(element).backgroundColor;
    return /, 0\\)$/.test(color) && element.parentElement ? ground(element.parentElement) : color;
  };
  const ratio = (element) => {
    const [low, high] = [bright(getComputedStyle(element).color), bright(ground(element))].sort((one, other) => one - other);
    return (high + 0.05) / (low + 0.05);
  };
  return ['.control label', '.control small', 'summary', '#state', '.verdict', '.copied code', '#keep .lead', 'input[type=text]']
    .map((selector) => [selector, ratio(document.querySelector(selector))]).filter(([, found]) => found < 4.5);
})()"""
"""Texts of the page, and their contrast where it is too low."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    words = [sys.executable, "-m", "sim", "ui", "p3.8xlarge", "alexnet", "--port", "0"]
    server = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert server.stderr is not None
    try:
        line = server.stderr.readline()
        match = re.match(r"(http://127\.0\.0\.1:\d+/\?\S+) ", line)
        assert match, line + server.stderr.read()
        yield f"{match[1]}&among=none"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(60)
        server.stderr.close()


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with opened("about:blank") as opened_tab:
        yield opened_tab


@pytest.mark.parametrize("width", [400, 1400])
def test_a_control_moved_by_keyboard_changes_the_verdict(tab: Tab, address: str, width: int) -> None:
    tab.size(width, 900)
    tab.go(address)
    tab.until(f"{VERDICT} && {SETTLED} && !document.querySelector('#parts').matches(':empty')")
    before = tab.evaluate("[document.getElementById('hero').textContent, document.getElementById('command').textContent]")
    assert "--nodes" not in before[1]
    assert tab.evaluate(OVERFLOW) <= 0
    tab.evaluate("document.getElementById('r-nodes').focus()")
    tab.press("ArrowRight")
    tab.until(f"document.getElementById('command').textContent.includes('--nodes 2') && {SETTLED}")
    after = tab.evaluate("[document.getElementById('hero').textContent, document.getElementById('command').textContent]")
    assert after[0] != before[0]
    assert tab.evaluate("document.getElementById('said').textContent").startswith("step "), "said to screen readers"
    assert tab.evaluate("document.activeElement.id") == "r-nodes", "the control keeps the focus"
    assert "nodes=2" in tab.evaluate("location.search")
    assert tab.evaluate(OVERFLOW) <= 0
    assert {urlsplit(url).hostname for url in tab.requests()} == {"127.0.0.1"}
    assert tab.complaints() == []


def test_a_problem_is_shown_with_its_remedy(tab: Tab, address: str) -> None:
    tab.size(400, 900)
    tab.go(address.split("?")[0] + "?workload=llama-3.1-8b&hardware=hgx-h100&among=none")
    tab.until(f"document.querySelector('#problems button') && {SETTLED}")
    problem = tab.evaluate("document.getElementById('problems').textContent")
    assert re.search(r"batch 1 per GPU needs \d{3} GiB of GPU memory, H100-SXM5-80GB has 80 GiB; --shard parameters spreads", problem)
    assert tab.evaluate(OVERFLOW) <= 0
    tab.evaluate("document.querySelector('#problems button').focus()")
    tab.press("Enter")
    tab.until(f"document.getElementById('command').textContent.includes('--shard parameters') && {VERDICT} && {SETTLED}")
    assert tab.evaluate("document.getElementById('problems').textContent") == ""


def test_what_is_read_has_contrast_in_light_and_dark(tab: Tab, address: str) -> None:
    """WCAG 2.2 AA: 4.5 to 1 for text; computed from what the browser paints."""
    tab.size(1400, 900)
    for dark in (False, True):
        tab.wear("dark" if dark else "light")
        tab.go(address)
        tab.until(f"{VERDICT} && {SETTLED}")
        assert tab.evaluate(FAINT) == []
    tab.wear("light")
