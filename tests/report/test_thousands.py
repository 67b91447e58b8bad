"""Do all numbers of 1,000 or more in text have a comma? Oracle: every number of four digits or more that a command prints."""

from __future__ import annotations

import re

import pytest

from sim.cli import main

COMMANDS = (
    "run p3.16xlarge resnet50 --nodes 256 --batch 32 --epochs 2000 --fast",
    "run p3.16xlarge resnet50 --nodes 128..256 --epochs 90000",
    "run hgx-h100 llama-3.2-1b --nodes 128 --shard parameters --tokens 1T",
    "run hgx-h100 llama-3.2-1b --nodes 128..256 --shard parameters",
    "compare resnet50 p3.16xlarge --nodes 1024 --epochs 90000",
    "goodput hgx-h100 gpt2-xl --nodes 128 --days 1200 --trials 4 --fast",
    "recommend resnet50 p3.16xlarge --nodes 1000 --budget-hours 24000 --epochs 90000 --on-demand",
    "spot p3.16xlarge resnet50 --epochs 2000 --trials 20",
    "plan hgx-h100 llama-3.2-1b --nodes 128 --global-batch 2048 --simulate 2",
    "profile p3.16xlarge resnet50 --nodes 128",
    "collective p3.16xlarge --nodes 1024 --bytes 1MiB",
)
NOT_COUNTS = re.compile(
    r"arXiv \d{4}\.\d+|\b20\d\d(-\d\d)?(-\d\d)?\b|\b(data|tensor|context|pipeline) \d+|(--[a-z-]+ |=)\S+|'[^']*'|"
    r"[\w.-]*[A-Za-z_-]\d+\w*"
)
"""Papers, dates, names of layouts, commands, and names with digits."""


@pytest.mark.parametrize("command", COMMANDS)
def test_thousands_have_commas(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 0
    text = capsys.readouterr().out
    plain = NOT_COUNTS.sub("", text)
    assert re.search(r"\d,\d{3}", plain)
    assert re.findall(r"(?<![\d.,])\d{4,}[^\n]{0,30}", plain) == []
