"""Does a scenario become the run that was named? Oracles: what it should change, and the sentences of what contradicts itself."""

from __future__ import annotations

import re
import shlex

import pytest

from sim.analysis.memory import gpu_memory
from sim.cli import main
from sim.spec.yaml import SpecError
from sim.study.infeasible import Infeasible
from sim.study.layout_options import layout_of
from sim.study.scenario import Scenario, answer, batch_of, market_of, prepare, split_overrides
from sim.study.space import axis


def test_max_fits_and_one_more_does_not() -> None:
    """Oracle: the refusal of a batch that does not fit."""
    question = prepare(Scenario("p3.16xlarge", "vgg16", batch="max"))
    workload = question.jobs[0].workload
    most, gpu = workload.training.batch, question.hardware.groups[0].node.gpu
    assert most > 64
    assert gpu_memory(workload, gpu, ranks=8).total <= gpu.memory
    with pytest.raises(SpecError, match=f"the largest batch that fits is {most}"):
        prepare(Scenario("p3.16xlarge", "vgg16", batch=most + 1))


def test_max_of_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(SpecError, match="--batch max: batch 1 per GPU needs "):
        prepare(Scenario("p3.2xlarge", "gpt2-xl", batch="max", precision="fp32"))


@pytest.mark.parametrize("text", ["0", "-3", "many", "3.5", "²", ""])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="1 or more, or max"):
        batch_of(text)


@pytest.mark.parametrize("text", ["16..64", "16..64:4", "1..64:log4", "16,32"])
def test_several_batches_are_for_a_sweep(text: str) -> None:
    """Oracle: the sweep's own reading of what the message suggests."""
    with pytest.raises(SpecError) as raised:
        batch_of(text)
    (varied,) = re.findall(r"--vary (batch=\S+)", str(raised.value))
    assert len(axis(varied).values) > 1


def test_numbers() -> None:
    assert (batch_of("12"), batch_of("max")) == (12, "max")


def test_overrides_go_to_the_description_whose_key_they_begin_with() -> None:
    texts = ["node.nic.bandwidth=1 Gbps; input.num_workers=3", "training.batch=4", ";groups.0.count=2;"]
    assert split_overrides(texts) == (["node.nic.bandwidth=1 Gbps", "groups.0.count=2"], ["input.num_workers=3", "training.batch=4"])


def test_an_option_and_an_equal_override_are_one() -> None:
    question = prepare(Scenario("p3.2xlarge", "alexnet", ("training.precision=amp_fp16;training.batch=8",), precision="amp_fp16", batch=8))
    assert (question.jobs[0].workload.training.precision, question.jobs[0].workload.training.batch) == ("amp_fp16", 8)


def test_an_override_may_refine_what_an_option_sets() -> None:
    question = prepare(Scenario("p3.8xlarge", "alexnet", ("training.stack.bucket_cap=7 MiB",), stack="torch-2.x-ddp"))
    assert question.jobs[0].workload.training.stack.exchange.bucket_cap == 7 * 2**20


_STEPS = "gradient_accumulation_steps"


