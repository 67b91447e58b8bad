"""Compared with the file itself: every value has a source, and the names that the code uses exist."""

from __future__ import annotations

from calibration.clusters.network_parameters import LOG_ODDS_AGAINST, WIDTHS
from calibration.clusters.priors import FILE, prior, priors
from sim.spec.yaml import read


def test_every_prior_says_what_it_rests_on() -> None:
    topics = read(FILE).value
    bare = [f"{topic}.{name}" for topic in topics for name, each in priors(topic).items() if len(each.source.split()) < 4]
    assert set(topics) == {"network", "doubt", "compute", "exchange", "interval"}
    assert not bare


def test_widths_are_those_of_the_file() -> None:
    assert WIDTHS["efficiency, TCP"] == prior("network", "efficiency, TCP") > WIDTHS["efficiency"] > 0
    assert sorted(LOG_ODDS_AGAINST.values()) == sorted([0.0, *(each.value for each in priors("doubt").values())])
