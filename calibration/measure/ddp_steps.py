"""How long do training steps of a model take on each rank? Warm up, then time whole steps on synthetic data.

A step is forward, loss, backward and SGD with momentum (or AdamW). The model is wrapped in torch's DistributedDataParallel (Gloo on CPUs,
NCCL on CUDA), or not wrapped if there is no exchange. `run_rank` runs one rank, with RANK, WORLD_SIZE and LOCAL_RANK set as by
``torchrun``; it uses the existing process group or creates one. `spawn` starts all ranks on this machine, each with a command prefix of
the caller's choice (``taskset``, ``ip netns exec``). Ranks synchronize only before the first timed step, so a step includes waiting for
slower ranks. Limits: labels and token ids are zeros; one GPU per rank.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Final, Literal, NoReturn, get_args

from sim.spec.yaml import SpecError

StepPrecision = Literal["fp32", "tf32", "amp_fp16", "amp_bf16", "bf16"]

TIMEOUT: Final = 300.0
"""Timeout (s) of a rank that waits for another."""
MOST_STEPS: Final = 200
_PROFILED: Final = 9
"""Steps of a profile; readers skip the first."""
_POLL: Final = 0.02
"""Interval (s) between polls of the ranks' processes; it does not affect the measured times."""
RESULT_PREFIX: Final = "stallsim-steps:"
"""Prefix of the line on which a rank's process prints its result; the model may print other lines."""


@dataclass(frozen=True)
class StepRequest:
    """Which steps to run; *model* and *inputs* are written as for ``stallsim extract``."""

    model: str
    """``module:callable`` or ``file.py:callable``, called with *arguments*."""
    inputs: tuple[str, ...]
    """``[NAME=]SHAPE[:TYPE]`` each, without the batch, or one ``@module:callable`` that returns the inputs for a batch size."""
    batch: int
    """Samples per rank."""
    steps: int = 10
    warmup: int = 3
    """torch's DDP rebuilds its buckets after the first step."""
    exchange: bool = True
    """Exchange gradients; else every rank computes independently, at the same time as the others."""
    precision: StepPrecision = "fp32"
    arguments: tuple[str, ...] = ()
    """``KEY=VALUE`` each."""
    threads: int = 1
    """Threads of torch's CPU kernels, per rank."""
    seconds: float = 0.0
    """If set, time more than *steps* steps, until they take about this long in total, up to `MOST_STEPS`."""
    device: Literal["", "cpu"] = ""
    """Empty: use a GPU if there is one."""
    bucket_mib: int = 25
    """``bucket_cap_mb`` of torch's DistributedDataParallel; this is its default."""
    optimizer: Literal["momentum", "adamw"] = "momentum"
    trace: str = ""
    """Folder for a profile of each rank, of a few steps after the timed ones; empty: no profile."""

    def __post_init__(self) -> None:
        """Raise SpecError if a count is too small or the precision is unknown."""
        for name, least in (("batch", 1), ("steps", 1), ("warmup", 0), ("threads", 1)):
            if getattr(self, name) < least:
                raise SpecError(f"{name}: {getattr(self, name)} is less than {least}")
        if self.precision not in get_args(StepPrecision):
            raise SpecError(f"precision: '{self.precision}' is not one of {', '.join(get_args(StepPrecision))}")


@dataclass(frozen=True)
class RankSteps:
    """The measurements of one rank."""

    rank: int
    times: tuple[float, ...]
    """Time (s) of each timed step, from its begin to the begin of the next."""
    cpu_time: float
    """Mean processor time (s) per step, user and system, of this rank's process."""
    parameters: int
    parts: Mapping[str, float] = field(default_factory=dict)
    """Time (s) of each part of a step, if parts were measured."""
    sent: float = 0.0
    """Mean bytes per step that left the host, if they were counted."""

    @property
    def median(self) -> float:
        """Return the median step time (s)."""
        return statistics.median(self.times)


NextInputs = Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
"""Returns the positional and keyword inputs of the next batch, on the host or the device."""


