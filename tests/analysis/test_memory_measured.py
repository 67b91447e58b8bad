"""Every batch that somebody trained on a GPU must fit on it. Oracle: the largest batches of published measurements.

Batch per GPU as in Oneflow-Inc/DLPerf (V100, torch and NGC PyTorch), petuum/adaptdl osdi21-artifact (T4), siasosp23/artifacts (V100-32GB,
A100-40GB, RTX 6000), stanford-futuredata/gavel (V100, P100 and K80 of 16, 16 and 12 GB), lambdal/deeplearning-benchmark (all others),
NVIDIA/DeepLearningExamples (BERT pretraining) and the TensorFlow benchmarks page of 2017 (P100). Lambda's BERT in FP16 is apex O2: the
whole model in FP16 beside FP32 masters of weights and gradients, and FP32 state: 12 bytes a parameter more than FP16 alone.
"""

from __future__ import annotations

from calibration.catalog.compute_model import ROWS, workload_and_gpu
from calibration.run_records import read_records
from sim.analysis.memory import gpu_memory, largest_batch
from sim.spec.hardware import Gpu
from sim.spec.library import load_part, load_workload
from tests.for_each import for_each

RAN = [
    # workload, GPU, precision, optimizer, largest batch
    ("resnet50", "v100-sxm2-16gb", "fp32", "momentum", 128),
    ("resnet50", "v100-sxm2-16gb", "amp_fp16", "momentum", 256),
    ("bert-base-seq128", "v100-sxm2-16gb", "fp32", "adam", 48),
    ("bert-base-seq128", "v100-sxm2-16gb", "amp_fp16", "adam", 96),
    ("bert-base-seq384", "t4", "fp32", "adam", 12),
    ("deepspeech2", "t4", "fp32", "momentum", 80),
    ("ncf", "t4", "fp32", "adam", 32768),
    ("cifar10-resnet18", "t4", "fp32", "momentum", 1024),
    ("resnet50", "t4", "amp_fp16", "momentum", 200),
    ("bert-base-seq384", "v100-sxm2-32gb", "fp32", "adam", 36),
    ("deepspeech2", "v100-sxm2-32gb", "fp32", "momentum", 240),
    ("cifar10-resnet18", "v100-sxm2-32gb", "fp32", "momentum", 3072),
    ("resnet50", "v100-sxm2-32gb", "amp_fp16", "momentum", 600),
    ("yolov3", "v100-sxm2-32gb", "amp_fp16", "momentum", 24),
    ("bert-base-seq384", "a100-sxm4-40gb", "tf32", "adam", 48),
    ("deepspeech2", "a100-sxm4-40gb", "tf32", "momentum", 320),
    ("cifar10-resnet18", "a100-sxm4-40gb", "tf32", "momentum", 4096),
    ("resnet50", "a100-sxm4-40gb", "amp_fp16", "momentum", 800),
    ("yolov3", "a100-sxm4-40gb", "amp_fp16", "momentum", 32),
    ("bert-base-seq384", "quadrortx6000", "fp32", "adam", 24),
    ("deepspeech2", "quadrortx6000", "fp32", "momentum", 160),
    ("cifar10-resnet18", "quadrortx6000", "fp32", "momentum", 2048),
    ("resnet50", "quadrortx6000", "amp_fp16", "momentum", 400),
    ("yolov3", "quadrortx6000", "amp_fp16", "momentum", 16),
    ("resnet50", "p100-pcie-16gb", "fp32", "momentum", 128),
    ("lstm-wikitext2", "k80", "fp32", "sgd", 80),
    ("recoder-ml20m", "k80", "fp32", "adam", 8192),
    ("transformer-multi30k", "p100-pcie-16gb", "fp32", "adam", 256),
    ("resnet50", "quadrortx6000", "amp_fp16", "momentum", 448),
    ("resnet50", "quadrortx6000", "fp32", "momentum", 224),
    ("resnet50", "rtxa6000", "amp_fp16", "momentum", 928),
    ("resnet50", "rtxa6000", "tf32", "momentum", 496),
    ("resnet50", "h100-sxm5-80gb", "amp_fp16", "momentum", 1280),
    ("resnet50", "h100-sxm5-80gb", "tf32", "momentum", 640),
    ("ssd300", "v100-sxm2-16gb", "fp32", "momentum", 48),
    ("ssd300", "v100-sxm2-16gb", "amp_fp16", "momentum", 96),
    ("ssd300", "a100-sxm4-40gb", "amp_fp16", "momentum", 224),
    ("ssd300", "a100-sxm4-80gb", "tf32", "momentum", 256),
    ("ssd300", "rtxa6000", "tf32", "momentum", 144),
    ("bert-base-seq384", "v100-sxm2-16gb", "fp32", "adam", 24),
    ("bert-base-seq384", "v100-sxm2-16gb", "apex_O2", "adam", 48),
    ("bert-base-seq384", "a100-sxm4-80gb", "apex_O2", "adam", 320),
    ("bert-base-seq384", "rtxa6000", "apex_O2", "adam", 192),
    ("bert-large-seq384", "v100-sxm2-16gb", "fp32", "adam", 8),
    ("bert-large-seq384", "v100-sxm2-16gb", "apex_O2", "adam", 16),
    ("bert-large-seq384", "a100-sxm4-40gb", "apex_O2", "adam", 48),
    ("bert-large-seq384", "a100-sxm4-40gb", "tf32", "adam", 28),
    ("bert-large-seq384", "a100-sxm4-80gb", "tf32", "adam", 64),
    ("bert-large-seq384", "rtxa6000", "tf32", "adam", 32),
    ("gnmt", "gtx1080ti", "fp32", "adam", 108),
    ("gnmt", "rtx2080ti", "amp_fp16", "adam", 160),
    ("gnmt", "a100-sxm4-40gb", "tf32", "adam", 512),
    ("gnmt", "a100-sxm4-80gb", "amp_fp16", "adam", 1520),
    ("transformer-xl-base", "v100-sxm2-16gb", "fp32", "adam", 8),
    ("transformer-xl-base", "v100-sxm2-16gb", "amp_fp16", "adam", 16),
    ("transformer-xl-base", "a100-sxm4-40gb", "amp_fp16", "adam", 52),
    ("transformer-xl-base", "gtx1080ti", "fp32", "adam", 4),
    ("transformer-xl-large", "v100-sxm2-16gb", "fp32", "adam", 2),
    ("transformer-xl-large", "v100-sxm2-16gb", "amp_fp16", "adam", 4),
    ("transformer-xl-large", "a100-sxm4-80gb", "tf32", "adam", 24),
    ("bert-large-seq128", "v100-sxm2-32gb", "amp_fp16", "lamb", 64),
    ("bert-large-seq128", "v100-sxm2-32gb", "fp32", "lamb", 32),
    ("bert-large-seq512", "v100-sxm2-32gb", "amp_fp16", "lamb", 8),
    ("bert-large-seq512", "a100-sxm4-80gb", "amp_fp16", "lamb", 32),
    ("alexnet", "p100-sxm2-16gb", "fp32", "sgd", 512),
    ("inception_v3", "p100-sxm2-16gb", "fp32", "sgd", 64),
    ("resnet152", "p100-sxm2-16gb", "fp32", "sgd", 64),
    ("vgg16", "p100-sxm2-16gb", "fp32", "sgd", 64),
]


@for_each(RAN)
def test_what_ran_fits(name: str, gpu: str, precision: str, optimizer: str, batch: int) -> None:
    masters = 12 if precision == "apex_O2" else 0
    kind = "fp16" if masters else precision
    settings = {"precision": kind, "optimizer.name": optimizer, "batch": batch}
    workload = load_workload(name, [f"training.{key}={value}" for key, value in settings.items()]).spec
    device = load_part(Gpu, gpu)
    assert gpu_memory(workload, device).total + masters * workload.model.parameters <= device.memory
    assert masters or largest_batch(workload, device) >= batch


def test_every_row_that_compute_is_judged_by_fits() -> None:
    """All 1-GPU rows of the committed records, as they are described; Lambda's BERT in FP16 as apex O2 again."""
    for record in {
        (row.hardware, row.workload, row.stack, row.precision, row.batch_per_gpu): row for row in read_records(ROWS).records
    }.values():
        workload, device = workload_and_gpu(record)
        masters = 0
        if record.precision == "amp_fp16" and record.workload in ("bert-base-seq384", "bert-large-seq384"):
            masters = 12 * workload.model.parameters
            workload = workload.with_training(precision="fp16")
        assert gpu_memory(workload, device).total + masters <= device.memory, record.where
