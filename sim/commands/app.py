"""The program that commands register with, each in its file."""

import typer

app = typer.Typer(
    name="stallsim",
    help="Predict how a training job will run on a machine, and where its time goes, before any GPU is rented.",
    epilog="Example:  python -m sim run hardware/p3.16xlarge.yaml workloads/vgg16.yaml",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
