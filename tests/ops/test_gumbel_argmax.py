"""gumbel_argmax against token-by-token sampling, as a distribution, and against wrong ways to key the noise."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.reference import gumbel_argmax as reference
from tlt_engine.ops import gumbel_argmax

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LARGE_KEY = (0x7123_4567_89AB_CDEF, 0x0FED_CBA9_8765_4321)


def draw(logits: Tensor, temperature: float | Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Runs the op on the logits' device with scalars spread over the rows; returns its tokens on the CPU."""
    num_rows = logits.shape[0]
    if not isinstance(temperature, Tensor):
        temperature = torch.full((num_rows,), temperature)
    arguments = (
        tensor.to(logits.device) for tensor in (temperature, seeds.expand(num_rows), positions.expand(num_rows))
    )
    return gumbel_argmax(logits, *(tensor.contiguous() for tensor in arguments)).cpu()


def chi_square_p_value(token_ids: Tensor, probabilities: Tensor) -> float:
    """Probability of counts at least this far from the expected ones."""
    observed = torch.bincount(token_ids, minlength=len(probabilities)).double()
    expected = probabilities.double() * len(token_ids)
    assert expected.min() >= 5, "too few draws for the chi-square approximation"
    statistic = ((observed - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor((len(probabilities) - 1) / 2.0).double(), statistic / 2))


def philox_words(counter: np.ndarray, position: np.ndarray, seed: int) -> list[np.ndarray]:
    """The reference's Philox over arrays, to search many positions."""
    words = [counter, position & reference.MASK, position >> 32, np.full_like(position, reference.DOMAIN)]
    key = [seed & reference.MASK, seed >> 32]
    words = [word.astype(np.uint64) for word in words]
    for _ in range(10):
        products = np.uint64(0xD2511F53) * words[0], np.uint64(0xCD9E8D57) * words[2]
        low = [product & np.uint64(reference.MASK) for product in products]
        high = [product >> np.uint64(32) for product in products]
        words = [high[1] ^ words[1] ^ np.uint64(key[0]), low[1], high[0] ^ words[3] ^ np.uint64(key[1]), low[0]]
        key = [(key[0] + 0x9E3779B9) & reference.MASK, (key[1] + 0xBB67AE85) & reference.MASK]
    return words


def test_philox_known_answers():
    ones = reference.MASK
    zero_answer = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    ones_answer = (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    assert reference.philox4x32((0, 0, 0, 0), (0, 0)) == zero_answer
    assert reference.philox4x32((ones, ones, ones, ones), (ones, ones)) == ones_answer


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [0.0, 9.9e-6, -1.0])
def test_greedy_is_argmax_and_the_first_of_equals_wins(temperature, dtype, device):
    torch.manual_seed(0)
    logits = torch.randint(-5, 6, (32, 1000)).to(dtype).to(device)  # every value occurs about 90 times a row
    token_ids = draw(logits, temperature, torch.tensor([1]), torch.arange(32))
    assert token_ids.tolist() == np.argmax(logits.float().cpu().numpy(), axis=1).tolist()
    assert torch.equal(token_ids, logits.argmax(dim=-1).cpu())


def test_temperature_at_the_greedy_limit_samples(device):
    token_ids = draw(torch.zeros(64, 8, device=device), 1.1e-5, torch.tensor([3]), torch.arange(64))
    assert len(token_ids.unique()) > 1


