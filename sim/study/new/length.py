"""What do launch files leave to their program? Defaults of a Trainer, and the length of the job as an option of the next command."""

from __future__ import annotations

from dataclasses import replace

from sim.spec.foreign.launch_settings import LaunchSettings
from sim.spec.foreign.launch_trainer import STACK, with_wide_weights
from sim.spec.parallel import Parallel
from sim.units import show_tokens

_DEFAULTS = {
    "batch": "--per_device_train_batch_size is missing: used the Trainer's default of {}",
    "precision": "--bf16 and --fp16 are missing: used {}, the Trainer's default (newer releases of TRL use bf16)",
    "stack": "a Trainer runs the modeling code of transformers, eager: used the stack {}",
}
"""Notes on defaults of the Trainer, by field."""
_NARROW = (
    "weights, gradients and optimizer states have 16 bits, as if loaded in bfloat16 (the type of most checkpoints, which transformers 5 "
    "keeps); loaded in float32, as by earlier releases, they need twice the memory: --precision amp_bf16"
)
_DIVIDED = (
    f"no GPU holds the whole model as {STACK} runs it; the stacks of layouts compile or fuse what the Trainer runs as small kernels, and "
    "keep 32-bit states"
)


def with_defaults(told: LaunchSettings) -> LaunchSettings:
    """Return *told* with the defaults of its program for the fields that no file sets, and a note on each."""
    told = with_wide_weights(told)
    missing = {name: value for name, value in told.defaults.items() if name not in told.training}
    if told.global_batch and "batch" in missing:
        del missing["batch"]  # DeepSpeed's file decides
    if told.parallel:
        missing.pop("stack", None)  # it runs no layout
    of_trainer = "batch" in told.defaults
    own = {} if of_trainer else told.default_notes  # a Trainer's options decide over the files that it is given
    notes = [own.get(name, _DEFAULTS[name]).format(value) for name, value in missing.items()]
    notes += [note for name, note in own.items() if name not in told.training and name not in missing]
    if "stack" in missing and (told.training | missing).get("precision") == "bf16":
        notes.append(_NARROW)
    return told.joined(LaunchSettings(training=missing, notes=notes))


def without_stack(told: LaunchSettings) -> LaunchSettings:
    """Return *told* without the stack that is a Trainer's default, because no GPU holds the whole model, and with a note on that."""
    about = (_NARROW, _DEFAULTS["stack"].format(STACK))
    notes = [note for note in told.notes if note not in about]
    training = {name: value for name, value in told.training.items() if name != "stack"}
    return replace(told, training=training, notes=[*notes, _DIVIDED])


def length_option(told: LaunchSettings, sequence: int, dataset: str | None, command: str) -> tuple[str, list[str]]:
    """Return the option of *command* for the length of the job, after a space, and notes; none if no file sets the length.

    *sequence* is the tokens of a sample. Only ``run`` takes epochs.
    """
    length = told.length
    if length is None:
        return "", []
    if length.epochs is not None:
        if dataset is not None and command.startswith("python -m sim run "):
            return f" --epochs {length.epochs:g}", []
        why = ", because the data set is unknown; write --dataset, or --tokens" if dataset is None else "; write --tokens"
        return "", [f"{length.option} is not read{why} with the command below"]
    samples = length.samples
    if length.steps is not None:
        batch = told.training.get("batch", 1) * told.training.get("gradient_accumulation_steps", 1)
        ranks = Parallel.model_validate(told.parallel).model_ranks
        each = told.global_batch or (batch * (told.gpus // ranks) if told.gpus else 0)
        samples = length.steps * each
        if not each:
            return "", [f"{length.option} is not read, because the number of GPUs is unknown; write --tokens with the command below"]
    if not samples:
        return "", [f"{length.option} is not read; write --tokens or --epochs with the command below"]
    tokens = samples * sequence
    return f" --tokens {show_tokens(tokens)}", [f"{length.option}: {tokens:,} tokens, {sequence:,} per sample"]
