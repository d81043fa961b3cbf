"""The controller of RCL: a policy over sequences of choices, one per layer, learned from rewards by actor-critic.

Xu, Zhu: "Reinforced Continual Learning", NeurIPS 2018, section 3: an LSTM gives at each layer a softmax over how many
units to add, and reads what it chose at the layer before; a value network on the same state foretells the reward, and
what a reward exceeds it by weighs the gradient of the choices' log probability. Knows nothing about networks to grow.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HIDDEN = 100  # units of the LSTM; its tensors and those of the softmax begin uniform within ±BOUND
BOUND = 0.08


class Controller(nn.Module):
    """`choices` options at each of `layers` layers. The state, a fixed random vector, is what the first step reads."""

    def __init__(self, layers: int, choices: int, lr: float, generator: torch.Generator) -> None:
        super().__init__()
        self.layers, self.choices = layers, choices
        self.state = torch.randn(choices, generator=generator)
        self.cell = _empty(nn.LSTMCell, choices, HIDDEN)
        self.output = _empty(nn.Linear, HIDDEN, choices)
        self.critic = _empty(nn.Linear, choices, 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-BOUND, BOUND, generator=generator)
        self.optimiser = torch.optim.Adam([*self.cell.parameters(), *self.output.parameters()], lr)
        self.updates = 0

    def logits(self, actions: Tensor) -> Tensor:
        """(n, layers) choices → (n, layers, choices); those of a layer depend on the choices before it alone."""
        inputs = self.state.expand(len(actions), -1)
        hidden = memory = inputs.new_zeros(len(actions), HIDDEN)
        found = []
        for layer in range(self.layers):
            hidden, memory = self.cell(inputs, (hidden, memory))
            found.append(self.output(hidden))
            inputs = F.one_hot(actions[:, layer], self.choices).to(hidden.dtype)
        return torch.stack(found, 1)

    def log_probability(self, actions: Tensor) -> Tensor:
        """Of whole sequences: (n, layers) → (n,)."""
        return self.logits(actions).log_softmax(2).gather(2, actions[:, :, None]).sum((1, 2))

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        actions = torch.zeros(count, self.layers, dtype=torch.long)
        for layer in range(self.layers):
            probabilities = self.logits(actions)[:, layer].softmax(1)
            actions[:, layer] = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
        return actions

    def value(self) -> Tensor:
        """The reward to be expected in this state."""
        value: Tensor = self.critic(self.state)[0]
        return value

    def policy_loss(self, actions: Tensor, rewards: Tensor) -> Tensor:
        """Its gradient is that of the log probabilities, weighed by minus the advantages."""
        advantage = (rewards - self.value()).detach()
        return -(advantage * self.log_probability(actions)).mean()

    def value_loss(self, rewards: Tensor) -> Tensor:
        return (self.value() - rewards).pow(2).mean()

    def update(self, actions: Tensor, rewards: Tensor) -> None:
        """One step of the value, then one of the policy: a policy that has few steps must not spend them on whatever
        was chosen because the value is still far below every reward."""
        self.updates += 1
        gradients = torch.autograd.grad(self.value_loss(rewards), list(self.critic.parameters()))
        with torch.no_grad():
            # A step of length 1 / 2(|state|² + 1) would end at the mean of these rewards; an n-th of it is what makes
            # the value, after n updates, the mean of all rewards.
            length = 0.5 / (self.state.square().sum() + 1) / self.updates
            for parameter, gradient in zip(self.critic.parameters(), gradients, strict=True):
                parameter.sub_(length * gradient)
        self.optimiser.zero_grad()
        self.policy_loss(actions, rewards).backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()


def _empty(layer: type[nn.Module], inputs: int, outputs: int) -> nn.Module:
    """A layer without PyTorch's own start values: they would come from the global generator."""
    made: nn.Module = nn.utils.skip_init(layer, inputs, outputs)  # type: ignore[no-untyped-call]
    return made
