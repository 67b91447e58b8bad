"""How long do training steps of a model take here, on each rank? Warm up, then time whole steps on synthetic data.

A step is forward, loss, backward and SGD with momentum (or AdamW), wrapped in torch's DistributedDataParallel (Gloo on CPUs, NCCL on
CUDA) or, without exchange, in nothing. `run_rank` is one rank: its place comes from RANK, WORLD_SIZE and LOCAL_RANK as ``torchrun``
sets them, its process group is joined if there is one, else made. `spawn` starts all ranks on this machine, each behind a command of
the caller's choice (``taskset``, ``ip netns exec``). Ranks meet before the first timed step only, so a step includes its wait for
slower ranks.
Limits: labels and token numbers are zeros; one GPU per rank.
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

LIMIT: Final = 300.0
"""Seconds that a rank waits for another before it gives up."""
MOST_STEPS: Final = 200
_PROFILED: Final = 9
"""Steps of a profile, of which readers leave the first out."""
_POLL: Final = 0.02
"""Seconds between two looks at the ranks' processes; nothing is timed with it."""
DONE: Final = "stallsim-steps:"
"""What the line begins with on which a rank's process hands over its result; the model may print as well."""


@dataclass(frozen=True)
class StepsWanted:
    """Which steps to run; *model* and *inputs* are written as for ``stallsim extract``."""

    model: str
    """``module:callable`` or ``file.py:callable``, called with *arguments*."""
    inputs: tuple[str, ...]
    """``[NAME=]SHAPE[:TYPE]`` each, without the batch, or one ``@module:callable`` that makes them for a batch."""
    batch: int
    """Samples per rank."""
    steps: int = 10
    warmup: int = 3
    """torch's DDP lays its buckets out anew after the first step."""
    exchange: bool = True
    """Exchange gradients; else every rank computes alone, beside the others."""
    precision: StepPrecision = "fp32"
    arguments: tuple[str, ...] = ()
    """``KEY=VALUE`` each."""
    threads: int = 1
    """Of torch's CPU kernels, per rank."""
    seconds: float = 0.0
    """More steps than asked for are timed until they take about so long."""
    device: Literal["", "cpu"] = ""
    """Empty: a GPU where there is one."""
    bucket_mib: int = 25
    """``bucket_cap_mb`` of torch's DistributedDataParallel, whose default this is."""
    optimizer: Literal["momentum", "adamw"] = "momentum"
    trace: str = ""
    """A folder for a profile of each rank, of a few steps after the timed ones; empty: none."""

    def __post_init__(self) -> None:
        """Raise SpecError where a count is none or the precision unknown."""
        for name, least in (("batch", 1), ("steps", 1), ("warmup", 0), ("threads", 1)):
            if getattr(self, name) < least:
                raise SpecError(f"{name}: {getattr(self, name)} is less than {least}")
        if self.precision not in get_args(StepPrecision):
            raise SpecError(f"precision: '{self.precision}' is not one of {', '.join(get_args(StepPrecision))}")


@dataclass(frozen=True)
class RankSteps:
    """What one rank measured."""

    rank: int
    times: tuple[float, ...]
    """Seconds of each timed step, begin to begin."""
    cpu_time: float
    """Seconds of processor time, user and system, of this rank's process in a mean step."""
    parameters: int
    parts: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each part of a step, where they were told apart."""
    sent: float = 0.0
    """Bytes of a mean step that left the host, where they were counted."""

    @property
    def median(self) -> float:
        """Return the median step time, seconds."""
        return statistics.median(self.times)


NextInputs = Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
"""Returns the positional and named inputs of the next batch, on the host."""


def run_rank(
    wanted: StepsWanted, next_inputs: NextInputs | None = None, afterwards: Callable[[Callable[[], None]], None] = lambda step: None
) -> RankSteps:
    """Run the steps *wanted* as one rank; *next_inputs* gives batches, by default one synthetic batch again and again.

    *afterwards* is given what runs one more step, when all have been timed.

    Raise SpecError where the model cannot be made or run, or a rank goes missing.
    """
    import torch
    import torch.distributed as dist

    from sim.extract import target

    device = device_of(wanted)
    with _process_group(device):
        torch.set_num_threads(wanted.threads)
        torch.manual_seed(0)
        model = _model(wanted).to(device, torch.bfloat16 if wanted.precision == "bf16" else None)
        try:
            batches = next_inputs or _same_batch(wanted, model, device)
            wrapped = _wrapped(model, device, wanted.bucket_mib) if wanted.exchange and _ranks() > 1 else model
            step = _step(wrapped, wanted, batches, device)
            times, cpu_time = timed(step, wanted, device)
            if wanted.trace:
                profiled(step, Path(wanted.trace), device)
            afterwards(step)
        except SpecError:
            raise
        except Exception as error:
            raise SpecError(f"{wanted.model}: a training step failed: {target.told(error)}") from error
        rank = dist.get_rank() if dist.is_initialized() else 0
        return RankSteps(rank, tuple(times), cpu_time, sum(parameter.numel() for parameter in model.parameters()))


def gathered(own: RankSteps) -> list[RankSteps]:
    """Return what every rank of the caller's process group measured, in order of rank; without a group, *own* alone."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return [own]
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, own)
    return by_rank


