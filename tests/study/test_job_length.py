"""Is an absurd length of a job refused at once, in the same words by every command? Oracle: the limits themselves."""

from __future__ import annotations

import pytest

from sim.cli import main
from sim.spec.yaml import SpecError
from sim.study.job_length import LARGEST, require_length

EPOCHS = "--epochs 1e+300: write 1,000,000 or less\n"
COMMANDS = {
    "run p3.16xlarge vgg16 --fast --epochs 1e300": EPOCHS,
    "run hgx-h100 llama-3.1-8b --tp 8 --tokens 1e30": "--tokens 1e30: write 1,000,000T or less\n",
    "goodput p3.16xlarge vgg16 --epochs 1e300": EPOCHS,
    "goodput p3.16xlarge vgg16 --days 1e300": "--days 1e+300: write 36,500 or less\n",
    "compare vgg16 p3.8xlarge --epochs 1e300": EPOCHS,
    "compare vgg16 p3.8xlarge --hours 1e300": "--hours 1e+300: write 876,000 or less\n",
    "recommend vgg16 p3.8xlarge --epochs 1e300 --budget-hours 10": EPOCHS,
    "spot p3.2xlarge resnet50 --epochs 1e300": EPOCHS,
    "spot p3.2xlarge resnet50 --steps 1e300": "--steps 1e+300: write 1,000,000,000,000 or less\n",
    "plan hgx-h100 llama-3.1-8b --tokens 1e30": "--tokens 1e30: write 1,000,000T or less\n",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_absurd_lengths_are_refused(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main(command.split()) == 2
    assert capsys.readouterr().err == COMMANDS[command]


def test_what_a_message_says_is_accepted() -> None:
    for option, most in LARGEST.items():
        require_length(option, most)
        with pytest.raises(SpecError, match="or less"):
            require_length(option, most * 1.1)
    for wrong in (0.0, -1.0, float("nan"), float("inf"), "3", True):
        with pytest.raises(SpecError, match=r"--budget-usd .*: write "):
            require_length("--budget-usd", wrong)  # type: ignore[arg-type]