def run_rank(
    request: StepRequest, next_inputs: NextInputs | None = None, afterwards: Callable[[Callable[[], None]], None] = lambda step: None
) -> RankSteps:
    """Run the steps of *request* as one rank; *next_inputs* provides batches, by default the same synthetic batch for every step.

    When all steps have been timed, *afterwards* is called with a function that runs one more step.

    Raise SpecError if the model cannot be built or run, or if another rank fails.
    """
    import torch
    import torch.distributed as dist

    from sim.extract import target

    device = device_of(request)
    with _process_group(device):
        torch.set_num_threads(request.threads)
        torch.manual_seed(0)
        model = _model(request).to(device, torch.bfloat16 if request.precision == "bf16" else None)
        try:
            batches = next_inputs or _same_batch(request, model, device)
            wrapped = _wrapped(model, device, request.bucket_mib) if request.exchange and _ranks() > 1 else model
            step = _step(wrapped, request, batches, device)
            times, cpu_time = time_steps(step, request, device)
            if request.trace:
                write_profile(step, Path(request.trace), device)
            afterwards(step)
        except SpecError:
            raise
        except Exception as error:
            raise SpecError(f"{request.model}: a training step failed: {target.error_line(error)}") from error
        rank = dist.get_rank() if dist.is_initialized() else 0
        return RankSteps(rank, tuple(times), cpu_time, sum(parameter.numel() for parameter in model.parameters()))


def device_of(request: StepRequest) -> Any:
    """Return the device on which this rank's steps run; a GPU also becomes the current device."""
    import torch

    if request.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


@contextmanager
def _process_group(device: Any) -> Iterator[None]:
    """Join the process group unless this process has joined one already, and leave it at the end."""
    import torch.distributed as dist

    joined = _join(device)
    try:
        yield
    finally:
        if joined:
            dist.destroy_process_group()


def _join(device: Any) -> bool:
    """Join the ranks that the environment specifies, if there are others and no group yet; return whether it joined."""
    import datetime

    import torch.distributed as dist

    if dist.is_initialized() or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return False
    backend = "nccl" if device.type == "cuda" else "gloo"
    meeting = os.environ.get("STALLSIM_MEETING", "env://")
    place = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    dist.init_process_group(backend, init_method=meeting, timeout=datetime.timedelta(seconds=TIMEOUT), **place)
    return True


def _ranks() -> int:
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_initialized() else 1


def _model(request: StepRequest) -> Any:
    import torch

    from sim.extract import target

    make, arguments = target.load_target(request.model), target.parse_arguments(request.arguments)
    try:
        model = make(**arguments)
    except Exception as error:
        raise SpecError(f"{request.model}: calling it failed: {target.error_line(error)}") from error
    if not isinstance(model, torch.nn.Module) or not any(parameter.requires_grad for parameter in model.parameters()):
        raise SpecError(f"{request.model}: returned {type(model).__name__}; expected a torch.nn.Module with trainable parameters")
    return model.train()


def _same_batch(request: StepRequest, model: Any, device: Any) -> NextInputs:
    """Return a function that returns the same synthetic batch on *device* every time."""
    from sim.extract import target

    if len(request.inputs) == 1 and request.inputs[0].startswith("@"):
        inputs = target.load_target(request.inputs[0][1:])(request.batch)
        positional, named = ((), dict(inputs)) if isinstance(inputs, Mapping) else (inputs if isinstance(inputs, tuple) else (inputs,), {})
    else:
        shapes = [target.parse_input(text) for text in request.inputs]
        target.check_inputs(model.forward, shapes)
        positional = tuple(_tensor(shape, request.batch) for shape in shapes if not shape.name)
        named = {shape.name: _tensor(shape, request.batch) for shape in shapes if shape.name}
    moved = _moved((positional, named), device)
    return lambda: moved


