"""How long does a training step of a decoder take under Megatron-Core? Its GPT model with Transformer Engine on one GPU.

A step is Megatron's: forward and backward of some micro-batches without a pipeline, gradients added up in 32 bits, clipping, and the
distributed optimizer over one rank. The router assigns tokens to experts at random, so all get about the same number. Limits: random
tokens; no data loader; no communication; it needs Megatron-Core 0.16 and Transformer Engine 2.12, which are not among the project's
requirements.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from calibration.blind.questions import MICRO_BATCHES, BlindTraining, megatron_overrides
from calibration.measure.team import join_alone
from sim.spec.library import load_workload
from sim.spec.transformer import Transformer


def megatron_step(run: BlindTraining) -> Callable[[], None]:
    """Return a function that runs a step of *run* on this process's GPU."""
    import torch

    overrides = [f"{key}={value}" for key, value in megatron_overrides(run).items()]
    shape = load_workload(run.workload, overrides).spec.model.transformer
    assert shape is not None
    _start_ranks()
    model = _model(_config(shape, run.settings["recipe"]), shape, run.sequence)
    optimizer = _optimizer(model)
    tokens = torch.randint(0, shape.vocab, (run.batch, run.sequence), device="cuda")
    labels = torch.randint(0, shape.vocab, (run.batch, run.sequence), device="cuda")
    positions = torch.arange(run.sequence, device="cuda").expand(run.batch, -1)
    forward_backward = _part("pipeline_parallel").get_forward_backward_func()

    def forward(batches: Iterator[None], module: Any) -> tuple[Any, Callable[[Any], tuple[Any, dict[str, Any]]]]:
        next(batches)
        return module(tokens, positions, None, labels=labels), lambda losses: (losses.float().mean(), {})

    def step() -> None:
        model.zero_grad_buffer()
        optimizer.zero_grad()
        forward_backward(
            forward_step_func=forward,
            data_iterator=iter([None] * MICRO_BATCHES),
            model=[model],
            num_microbatches=MICRO_BATCHES,
            seq_length=run.sequence,
            micro_batch_size=run.batch,
        )
        optimizer.step()

    return step


def _part(name: str) -> Any:
    return importlib.import_module(f"megatron.core.{name}")


def _start_ranks() -> None:
    """Start a group of one rank. Before Megatron is imported, replace the kernel of NVIDIA's Apex that the vocabulary layer needs."""
    import torch

    sys.modules.setdefault("fused_weight_gradient_mlp_cuda", _AddingProducts())
    join_alone("cuda")
    torch.cuda.set_device(0)
    _part("parallel_state").initialize_model_parallel(create_gloo_process_groups=False)
    _part("tensor_parallel").model_parallel_cuda_manual_seed(1)


class _AddingProducts(ModuleType):
    """Replaces Apex's module that adds a weight's gradient to the sum over micro-batches: here a product and a sum, one kernel each."""

    def __init__(self) -> None:
        super().__init__("fused_weight_gradient_mlp_cuda")

    def wgrad_gemm_accum_fp32(self, inputs: Any, gradient: Any, total: Any) -> None:
        total.add_(gradient.t().matmul(inputs))


