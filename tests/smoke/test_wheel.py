"""Does an installed wheel work anywhere, and does it name the papers it follows? It is run from an empty folder, without the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_wheel_runs_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling builds the wheel; it is in the dev extra")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=240,
    )
    (wheel,) = tmp_path.glob("stallsim-*.whl")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True, timeout=240)
    (installed,) = distributions(path=[str(site)])
    urls = [text.rpartition(", ")[2] for text in installed.metadata.get_all("Project-URL") or []]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert urls == [reference["url"] for reference in citation["references"]]
    assert installed.version == citation["version"]
    assert all(url in (ROOT / "README.md").read_text(encoding="utf-8") for url in urls)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = os.environ | {"PYTHONPATH": str(site)}
    command = [sys.executable, str(site / "bin" / "stallsim"), "run", "p3.16xlarge", "vgg16", "--json", "--html", "page.html"]
    ran = subprocess.run(command, cwd=elsewhere, env=environment, check=True, capture_output=True, text=True, timeout=240)
    assert json.loads(ran.stdout)["hardware"] == "p3.16xlarge"
    assert "Where the time goes" in (elsewhere / "page.html").read_text(encoding="utf-8")