@pytest.mark.parametrize(
    ("scenario", "sentence"),
    [
        (Scenario("p3.8xlarge", "alexnet", gpus=2, placement="2"), "--gpus and --placement: write one of the two"),
        (Scenario("p3.8xlarge", "alexnet", batch=8, global_batch=64), "--batch and --global-batch: write one of the two"),
        (Scenario("p3.8xlarge", "alexnet", nodes=3, placement="1+1"), "the placement covers 2 nodes"),
        (
            Scenario("p3.8xlarge", "alexnet", ("training.batch=1",), batch=2),
            "--set training.batch=1 and --batch 2: write one of the two, or the same value",
        ),
        (Scenario("p3.8xlarge", "alexnet", ("training.batch=1",), batch="max"), "--set training.batch=1 and --batch max: write one of"),
        (
            Scenario("p3.8xlarge", "alexnet", ("input.num_workers=1; training.precision=fp32",), precision="amp_fp16"),
            "--set training.precision=fp32 and --precision amp_fp16: write one of the two",
        ),
        (
            Scenario("p3.8xlarge", "alexnet", ("training.stack={extends: torch-2.x-ddp}",), stack="megatron-core"),
            "--set training.stack={extends: torch-2.x-ddp} and --stack megatron-core: write one of the two",
        ),
        (
            Scenario("p3.8xlarge", "alexnet", ("training.parallel={}",), layout=(("--tp", "parallel.tensor", 2),)),
            "--set training.parallel={} and --tp 2: write one of the two",
        ),
        (Scenario("p3.8xlarge", "llama-3.2-1b", ("model.sequence=512",), sequence=256), "--set model.sequence=512 and --sequence 256: "),
        (
            Scenario("p3.8xlarge", "alexnet", ("training.batch=16",), global_batch=16),
            "--set training.batch=16 and --global-batch 16: write one of the two",
        ),
        (
            Scenario("p3.8xlarge", "alexnet", ("training.parallel.micro_batches=2",), layout=(("--micro-batches", _STEPS, 4),)),
            "--set training.parallel.micro_batches=2 and --micro-batches 4: write one of the two, or the same value",
        ),
        (Scenario("p3.8xlarge", "alexnet", global_batch=6), "does not divide evenly over 4 GPUs; write 4"),
        (Scenario("p3.8xlarge", "alexnet", ("nodee.nic=1",)), "unknown key 'nodee'; did you mean 'node'?"),
        (Scenario("p3.8xlarge", "alexnet", ("nic.bandwidth=1 Gbps",)), "unknown key 'nic'; did you mean 'node.nic.bandwidth'?"),
        (
            Scenario("p3.8xlarge", "alexnet", ("nvlink.bandwidth=50 GB/s",)),
            "unknown key 'nvlink'; did you mean 'node.topology.nvlink.link.bandwidth'?",
        ),
        (
            Scenario("p3.8xlarge", "alexnet", ("storage.read_bandwidth=1 GB/s",)),
            "unknown key 'storage'; did you mean 'node.storage.bandwidth'?",
        ),
        (Scenario("p3.8xlarge", "alexnet", ("nvlink.links=2",)), "unknown key 'nvlink'; did you mean 'node.topology.nvlink.link'?"),
        (Scenario("p3.8xlarge", "alexnet", ("volume.zzz=2",)), "unknown key 'volume'; keys start with one of"),
        (Scenario("p3.8xlarge", "alexnet", ("sequence=128",)), "unknown key 'sequence'; did you mean 'model.sequence'?"),
        (Scenario("p3.8xlarge", "alexnet", (" ",)), "--set '': write KEY=VALUE"),
        (Scenario("p3.16xlarge", "four-on-eight-gpus", gpus=2), "--gpus 2: a jobs file sets this for each job"),
        (Scenario("p3.16xlarge", "four-on-eight-gpus", layout=layout_of([], tensor=2)), "--tp 2: a jobs file sets this for each job"),
        (
            Scenario("p3.16xlarge", "four-on-eight-gpus", layout=layout_of(["pp=2"])),
            "--parallel pp=2: a jobs file sets this for each job",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_in_a_sentence(scenario: Scenario, sentence: str) -> None:
    with pytest.raises(SpecError) as raised:
        prepare(scenario)
    assert sentence in str(raised.value)


def test_too_few_gpus_are_infeasible_and_tell_how_many_were_asked_for() -> None:
    with pytest.raises(Infeasible) as raised:
        prepare(Scenario("p3.2xlarge", "gpt2-xl", precision="fp32", nodes=3))
    assert (raised.value.nodes, raised.value.gpus) == (3, 3) and raised.value.brief


def test_a_global_batch_is_divided() -> None:
    """By hand: 96 samples over 2 nodes of 4 GPUs, 3 micro-batches each."""
    scenario = Scenario("p3.8xlarge", "alexnet", ("training.gradient_accumulation_steps=3",), nodes=2, global_batch=96)
    assert prepare(scenario).jobs[0].workload.training.batch == 4


def test_a_placement_grows_a_machine_of_one_node() -> None:
    question = prepare(Scenario("p3.8xlarge", "alexnet", placement="1+2+4"))
    assert question.hardware.groups[0].count == 3 and question.jobs[0].ranks == 7


@pytest.mark.parametrize(("text", "market"), [("on-demand", "on_demand"), ("spot", "spot")])
def test_markets(text: str, market: str) -> None:
    assert market_of(text) == market


@pytest.mark.parametrize(("text", "hint"), [("spott", "did you mean spot?"), ("x", "write on-demand or spot")])
def test_no_market(text: str, hint: str) -> None:
    with pytest.raises(SpecError, match=f"--market {text}: {hint[:12]}"):
        market_of(text)


def test_equal_scenarios_have_equal_fingerprints_and_others_do_not() -> None:
    base = Scenario("p3.2xlarge", "alexnet")
    prints = [answer(scenario).inputs for scenario in (base, base, Scenario("p3.2xlarge", "alexnet", batch=8))]
    assert prints[0] == prints[1]
    assert prints[0]["workload"] != prints[2]["workload"] and prints[0]["hardware"] == prints[2]["hardware"]


@pytest.mark.parametrize(
    "setting", ["recompute_blocks=2", "recompute_modules=[mlp]", "recompute_saves=[attention.qkv]", "stack.launch_blocking=true"]
)
def test_plain_data_parallelism_refuses_settings_of_layouts(setting: str) -> None:
    """They would change nothing there: a step with them took as long as one without."""
    overrides = ("training.activation_checkpointing=blocks", f"training.{setting}")
    name = setting.partition("=")[0]
    with pytest.raises(
        SpecError, match=rf"^training\.{name}: applies only to layouts; write one, such as --stack torch.*, or leave it out$"
    ):
        answer(Scenario("hgx-h100", "llama-3.2-1b", overrides=overrides))


@pytest.mark.parametrize(("machine", "model"), [("p3.16xlarge", "resnet50"), ("hgx-h100", "gpt2")])
@pytest.mark.parametrize("setting", ["input.stream={store: object-store}", "training.noise.compute_correlation=10 ms"])
def test_what_only_layouts_have_names_a_layout_that_runs(
    machine: str, model: str, setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the workload names a stack that has no layouts, whose own refusal had followed."""
    words = ["run", machine, model, "--set", setting, "--fast"]
    assert main(words) == 2
    option = re.search(r"write one, such as (--.+), or leave it out", capsys.readouterr().err)
    assert option is not None
    assert main([*words, *shlex.split(option[1])]) == 0, capsys.readouterr().err
