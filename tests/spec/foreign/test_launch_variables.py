"""Which values do the variables of a script have? Oracle: the shell itself."""

from __future__ import annotations

import shutil
import subprocess
import time

import pytest

from sim.spec.foreign.launch_options import arguments
from sim.spec.foreign.launch_variables import with_values
from sim.spec.yaml import SpecError

READ = [
    "N=128   # number of nodes", "N=128", "N=128;", "N='128'", 'N="128"  # nodes', "export N=128", 'export N="8" M=3', "readonly N=5",
    "declare -i N=5", "A=64 B=2\nN=$(( $A * ${B} ))", "A=2; N=$((A*64))", "N=$((64*2))", 'N="$((64 * 2))"', "N=$(( (1 + 2) * 3 ))",
    "N=$((7/2 + 7%2))", "N=$(( -7 / 2 ))", "N=$(( -7 % 4 + 9 ))", "N=$((2**3))", "N=$((1 << 3))", "N=${N:-128}", "N=${M-4}", "N=${1:-128}",
    'N="${1:-128}"', "N=${A:-${B:-4}}", "N=${M:=4}; N=$M", ": ${N:=4}", ': "${N:=4}"', "A=\nN=${A:-3}", "A=7\nN=${A:-3}",
    "A=1\nA=2\nN=$A", 'A=8; N="$A"', "N=3 && M=2", 'if [ -z "$A" ]; then N=4; fi', '[ -z "$A" ] && N=4',
    "N=${A:-'6'}", "A=4\nN=${A?not set}", "echo \"it's N=5\"; N=6", "# N=7\nN=8", "N=9 # don't", "N=4\nif false; then echo; fi",
]  # fmt: skip


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize("script", READ)
def test_a_variable_has_the_value_that_the_shell_gives_it(script: str) -> None:
    shell = subprocess.run(["bash", "-c", f'{script}\necho "$N"'], capture_output=True, text=True, check=True)
    expected = shell.stdout.strip().splitlines()[-1]
    assert arguments(f"{script}\ntorchrun --nnodes $N --nproc-per-node=${{N}}\n", "job.sh", ("nnodes",)) == {
        "nnodes": expected,
        "nproc-per-node": expected,
    }


UNREAD = [
    "N=$(nproc)", "N=`nproc`", "N=$2", "N=$#", "N=${A:+3}", "N=${HOSTS%%,*}", "N=$((X))", "N=$((1 / 0))", "N=$((8 > 4 ? 1 : 2))",
    "N=$((10**90))", "N=$((1 << 900))", "N=$((9**9**9))", "N=$((0x10))$(nproc)", "N=$(( __import__ ))",
    "for N in 1 2 4; do echo; done", 'N="$A"', "N=$((3.5))", "N=$((010))",
]  # fmt: skip


@pytest.mark.parametrize("script", UNREAD)
def test_what_cannot_be_read_is_an_error_of_an_option_with_a_number(script: str) -> None:
    """Also numbers beyond any count, which would take long to compute."""
    text = f"{script}\ntrain.py --tp $N --name $N\n"
    with pytest.raises(SpecError, match=r"^job\.sh: --tp \$N: its value cannot be read from the script; replace it by a number$"):
        arguments(text, "job.sh", ("tp",))
    assert arguments(text, "job.sh", ()) == {"tp": "$N", "name": "$N"}


def test_a_variable_before_a_command_is_not_one_of_the_script() -> None:
    with pytest.raises(SpecError, match="--tp \\$N: the script does not set this variable"):
        arguments("N=4 train.py --tp $N", "job.sh", ("tp",))
    with pytest.raises(SpecError, match="--tp \\$N: the script does not set this variable"):
        arguments("N=(1 2)\ncat <<< N=4\necho N=5\ntrain.py --tp $N", "job.sh", ("tp",))


def test_variables_of_the_environment_are_passed() -> None:
    assert with_values("--a $SLURM_NNODES --b ${SLURM_NNODES:-3} --c \\$SLURM_NNODES", {"SLURM_NNODES": "2"}) == (
        "--a 2 --b 2 --c \\$SLURM_NNODES"
    )


@pytest.mark.parametrize(
    "text",
    [
        "A0=xxxxxxxx\n" + "".join(f"A{n + 1}=$A{n}$A{n}\n" for n in range(60)) + "train.py --name $A60",
        'N="' + "$(a)" * 50_000, "$(" * 200_000, "${" * 200_000, "N=${" + "a{" * 100_000, "N=$((" + "(" * 200_000,
        '"' * 200_001, "A=" + "x" * 900 + "\n" + "$A" * 200_000,
    ],
    ids=["doubling", "quoted", "commands", "parameters", "braces", "arithmetic", "quotes", "long values"],
)  # fmt: skip
def test_no_script_takes_long_or_much(text: str) -> None:
    """At most four times the 1 MiB of a file is added, and each piece is read a bounded number of times."""
    started = time.process_time()
    assert len(with_values(text, {})) <= len(text) + 5 * 2**20
    assert time.process_time() - started < 10