def device_of(wanted: StepsWanted) -> Any:
    """Return the device that a rank's steps run on; a GPU is made the current one."""
    import torch

    if wanted.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


@contextmanager
def _process_group(device: Any) -> Iterator[None]:
    """Join the other ranks, if not yet done, and part at the end."""
    import torch.distributed as dist

    joined = _join(device)
    try:
        yield
    finally:
        if joined:
            dist.destroy_process_group()


def _join(device: Any) -> bool:
    """Join the ranks that the environment tells of, where there are others and no group yet; tell whether that was so."""
    import datetime

    import torch.distributed as dist

    if dist.is_initialized() or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return False
    backend = "nccl" if device.type == "cuda" else "gloo"
    meeting = os.environ.get("STALLSIM_MEETING", "env://")
    place = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    dist.init_process_group(backend, init_method=meeting, timeout=datetime.timedelta(seconds=LIMIT), **place)
    return True


def _ranks() -> int:
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_initialized() else 1


def _model(wanted: StepsWanted) -> Any:
    import torch

    from sim.extract import target

    make, arguments = target.find(wanted.model), target.parse_arguments(wanted.arguments)
    try:
        model = make(**arguments)
    except Exception as error:
        raise SpecError(f"{wanted.model}: calling it failed: {target.told(error)}") from error
    if not isinstance(model, torch.nn.Module) or not any(parameter.requires_grad for parameter in model.parameters()):
        raise SpecError(f"{wanted.model}: returned {type(model).__name__}; expected a torch.nn.Module with trainable parameters")
    return model.train()


def _same_batch(wanted: StepsWanted, model: Any, device: Any) -> NextInputs:
    """Return what gives one synthetic batch on *device* again and again."""
    from sim.extract import target

    if len(wanted.inputs) == 1 and wanted.inputs[0].startswith("@"):
        made = target.find(wanted.inputs[0][1:])(wanted.batch)
        positional, named = ((), dict(made)) if isinstance(made, Mapping) else (made if isinstance(made, tuple) else (made,), {})
    else:
        shapes = [target.parse_input(text) for text in wanted.inputs]
        target.check_inputs(model.forward, shapes)
        positional = tuple(_tensor(shape, wanted.batch) for shape in shapes if not shape.name)
        named = {shape.name: _tensor(shape, wanted.batch) for shape in shapes if shape.name}
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


def profiled(step: Callable[[], None], folder: Path, device: Any) -> None:
    """Write the profile of a few steps of this rank into *folder*."""
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, schedule

    rank = dist.get_rank() if dist.is_initialized() else 0
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=kinds, record_shapes=True, schedule=schedule(wait=0, warmup=2, active=_PROFILED, repeat=1)) as profiler:
        for _ in range(2 + _PROFILED):
            step()
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"rank{rank}.json"))


def _step(model: Any, wanted: StepsWanted, next_inputs: NextInputs, device: Any) -> Callable[[], None]:
    """Return what runs one step of *model*."""
    import torch

    precision = wanted.precision
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    low = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}.get(precision)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "amp_fp16" and device.type == "cuda")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer: Any = torch.optim.SGD(trained, lr=1e-6, momentum=0.9)
    if wanted.optimizer == "adamw":
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
    """Return what the model returned if that is a loss, else cross-entropy over the last dimension of its outputs, as layer tables do."""
    import torch

    from sim.extract.trace import differentiable

    outputs = differentiable(output)
    if (scalar := next((tensor for tensor in outputs if tensor.ndim == 0), None)) is not None:
        return scalar
    rows = [tensor.reshape(-1, tensor.shape[-1]) for tensor in outputs if tensor.ndim > 1]
    if not rows:
        raise SpecError("the model cannot be trained: it returns no floating-point tensor that depends on a parameter")
    return sum(torch.nn.functional.cross_entropy(logits, logits.new_zeros(len(logits), dtype=torch.int64)) for logits in rows)


def timed(step: Callable[[], None], wanted: StepsWanted, device: Any) -> tuple[list[float], float]:
    """Return the seconds of each timed step, and the processor time of a mean one."""
    import torch
    import torch.distributed as dist

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    begin = time.perf_counter()
    for _ in range(wanted.warmup):
        begin = time.perf_counter()
        step()
        wait()
    count = _agreed(wanted, time.perf_counter() - begin, device)
    if dist.is_initialized():
        dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    marks, used = [time.perf_counter()], time.process_time()
    for _ in range(count):
        step()
        wait()
        marks.append(time.perf_counter())
    used = (time.process_time() - used) / count
    return [end - begin for begin, end in pairwise(marks)], used