# One token; a block less one, a whole one, one more; several blocks and a tail.
@pytest.mark.parametrize("vocab_size", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_matches_reference(vocab_size, temperature, dtype, device):
    torch.manual_seed(vocab_size)
    logits = torch.randn(24, vocab_size).to(dtype).mul_(2.0)
    seeds = torch.randint(-(2**63), 2**63 - 1, (24,))
    positions = torch.randint(0, 2**40, (24,))
    expected = reference.gumbel_argmax(logits, torch.full((24,), temperature), seeds, positions)
    is_argmax = expected == logits.float().argmax(dim=-1)
    if vocab_size >= 63 and temperature >= 1:
        assert is_argmax.float().mean() < 0.7, "inputs no longer let the noise decide"
    assert torch.equal(draw(logits.to(device), temperature, seeds, positions), expected)


def test_winner_outside_the_block_of_the_largest_logit(device):
    """Blocks are skipped when their logits and noise cannot win; steered so that half the winners lie elsewhere."""
    torch.manual_seed(1)
    logits = torch.randn(40, 4096)
    logits[:, 2000] = 8.8  # log(4096) + 1 / 2: as much mass as all others
    positions = torch.arange(40)
    expected = reference.gumbel_argmax(logits, torch.ones(40), torch.full((40,), 7), positions)
    share = (expected == 2000).float().mean()
    assert 0.2 < share < 0.8, "inputs no longer put winners on both sides"
    assert torch.equal(draw(logits.to(device), 1.0, torch.tensor([7]), positions), expected)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_distribution_is_the_softmax(temperature, device):
    torch.manual_seed(2)
    logits = torch.randn(70) * 1.5  # more than one block
    logits[:64] -= 2.0
    probabilities = (logits / temperature).double().softmax(dim=0)
    keep = probabilities > 1e-3  # chi-square wants five draws a token; the rest is masked out
    logits = logits.masked_fill(~keep, -math.inf).to(device)
    probabilities = (logits.cpu() / temperature).double().softmax(dim=0)
    positions = torch.arange(20_000)
    token_ids = draw(logits.expand(20_000, -1), temperature, torch.tensor([11]), positions)
    assert keep[token_ids].all()
    compact = torch.cumsum(keep, dim=0) - 1
    assert chi_square_p_value(compact[token_ids], probabilities[keep]) > 1e-3
    wrong = (logits.cpu() / (temperature * 1.5)).double().softmax(dim=0)[keep]
    assert chi_square_p_value(compact[token_ids], wrong) < 1e-6, "the test would accept a wrong temperature"


def test_positions_and_seeds_are_independent(device):
    """Pairs of draws at neighbouring positions, and from neighbouring seeds, fill their joint distribution."""
    logits = torch.zeros(20_000, 4, device=device)
    index = torch.arange(20_000)
    uniform = torch.full((16,), 1 / 16)
    by_position = draw(logits, 1.0, torch.tensor([5]), index).reshape(-1, 2)
    by_seed = draw(logits, 1.0, index, torch.tensor([5])).reshape(-1, 2)
    for pairs in (by_position, by_seed):
        assert chi_square_p_value(pairs[:, 0] * 4 + pairs[:, 1], uniform) > 1e-3
    reused = by_position[:, :1].expand(-1, 2)  # noise shared by two positions
    assert chi_square_p_value(reused[:, 0] * 4 + reused[:, 1], uniform) < 1e-6


KEY_PARTS = {
    "position": (0, 1),
    "high half of position": (0, 1 << 32),
    "seed": (1, 0),
    "high half of seed": (1 << 32, 0),
}


@pytest.mark.parametrize("part", KEY_PARTS)
def test_noise_depends_on(part, device):
    seed_step, position_step = KEY_PARTS[part]
    seed, position = LARGE_KEY
    seeds = torch.tensor([seed, seed ^ seed_step])
    token_ids = draw(
        torch.zeros(2, 5000, device=device), 1.0, seeds, torch.tensor([position, position ^ position_step])
    )
    assert token_ids[0] != token_ids[1]


@pytest.mark.parametrize("margin", [1e-3, -1e-3])
def test_rare_token_is_drawn_exactly_when_its_noise_says_so(margin, device):
    """A token of probability 1e-7 is too rare to count, so the noise is steered: of four million words the smallest is
    found, and the other token's logit is set so that the rare one wins, or loses, by a thousandth."""
    seed = 1234
    positions = np.arange(1 << 20, dtype=np.int64)
    words = np.stack(philox_words(np.zeros_like(positions), positions, seed))
    word, position = np.unravel_index(int(words.argmin()), words.shape)
    rare, common = 16 * int(word), 16 * int(word) + 1
    noise = [reference.gumbel(reference.noise_word(seed, int(position), token)) for token in (rare, common)]
    gap = noise[0] - noise[1]
    assert noise[0] > 14 and gap > 12, "the search no longer finds a rare word"
    logits = torch.full((1, 64), -math.inf, device=device)
    logits[0, rare], logits[0, common] = -gap + margin, 0.0
    token_ids = draw(logits, 1.0, torch.tensor([seed]), torch.tensor([int(position)]))
    assert int(token_ids[0]) == (rare if margin > 0 else common)


def test_noise_of_extreme_words_is_finite(device):
    assert reference.gumbel(0) == pytest.approx(33 * math.log(2))
    assert reference.gumbel(reference.MASK) == pytest.approx(-math.log(24 * math.log(2)))
    position, token = 8436200, 48  # found by search: as a float32 this word is 2**32, so its uniform would be 1
    assert reference.noise_word(1234, position, token) >= 2**32 - 127
    logits = torch.full((1, 64), -math.inf, device=device)
    logits[0, token] = 0.0
    assert draw(logits, 1.0, torch.tensor([1234]), torch.tensor([position])).tolist() == [token]


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.3])
def test_temperature_is_a_true_division(temperature, device):
    """At 1e12 the noise is lost in rounding, so the token is the first maximum of the divided logits."""
    torch.manual_seed(3)
    bases = (1e12 * (1 + torch.rand(512, 1))).view(torch.int32)
    neighbours = torch.randint(0, 4, (512, 200), dtype=torch.int32)  # dividing makes some neighbouring floats equal
    logits = (bases + neighbours).view(torch.float32)
    expected = np.argmax((logits / temperature).numpy(), axis=1)
    reciprocal = np.argmax((logits * (1 / torch.tensor(temperature))).numpy(), axis=1)
    assert (expected != reciprocal).any(), "inputs no longer tell division from multiplication by the reciprocal"
    token_ids = draw(logits.to(device), temperature, torch.tensor([1]), torch.arange(512))
    assert token_ids.tolist() == expected.tolist()


