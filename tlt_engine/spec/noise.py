"""The sampling noise as the drafter sees it: seeds of requests, and the very noise a token will be drawn with.

The target's token is the largest of ``logit / temperature + noise``, and the noise is known before the logits are. A
candidate with much noise is likelier to be drawn than its probability says, one with little is hardly worth a row.
Reading it changes nothing about what is drawn.
"""

import numpy as np
import numpy.typing as npt
import torch

from tlt_engine import ops

NoiseArray = npt.NDArray[np.float32]

_UINT64 = (1 << 64) - 1


def arrival_seed(engine_seed: int, arrival: int) -> int:
    """Returns the seed of a request that brought none.

    Every rank of a tensor-parallel group sees requests in the same order, so all of them agree without a message.

    Args:
        engine_seed: vLLM's ``--seed``, plus whatever tells data-parallel replicas apart.
        arrival: number of requests that came before.

    Returns:
        A signed 64-bit integer.

    Source: the SplitMix64 finaliser (Steele, Lea and Flood 2014), which spreads consecutive inputs over all 64 bits.
    """
    state = (engine_seed * 0x9E3779B97F4A7C15 + (arrival + 1) * 0xD1342543DE82EF95) & _UINT64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _UINT64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _UINT64
    return signed_64(state ^ (state >> 31))


def signed_64(value: int) -> int:
    """Returns ``value`` modulo 2**64 as the signed integer an int64 tensor holds."""
    value &= _UINT64
    return value - (1 << 64) if value >> 63 else value


def gumbel_noise(seed: int, position: int | npt.NDArray[np.int64], token_ids: npt.NDArray[np.int64]) -> NoiseArray:
    """Returns the noise that tokens of one request will be drawn with.

    Args:
        seed: seed of the request.
        position: output position, of all tokens or ``[n]`` of each.
        token_ids: ``[n]``. The tokens.

    Returns:
        ``[n]`` float32.
    """
    tokens = torch.from_numpy(token_ids)
    positions = torch.from_numpy(position) if isinstance(position, np.ndarray) else torch.full_like(tokens, position)
    noise: NoiseArray = ops.gumbel_noise(torch.full_like(tokens, seed), positions, tokens).numpy()
    return noise