def _tensor(shape: Any, batch: int) -> Any:
    import torch

    dtype = getattr(torch, shape.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise SpecError(f"input {shape.name}: {shape.dtype} is not a torch dtype; for example, write 3x224x224:float32 or 384:int64")
    sizes = shape.sizes(batch)
    return torch.randn(sizes, dtype=dtype) if dtype.is_floating_point else torch.zeros(sizes, dtype=dtype)


def _moved(inputs: Any, device: Any) -> Any:
    import torch
    from torch.utils._pytree import tree_map

    return tree_map(lambda value: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value, inputs)


def _wrapped(model: Any, device: Any, bucket_mib: int) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None, bucket_cap_mb=bucket_mib)


def write_profile(step: Callable[[], None], folder: Path, device: Any) -> None:
    """Write a profile of a few steps of this rank into *folder*."""
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, schedule

    rank = dist.get_rank() if dist.is_initialized() else 0
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=kinds, record_shapes=True, schedule=schedule(wait=0, warmup=2, active=_PROFILED, repeat=1)) as profiler:
        for _ in range(2 + _PROFILED):
            step()
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"rank{rank}.json"))


def _step(model: Any, request: StepRequest, next_inputs: NextInputs, device: Any) -> Callable[[], None]:
    """Return a function that runs one step of *model*."""
    import torch

    precision = request.precision
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    low = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}.get(precision)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "amp_fp16" and device.type == "cuda")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer: Any = torch.optim.SGD(trained, lr=1e-6, momentum=0.9)
    if request.optimizer == "adamw":
        optimizer = torch.optim.AdamW(trained, lr=1e-6)

    def step() -> None:
        positional, named = _moved(next_inputs(), device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=low, enabled=low is not None):
            loss = _loss(model(*positional, **named))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def _loss(output: Any) -> Any:
    """Return the model's output if it is a loss, else cross-entropy over the last dimension of its outputs, as layer tables do."""
    import torch

    from sim.extract.trace import differentiable

    outputs = differentiable(output)
    if (scalar := next((tensor for tensor in outputs if tensor.ndim == 0), None)) is not None:
        return scalar
    rows = [tensor.reshape(-1, tensor.shape[-1]) for tensor in outputs if tensor.ndim > 1]
    if not rows:
        raise SpecError("the model cannot be trained: it returns no floating-point tensor that depends on a parameter")
    return sum(torch.nn.functional.cross_entropy(logits, logits.new_zeros(len(logits), dtype=torch.int64)) for logits in rows)


def time_steps(step: Callable[[], None], request: StepRequest, device: Any) -> tuple[list[float], float]:
    """Return the time (s) of each timed step, and the mean processor time (s) per step."""
    import torch
    import torch.distributed as dist

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    begin = time.perf_counter()
    for _ in range(request.warmup):
        begin = time.perf_counter()
        step()
        wait()
    count = _agreed_count(request, time.perf_counter() - begin, device)
    if dist.is_initialized():
        dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    marks, cpu_time = [time.perf_counter()], time.process_time()
    for _ in range(count):
        step()
        wait()
        marks.append(time.perf_counter())
    cpu_time = (time.process_time() - cpu_time) / count
    return [end - begin for begin, end in pairwise(marks)], cpu_time


def prepare_model(request: StepRequest, device: Any) -> tuple[Any, NextInputs, Callable[[Any], Any]]:
    """Return the model on *device*, a function that returns its batches, and its loss function, for callers that run steps themselves."""
    model = _model(request).to(device)
    return model, _same_batch(request, model, device), _loss


def _agreed_count(request: StepRequest, last: float, device: Any) -> int:
    """Return the number of steps that all ranks time; the *last* warm-up step took this many seconds on this rank."""
    import torch
    import torch.distributed as dist

    count = request.steps
    if request.seconds and request.warmup:
        count = max(count, min(MOST_STEPS, round(request.seconds / last)))
    if dist.is_initialized() and request.seconds:
        proposed = torch.tensor([count], device=device)
        dist.all_reduce(proposed, dist.ReduceOp.MIN)
        count = int(proposed.item())
    return count


