"""Which products of a block does torch compute again in backward? Counted by the shapes of their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def products_again(products: Sequence[str], saves: Sequence[str], early_stop: bool) -> list[str]:
    """Return which of *products* (qkv, output, gate_up, down) of a checkpointed block run again where the outputs of *saves* are kept."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts, set_checkpoint_early_stop

    tokens, hidden, queries, keys, inner = 6, 8, 10, 2, 20  # no product has operands of the shapes of another's, or of its backward's
    shapes = dict(zip(products, ((hidden, queries + 2 * keys), (queries, hidden), (hidden, 2 * inner), (inner, hidden)), strict=True))
    weights = {name: torch.ones(shape, requires_grad=True) for name, shape in shapes.items()}

    def block(stream: Any) -> Any:
        normed = torch.nn.functional.layer_norm(stream, (hidden,))
        q, k, v = (normed @ weights["qkv"]).split((queries, keys, keys), dim=1)
        attended = torch.sigmoid(q * k.sum() * v.sum())
        stream = stream + attended @ weights["output"]
        gate, up = (torch.nn.functional.layer_norm(stream, (hidden,)) @ weights["gate_up"]).chunk(2, dim=1)
        return stream + (torch.nn.functional.silu(gate) * up) @ weights["down"]

    def named(args: Sequence[Any]) -> str:
        """Return the product with these operands of a forward; empty for those of backward."""
        left, right = (tuple(arg.shape) for arg in args[:2])
        return next((name for name, shape in shapes.items() if left == (tokens, shape[0]) and right == shape), "")

    def policy(_: Any, op: Any, *args: Any, **__: Any) -> CheckpointPolicy:
        kept = op == torch.ops.aten.mm.default and named(args) in saves
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    class Products(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if op == torch.ops.aten.mm.default and named(args):
                self.seen.append(named(args))
            return op(*args, **(kwargs or {}))

    stream = torch.randn(tokens, hidden, requires_grad=True)
    with set_checkpoint_early_stop(early_stop):
        out = checkpoint(block, stream, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy))
        with Products() as again:
            out.sum().backward()
    return again.seen
