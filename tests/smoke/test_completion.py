"""Does the shell's completion know commands, options and the catalog? Asked as bash asks; oracles: the files of the catalog."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "import sys; sys.argv[0] = 'stallsim'; from sim.cli import main; sys.exit(main())"


def completed(line: str) -> list[str]:
    """What follows the last word of *line* when the tab key is pressed."""
    words = line.split(" ")
    environment = os.environ | {"_STALLSIM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert not done.stderr
    return done.stdout.split()


def named(folder: str, start: str) -> set[str]:
    return {path.stem for path in (ROOT / folder).glob(f"{start}*.yaml")}


def test_names_of_the_catalog() -> None:
    assert set(completed("stallsim run p3.")) == named("hardware", "p3.") != set()
    assert set(completed("stallsim run p3.2xlarge bert-")) == named("workloads", "bert-") != set()
    assert set(completed("stallsim compare p3.2xlarge p4")) == named("hardware", "p4") != set()
    assert set(completed("stallsim compare p3.2xlarge vgg")) == named("workloads", "vgg") != set(), "its last name is the workload"
    assert set(completed("stallsim run p3.2xlarge vgg16 --stack torch-1")) == named("workloads/stacks", "torch-1") != set()


def test_commands_options_and_files() -> None:
    assert completed("stallsim comp") == ["compare"]
    assert completed("stallsim run p3.2xlarge vgg16 --prec") == ["--precision"]
    assert completed("stallsim run ./my") == [], "nothing, so that the shell offers files"