def spawn(
    request: StepRequest,
    ranks: int,
    before: Callable[[int], Sequence[str]] = lambda rank: (),
    environment: Mapping[str, str] | None = None,
    limit: float = 2 * TIMEOUT,
    program: Sequence[str] = ("calibration.measure.ddp_steps",),
) -> list[RankSteps]:
    """Run *request* in *ranks* processes on this machine and return their results; *before* gives the command prefix of each rank.

    *program* is the module that runs a rank, followed by additional arguments. Without MASTER_ADDR in *environment* the ranks rendezvous
    over a file. Raise SpecError, with all processes ended, if a rank fails or *limit* seconds pass.
    """
    with tempfile.TemporaryDirectory() as folder:
        meeting = {} if environment and "MASTER_ADDR" in environment else {"STALLSIM_MEETING": f"file://{folder}/ranks"}
        shared = os.environ | {"OMP_NUM_THREADS": str(request.threads), "WORLD_SIZE": str(ranks)} | meeting | dict(environment or {})
        started: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        try:
            for rank in range(ranks):
                output: IO[bytes] = (Path(folder) / f"{rank}.txt").open("w+b")
                own = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                command = [*before(rank), sys.executable, "-m", program[0], json.dumps(asdict(request)), *program[1:]]
                started.append((subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=own), output))
            _wait([process for process, _ in started], [output for _, output in started], limit)
            return [_result(output) for _, output in started]
        finally:
            for process, output in started:
                process.kill()
                process.wait()
                output.close()


def _wait(processes: Sequence[subprocess.Popen[bytes]], outputs: Sequence[IO[bytes]], limit: float) -> None:
    """Wait until all *processes* have succeeded; raise SpecError if one fails or *limit* seconds have passed."""
    end = time.monotonic() + limit
    while None in (codes := [process.poll() for process in processes]):
        if any(codes):
            break
        if time.monotonic() > end:
            raise SpecError(f"rank {codes.index(None)} did not finish within {limit:g} s")
        time.sleep(_POLL)
    failed = [rank for rank, code in enumerate(codes) if code]
    if failed:  # a rank that a signal ended died first and caused the other failures
        rank = min(failed, key=lambda number: codes[number] or 0)
        raise SpecError(f"rank {rank} {_ending(codes[rank] or 0)}: {_last_line(outputs[rank])}")


def _ending(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else "failed"


def _last_line(output: IO[bytes]) -> str:
    output.seek(0)
    lines = [line for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


def _result(output: IO[bytes]) -> RankSteps:
    output.seek(0)
    for line in reversed(output.read().decode(errors="replace").splitlines()):
        if line.startswith(RESULT_PREFIX):
            fields = json.loads(line.removeprefix(RESULT_PREFIX))
            return RankSteps(**fields | {"times": tuple(fields["times"])})
    raise SpecError(f"a rank ended without a result: {_last_line(output)}")


def read_request(text: str) -> StepRequest:
    """Return the steps that the JSON document *text* requests."""
    fields = json.loads(text)
    return StepRequest(**fields | {"inputs": tuple(fields["inputs"]), "arguments": tuple(fields.get("arguments", ()))})


def join(request: StepRequest) -> None:
    """Join the ranks that the environment specifies, if there are others and no group yet."""
    _join(device_of(request))


def main(arguments: Sequence[str], next_inputs: NextInputs | None = None) -> int:
    """Run the steps of the JSON document *arguments*[0] as one rank, with batches from *next_inputs*, and print the result on stdout."""
    try:
        request = read_request(arguments[0])
        join(request)  # without leaving the group later: Gloo's threads may abort a process that does
        print(RESULT_PREFIX + json.dumps(asdict(run_rank(request, next_inputs))), flush=True)
    except SpecError as error:
        print(error, file=sys.stderr, flush=True)
        return 2
    return 0


def exit_now(code: int) -> NoReturn:
    """End this rank's process at once, without running the destructors of communication threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    exit_now(main(sys.argv[1:]))