def _config(shape: Transformer, recipe: str) -> Any:
    """Return Megatron's configuration of *shape* with the fusions that its performance recipes turn on."""
    import torch

    parts = _part("transformer.transformer_config")
    given: dict[str, Any] = {
        "num_layers": shape.layers, "hidden_size": shape.hidden, "num_attention_heads": shape.heads, "num_query_groups": shape.kv_heads,
        "ffn_hidden_size": shape.ffn or shape.expert_ffn, "normalization": "RMSNorm", "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu, "add_bias_linear": shape.bias == "all", "add_qkv_bias": shape.bias == "qkv",
        "hidden_dropout": 0.0, "attention_dropout": 0.0, "qk_layernorm": shape.qk_norm == "head", "bf16": True,
        "params_dtype": torch.bfloat16, "pipeline_dtype": torch.bfloat16, "gradient_accumulation_fusion": True,
        "bias_activation_fusion": True, "bias_dropout_fusion": not (shape.experts and shape.bias == "all"),
        "apply_rope_fusion": True, "masked_softmax_fusion": True,
        "persist_layer_norm": True, "cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te",
        "finalize_model_grads_func": _part("distributed").finalize_model_grads,
    }  # fmt: skip
    if recipe:
        given |= {"fp8": "e4m3" if recipe == "blockwise" else "hybrid", "fp8_recipe": recipe}
        if recipe == "delayed":
            given |= {"fp8_amax_history_len": 1024, "fp8_amax_compute_algo": "max"}
    if shape.experts:
        given |= {
            "num_moe_experts": shape.experts, "moe_router_topk": shape.experts_per_token,
            "moe_ffn_hidden_size": shape.expert_ffn or shape.ffn, "moe_grouped_gemm": True,
            "moe_token_dispatcher_type": "alltoall", "moe_permute_fusion": True, "moe_router_fusion": True,
            "moe_router_dtype": "fp32", "moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 1e-3,
            "moe_router_force_load_balancing": True,
        }  # fmt: skip
        if shape.shared_experts:
            given["moe_shared_expert_intermediate_size"] = shape.shared_experts * (shape.shared_expert_ffn or shape.expert_ffn or 0)
    if shape.sinks:  # gpt-oss: swiglu_limit of openai/gpt-oss-20b config.json
        given |= {
            "softmax_type": "learnable", "window_size": (shape.window, 0), "window_attn_skip_freq": shape.global_every,
            "activation_func": _part("fusions.fused_bias_geglu").quick_gelu, "glu_linear_offset": 1.0, "activation_func_clamp_value": 7.0,
        }  # fmt: skip
    if shape.mla is None:
        return parts.TransformerConfig(**given, kv_channels=shape.head_dim)
    return parts.MLATransformerConfig(
        **given, multi_latent_attention=True, q_lora_rank=shape.mla.q_rank or None, kv_lora_rank=shape.mla.kv_rank,
        qk_head_dim=shape.mla.nope_dim, qk_pos_emb_head_dim=shape.mla.rope_dim, v_head_dim=shape.mla.value_dim, rope_type="yarn",
    )  # fmt: skip


def _model(config: Any, shape: Transformer, sequence: int) -> Any:
    """Return the model on the GPU with 32-bit buffers of gradients."""
    if shape.rope_scaled and shape.mla is None:  # rope_scaling of openai/gpt-oss-20b config.json
        config.yarn_rotary_scaling_factor, config.yarn_original_max_position_embeddings = 32.0, 4096
        config.yarn_beta_fast, config.yarn_beta_slow, config.yarn_correction_range_round_to_int = 32.0, 1.0, False
        config.yarn_mscale = config.yarn_mscale_all_dim = None
    blocks = _part("models.gpt.gpt_layer_specs").get_gpt_decoder_block_spec(config, use_transformer_engine=True)
    gpt = _part("models.gpt").GPTModel(
        config,
        blocks,
        vocab_size=shape.vocab,
        max_sequence_length=sequence,
        share_embeddings_and_output_weights=shape.tied,
        position_embedding_type="yarn" if shape.rope_scaled and shape.mla is None else "rope",
        rotary_base=shape.rope_base or 10000,
    )
    distributed = _part("distributed")
    rules = distributed.DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, overlap_grad_reduce=True, use_distributed_optimizer=True, bucket_size=None
    )
    model = distributed.DistributedDataParallel(config, rules, _part("transformer.module").Float16Module(config, gpt.cuda()))
    config.no_sync_func = model.no_sync
    return model


def _optimizer(model: Any) -> Any:
    import torch

    parts = _part("optimizer")
    rules = parts.OptimizerConfig(
        optimizer="adam", lr=1e-6, min_lr=0.0, weight_decay=0.1, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True,
        clip_grad=1.0,
    )  # fmt: skip
    return parts.get_megatron_optimizer(rules, [model], use_gloo_process_groups=False)
