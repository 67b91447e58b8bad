"""Does a plot reach its files, the same each time? Oracles: file signatures, the XML parser, equal bytes."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from sim.report.picture import Picture, figure, picture
from sim.spec.yaml import SpecError


def drawn() -> Picture:
    made, (axes,) = figure(1, (3, 2))
    axes.plot([1, 2], [3, 4], label="a label")
    axes.legend()
    return picture(made)


def test_one_figure_is_one_picture() -> None:
    assert drawn() == drawn()
    assert drawn().png.startswith(b"\x89PNG") and drawn()._repr_png_() == drawn().png
    texts = [element.text for element in ElementTree.fromstring(drawn().svg).iter("{http://www.w3.org/2000/svg}text")]
    assert "a label" in texts  # as text, not as shapes of letters


def test_the_name_tells_the_kind(tmp_path: Path) -> None:
    for name in ("a.png", "a.svg"):
        drawn().save(tmp_path / name)
        assert (tmp_path / name).read_bytes() == drawn().files("a")[name]
    with pytest.raises(SpecError, match=r"a\.jpg: a picture in a file '\*\.jpg'; write \.png or \.svg"):
        drawn().save(tmp_path / "a.jpg")
