"""The program that commands register with, each in its file."""

from sim.commands.help import Program

app = Program(
    {
        "One job": "run ui whatif profile collective show goodput spot",
        "Choose": "compare recommend plan batches prices",
        "Many runs": "sweep share diff study",
        "Descriptions": "list check new extract schema",
    },
    name="stallsim",
    help="Predict how a training job will run on a machine, and where its time goes, before any GPU is rented.",
    epilog="Examples:\n"
    "  python -m sim run p3.16xlarge vgg16\n"
    "  python -m sim recommend resnet50 p3.8xlarge p3.16xlarge --budget-hours 24 --epochs 90",
)
