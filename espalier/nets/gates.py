"""Gates: a factor per unit of a layer, if the layer's tensors hold any. Knows nothing about which learner wants them.

`gate` holds zeros and ones that stay as they are. `embedding` is learned (Serrà et al., "Overcoming Catastrophic
Forgetting with Hard Attention to the Task", ICML 2018, section 2): in training the factor is σ(s·e) with a sharpness
s that rises during an epoch; otherwise it is 1 where e > 0 and 0 elsewhere, its limit for large s.
"""

import torch
from torch import Tensor

from espalier.nets.layers import Stack

CLAMP = 50.0  # of s·e in the compensation: beyond, a gate is as good as shut or open and learns no more


class Attention(torch.autograd.Function):
    """σ(s·e) (equation 1 there), with the gradient compensated for the sharpness (section 2.5).

    The paper multiplies the gradient of σ(s·e) by s_max/s · (cosh(clamp(s·e)) + 1) / (cosh(e) + 1). As the derivative
    is s / 2(cosh(s·e) + 1), what remains is s_max · σ'(e), fading only where s·e was clamped.
    """

    @staticmethod
    def forward(ctx, embedding: Tensor, sharpness: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(embedding, sharpness)
        return torch.sigmoid(sharpness[0] * embedding)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        embedding, (now, most) = ctx.saved_tensors
        plain = torch.sigmoid(embedding)
        fading = (CLAMP - (now * embedding).abs()).clamp(max=0).exp()
        return gradient * most * plain * (1 - plain) * fading, None


def attention(embedding: Tensor, sharpness: Tensor | None) -> Tensor:
    """The factors of an embedding under a sharpness, now and at its most; without one, zeros and ones."""
    if sharpness is None:
        return (embedding > 0).to(embedding.dtype)
    attended: Tensor = Attention.apply(embedding, sharpness)  # type: ignore[no-untyped-call]
    return attended


def has_gate(stack: Stack, place: str) -> bool:
    return f"gate{place}" in stack or f"embedding{place}" in stack


def gated(x: Tensor, stack: Stack, place: str, sharpness: Tensor | None) -> Tensor:
    """x (batch, m·units, …) times the gates that the stack has for a place ("" or a number), (m, units) each."""
    if f"gate{place}" in stack:
        x = x * _along(stack[f"gate{place}"], x)
    if f"embedding{place}" in stack:
        x = x * _along(attention(stack[f"embedding{place}"], sharpness), x)
    return x


def _along(factors: Tensor, x: Tensor) -> Tensor:
    return factors.reshape(-1, *[1] * (x.dim() - 2))