def test_first_of_scores_that_rounding_makes_equal_wins(device):
    """At 1e8 floats lie 8 apart: noise above 4 lifts a token of the first block level with the largest logit."""
    logits = torch.full((40, 200), -math.inf)
    logits[:, :64] = 1e8
    logits[:, 100] = 1e8 + 8
    positions = torch.arange(40)
    expected = reference.gumbel_argmax(logits, torch.ones(40), torch.full((40,), 3), positions)
    assert 0.2 < (expected == 100).float().mean() < 0.8, "inputs no longer make scores equal"
    assert torch.equal(draw(logits.to(device), 1.0, torch.tensor([3]), positions), expected)


def test_row_does_not_depend_on_its_neighbours(device):
    """Rows that share noise are drawn together, more of them than one task takes, among greedy and foreign rows."""
    torch.manual_seed(4)
    logits = torch.randn(60, 700, device=device)
    temperature = torch.tensor([0.0, 0.7, 1.0, 1.0, 2.0, 1.0]).repeat(10)
    seeds = torch.tensor([1, 1, 1, 2, 1, 1]).repeat(10)
    positions = torch.tensor([5, 5, 5, 5, 5, 6]).repeat(10)
    together = draw(logits, temperature, seeds, positions)
    alone = [
        draw(logits[row : row + 1], temperature[row : row + 1], seeds[row : row + 1], positions[row : row + 1])
        for row in range(60)
    ]
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(together, reference.gumbel_argmax(logits.cpu(), temperature, seeds, positions))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_tokens_never_win(temperature, dtype, device):
    logits = torch.full((50, 300), -math.inf, dtype=dtype)
    allowed = torch.arange(50) * 6
    logits[torch.arange(50), allowed] = -1000.0
    assert torch.equal(draw(logits.to(device), temperature, torch.tensor([9]), torch.arange(50)), allowed)


@pytest.mark.parametrize("temperature", [0.0, 1.0, math.inf, math.nan])
@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_result_is_a_token_whatever_the_logits(value, temperature, device):
    logits = torch.full((3, 130), value, device=device)
    assert draw(logits, temperature, torch.tensor([9]), torch.arange(3)).tolist() == [0, 0, 0]
    logits[:, 100] = 2.0
    token_ids = draw(logits, temperature, torch.tensor([9]), torch.arange(3))
    assert ((token_ids >= 0) & (token_ids < 130)).all()
    if value != math.inf and math.isfinite(temperature):
        assert token_ids.tolist() == [100, 100, 100]


def test_rows_may_lie_apart(device):
    torch.manual_seed(5)
    wide = torch.randn(6, 500, device=device)
    narrow = wide[::2, 100:333]
    positions = torch.arange(3)
    expected = draw(narrow.contiguous(), 1.0, torch.tensor([2]), positions)
    assert torch.equal(draw(narrow, 1.0, torch.tensor([2]), positions), expected)


def test_empty_batch(device):
    assert draw(torch.zeros(0, 10, device=device), 1.0, torch.tensor([1]), torch.tensor([1])).shape == (0,)


WRONG_ARGUMENTS = [
    (0, torch.zeros(2, 8, dtype=torch.float64), "logits must be float32, bfloat16 or float16, but is Double"),
    (0, torch.zeros(8), r"logits must be \[num_rows, vocab_size\], but has shape \[8\]"),
    (0, torch.zeros(2, 0), r"vocab_size must be in \[1, .*but is 0"),
    (0, torch.zeros(8, 2).t(), "logits must be contiguous along the vocabulary, but has stride 2"),
    (1, torch.zeros(2, dtype=torch.float64), "temperature must be Float, but is Double"),
    (2, torch.zeros(3, dtype=torch.int64), "seeds must have 2 entries, but has 3"),
    (3, torch.zeros(2, dtype=torch.int32), "positions must be Long, but is Int"),
]


@pytest.mark.parametrize(("position", "replacement", "message"), WRONG_ARGUMENTS)
def test_wrong_arguments_name_themselves(position, replacement, message):
    arguments = [torch.zeros(2, 8), torch.zeros(2), torch.tensor([1, 2]), torch.tensor([3, 4])]
    arguments[position] = replacement
    with pytest.raises(RuntimeError, match=message):
        gumbel_argmax(*arguments)


def test_schema_and_fake(device):
    row = torch.tensor([1, 2], device=device)
    arguments = (torch.randn(2, 70, device=device), torch.ones(2, device=device), row, row)
    torch.library.opcheck(torch.ops.tlt_engine.gumbel_argmax.default, arguments)
