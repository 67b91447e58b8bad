"""Which models are built directly on the GPU? Those whose construction on the host would take longer than their steps."""

from __future__ import annotations

import importlib
from typing import Any

from sim.extract.target import load_target
from sim.spec.library import load_workload


def llama_on_gpu(**shape: int) -> Any:
    """Return the Llama decoder of the catalog's models, built on the device where it will run."""
    import torch

    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        return load_target("workloads/models/sources/llama.py:Llama")(**shape)


def gpt2_on_gpu(size: str) -> Any:
    """Return Hugging Face's GPT-2 with 124 M parameters (*size* must be ``small``) as a module that returns its loss."""
    import torch

    if size != "small":
        raise ValueError(f"size {size}: only size small uses the defaults of transformers")
    transformers = importlib.import_module("transformers")  # installed on the GPU's machine; not among the project's requirements
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        return _with_loss(transformers.GPT2LMHeadModel(transformers.GPT2Config()))


def decoder_on_gpu(name: str) -> Any:
    """Return the catalog's decoder *name*, built by Hugging Face transformers, as a module that returns its loss."""
    import torch

    transformers = importlib.import_module("transformers")  # installed on the GPU's machine; not among the project's requirements
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        decoder = load_workload(name).spec.model.transformer
        assert decoder is not None
        shape = {
            "hidden_size": decoder.hidden, "num_hidden_layers": decoder.layers, "num_attention_heads": decoder.heads,
            "num_key_value_heads": decoder.kv_heads, "intermediate_size": decoder.ffn, "vocab_size": decoder.vocab,
            "tie_word_embeddings": decoder.tied, "head_dim": decoder.head_dim, "max_position_embeddings": 8192,
        }  # fmt: skip
        if name.startswith("qwen2"):
            shape.pop("head_dim")
            return _with_loss(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**shape)))
        return _with_loss(transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)))


def adapted_decoder_on_gpu(name: str, rank: int) -> Any:
    """Return the decoder *name* of transformers with LoRA adapters of *rank* on the linear layers of its blocks; only they are trained."""
    peft = importlib.import_module("peft")  # installed on the GPU's machine
    causal = decoder_on_gpu(name)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    causal.model = peft.get_peft_model(causal.model, peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets))
    return causal


def _with_loss(model: Any) -> Any:
    """Return the transformers *model* as a module that takes tokens and returns the next-token loss."""
    from torch import nn

    class Causal(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any) -> Any:
            return self.model(input_ids=input_ids, labels=input_ids, use_cache=False).loss

    return Causal()