def ready(wanted: StepsWanted, device: Any) -> tuple[Any, NextInputs, Callable[[Any], Any]]:
    """Return the model on *device*, what gives its batches there, and the loss of what it returns, for who runs steps in another way."""
    model = _model(wanted).to(device)
    return model, _same_batch(wanted, model, device), _loss


def _agreed(wanted: StepsWanted, last: float, device: Any) -> int:
    """Return how many steps all ranks time, when the *last* of the warm-up took so many seconds on this one."""
    import torch
    import torch.distributed as dist

    count = wanted.steps
    if wanted.seconds and wanted.warmup:
        count = max(count, min(MOST_STEPS, round(wanted.seconds / last)))
    if dist.is_initialized() and wanted.seconds:
        proposed = torch.tensor([count], device=device)
        dist.all_reduce(proposed, dist.ReduceOp.MIN)
        count = int(proposed.item())
    return count


def spawn(
    wanted: StepsWanted,
    ranks: int,
    before: Callable[[int], Sequence[str]] = lambda rank: (),
    environment: Mapping[str, str] | None = None,
    limit: float = 2 * LIMIT,
    program: Sequence[str] = ("calibration.measure.ddp_steps",),
) -> list[RankSteps]:
    """Run *wanted* in *ranks* processes of this machine, each behind the command *before* gives for its rank; return all results.

    *program* is the module that runs a rank, with what it is told besides. Without MASTER_ADDR in *environment* the ranks meet over a
    file. Raise SpecError, with all processes ended, where a rank fails or *limit* seconds pass.
    """
    with tempfile.TemporaryDirectory() as folder:
        meeting = {} if environment and "MASTER_ADDR" in environment else {"STALLSIM_MEETING": f"file://{folder}/ranks"}
        shared = os.environ | {"OMP_NUM_THREADS": str(wanted.threads), "WORLD_SIZE": str(ranks)} | meeting | dict(environment or {})
        started: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        try:
            for rank in range(ranks):
                said: IO[bytes] = (Path(folder) / f"{rank}.txt").open("w+b")
                own = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                command = [*before(rank), sys.executable, "-m", program[0], json.dumps(asdict(wanted)), *program[1:]]
                started.append((subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=own), said))
            _wait([process for process, _ in started], [said for _, said in started], limit)
            return [_result(said) for _, said in started]
        finally:
            for process, said in started:
                process.kill()
                process.wait()
                said.close()


def _wait(processes: Sequence[subprocess.Popen[bytes]], said: Sequence[IO[bytes]], limit: float) -> None:
    """Return when all *processes* have ended well; raise SpecError when one has not, or *limit* seconds have passed."""
    end = time.monotonic() + limit
    while None in (codes := [process.poll() for process in processes]):
        if any(codes):
            break
        if time.monotonic() > end:
            raise SpecError(f"rank {codes.index(None)} did not finish within {limit:g} s")
        time.sleep(_POLL)
    failed = [rank for rank, code in enumerate(codes) if code]
    if failed:  # whom a signal ended died first, and took the others along
        rank = min(failed, key=lambda number: codes[number] or 0)
        raise SpecError(f"rank {rank} {_ending(codes[rank] or 0)}: {_last_words(said[rank])}")


def _ending(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else "failed"


def _last_words(said: IO[bytes]) -> str:
    said.seek(0)
    lines = [line for line in said.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


def _result(said: IO[bytes]) -> RankSteps:
    said.seek(0)
    for line in reversed(said.read().decode(errors="replace").splitlines()):
        if line.startswith(DONE):
            fields = json.loads(line.removeprefix(DONE))
            return RankSteps(**fields | {"times": tuple(fields["times"])})
    raise SpecError(f"a rank ended without a result: {_last_words(said)}")


def read_wanted(text: str) -> StepsWanted:
    """Return the steps that the JSON document *text* wants."""
    fields = json.loads(text)
    return StepsWanted(**fields | {"inputs": tuple(fields["inputs"]), "arguments": tuple(fields.get("arguments", ()))})


def join(wanted: StepsWanted) -> None:
    """Join the ranks that the environment tells of, where there are others and no group yet."""
    _join(device_of(wanted))


def main(arguments: Sequence[str], next_inputs: NextInputs | None = None) -> int:
    """Run as one rank what the JSON document *arguments*[0] wants, fed by *next_inputs*, and hand the result over on stdout."""
    try:
        wanted = read_wanted(arguments[0])
        join(wanted)  # and never part: Gloo's threads may abort a process that does
        print(DONE + json.dumps(asdict(run_rank(wanted, next_inputs))), flush=True)
    except SpecError as error:
        print(error, file=sys.stderr, flush=True)
        return 2
    return 0


def leave(code: int) -> NoReturn:
    """End this rank's process at once, without the destructors of communication threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
