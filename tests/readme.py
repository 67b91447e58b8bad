"""Which output belongs into README.md? Runs the commands it shows and puts what they print below them.

A block begins with ``<!-- run: COMMAND -->`` and ends with ``<!-- end -->``; ``make readme`` renews it, a test compares it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(r"<!-- run: (?P<command>.+?) -->\n(?P<body>.*?)<!-- end -->", re.DOTALL)


def output(command: str) -> str:
    """Return what *command* prints when typed in the project's folder."""
    words = shlex.split(command)
    if words[0] == "python":
        words[0] = sys.executable
    environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "160", "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True, encoding="utf-8").stdout


def block(command: str) -> str:
    """Return the whole block of *command*, freshly run."""
    return f"<!-- run: {command} -->\n```\n$ {command}\n{output(command).rstrip()}\n```\n<!-- end -->"


def renewed(text: str) -> str:
    """Return README *text* with every block renewed."""
    return BLOCK.sub(lambda match: block(match["command"]), text)


if __name__ == "__main__":
    README.write_text(renewed(README.read_text(encoding="utf-8")), encoding="utf-8")
