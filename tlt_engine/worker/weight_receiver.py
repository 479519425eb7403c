"""What vLLM's draft weight updates load into: an external trainer pushes a drafter the way it pushes the target."""

from collections.abc import Iterable

from torch import Tensor, nn


class WeightReceiver(nn.Module):
    """Stands for the drafter while its weights come in; collects them, so that half an update changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._received: dict[str, Tensor] = {}

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Takes a chunk of named tensors; returns their names."""
        chunk = {name: tensor.detach().clone() for name, tensor in weights}
        self._received.update(chunk)
        return set(chunk)

    def take(self) -> dict[str, Tensor]:
        """Returns what came in since the last call and forgets it."""
        received, self._received = self._received, {}
        return received
