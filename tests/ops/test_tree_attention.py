"""The paged tree attention kernel against the dense reference, on trees, contexts and caches that bite."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.reference.tree_attention import tree_attention as reference
from tlt_engine.ops import tree_attention

CANARY = 77.0
CHAIN_OF_5 = [-1, 0, 1, 2, 3]
FORK = [-1, 0, 0, 1, 1, 2, 2]


def random_tree(num_rows: int, seed: int) -> list[int]:
    """A deep tree with branches: each row hangs under one of the three rows before it."""
    draw = random.Random(seed)
    return [-1] + [row - draw.randint(1, min(row, 3)) for row in range(1, num_rows)]


# (context_len, parent_rows); 31, 127 and 250 end just before or inside a block, 128 at its end; 70 rows need two words.
MIXED_TREES = [
    (0, [-1]),
    (31, CHAIN_OF_5),
    (128, FORK),
    (0, random_tree(40, 1)),
    (250, random_tree(70, 2)),
    (127, [-1]),
]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A batch of trees with its cache; unused slots and unlisted blocks hold NaN."""

    trees: list[tuple[int, list[int]]]
    query: Tensor
    kv_cache: Tensor
    block_table: Tensor
    req_indices: list[int]
    query_starts: list[int]
    scale: float

    def cache_views(self) -> tuple[Tensor, Tensor]:
        num_blocks, num_kv_heads, block_size, width = self.kv_cache.shape
        planes = self.kv_cache.view(num_blocks, num_kv_heads, 2, block_size * width // 2)
        keys = planes[:, :, 0].unflatten(2, (width // 2, block_size))
        return keys, planes[:, :, 1].unflatten(2, (block_size, width // 2))

    def run(self, *, window: int = 0, softcap: float = 0.0, sinks: Tensor | None = None) -> Tensor:
        out = torch.full_like(self.query, CANARY)
        tree_attention(out, *self.arguments(), self.scale, window, softcap, sinks)
        return out

    def arguments(self) -> tuple[Tensor, ...]:
        def int32(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32)

        depths, masks, cu_num_rows = [], [], [0]
        num_words = (max(len(parents) for _, parents in self.trees) + 63) // 64
        for _, parents in self.trees:
            ancestors: list[int] = []
            for row, parent in enumerate(parents):
                ancestors.append((ancestors[parent] if parent >= 0 else 0) | 1 << row)
                depths.append(ancestors[row].bit_count() - 1)
                words = [ancestors[row] >> (64 * word) & (2**64 - 1) for word in range(num_words)]
                masks.append([word - 2**64 if word >= 2**63 else word for word in words])
            cu_num_rows.append(cu_num_rows[-1] + len(parents))
        return (
            self.query, *self.cache_views(), self.block_table, int32(self.req_indices), int32(self.query_starts),
            int32([context_len for context_len, _ in self.trees]), int32(cu_num_rows), int32(depths),
            torch.tensor(masks, dtype=torch.int64).view(-1, num_words),
        )  # fmt: skip

    def expected(self, index: int, parents: list[int] | None = None, **options: object) -> Tensor:
        context_len, own_parents = self.trees[index]
        rows = self.query[self.query_starts[index] :][: len(own_parents)]
        blocks = self.block_table[self.req_indices[index]].tolist()
        return reference(rows, self.kv_cache, blocks, context_len, parents or own_parents, scale=self.scale, **options)


def make_case(
    trees: list[tuple[int, list[int]]],
    *,
    heads: tuple[int, int] = (6, 2),
    head_size: int = 64,
    block_size: int = 32,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Case:
    """Draws a batch in which a tree row weighs about 55 (e^4) context slots, so that masks decide the result."""
    torch.manual_seed(seed)
    num_heads, num_kv_heads = heads
    max_blocks = max((context + len(parents) + block_size - 1) // block_size for context, parents in trees)
    # One request more than trees, in shuffled order: a kernel that confuses tree and request reads NaN or a stranger.
    req_indices = (torch.randperm(len(trees) + 1)[: len(trees)]).tolist()
    block_table = torch.randperm((len(trees) + 1) * max_blocks + 3)[: (len(trees) + 1) * max_blocks]
    block_table = block_table.to(torch.int32).view(len(trees) + 1, max_blocks)
    kv_cache = torch.full((block_table.numel() + 3, num_kv_heads, block_size, 2 * head_size), float("nan"), dtype=dtype)
    query_starts, next_token = [], 2
    for _, parents in trees:
        query_starts.append(next_token)
        next_token += len(parents) + 1
    wide_query = torch.randn(next_token + 2, num_heads + 1, head_size) + 1  # one head more: the row stride is free
    case = Case(
        trees=trees, query=wide_query.to(dtype)[:, :num_heads], kv_cache=kv_cache, block_table=block_table,
        req_indices=req_indices, query_starts=query_starts, scale=head_size**-0.5,
    )  # fmt: skip
    keys, values = case.cache_views()
    for req, (context_len, parents) in zip(req_indices, trees, strict=True):
        for slot in range(context_len + len(parents)):
            block, offset = block_table[req, slot // block_size], slot % block_size
            lean = 4 * head_size**-0.5 if slot >= context_len else 0
            keys[block, :, :, offset] = (torch.randn(num_kv_heads, head_size) + lean).to(dtype)
            values[block, :, offset] = torch.randn(num_kv_heads, head_size).to(dtype)
    return case


def assert_matches_reference(case: Case, out: Tensor, **options: object) -> None:
    written = torch.zeros(len(out), dtype=torch.bool)
    for index, (_, parents) in enumerate(case.trees):
        rows = slice(case.query_starts[index], case.query_starts[index] + len(parents))
        exact = case.expected(index, **options)
        torch_error = (case.expected(index, dtype=case.query.dtype, **options) - exact).abs().max()
        # Weights carry 4 float32 steps at most (scores below 16: two from rounding them, one exp2, one sum) on values
        # below 5; the output is rounded once to its dtype, half a step of the largest entry.
        floor = 4 * 5 * torch.finfo(torch.float32).eps + torch.finfo(out.dtype).eps / 2 * exact.abs().max()
        error = (out[rows].double() - exact).abs().max()
        assert error <= 2 * torch_error + floor, f"tree {index}: error {error:.2e}, torch's own {torch_error:.2e}"
        written[rows] = True
    assert (out[~written] == CANARY).all(), "a row outside the listed trees was written"


@pytest.fixture
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("heads", "head_size", "block_size"),
    [
        ((2, 2), 16, 32),  # no sharing, one vector a head ("vec16" models), smallest block
        ((9, 3), 64, 128),  # SmolLM2: three heads share
        ((4, 1), 80, 96),  # five vectors: the wide tile plus a remainder
        ((3, 1), 96, 64),
        ((8, 2), 128, 128),  # Llama 3
        ((2, 1), 256, 32),
    ],
)
def test_mixed_trees_match_reference(heads, head_size, block_size, dtype):
    case = make_case(MIXED_TREES, heads=heads, head_size=head_size, block_size=block_size, dtype=dtype)
    as_chain = case.expected(4, parents=[row - 1 for row in range(70)])
    assert (as_chain - case.expected(4)).abs().max() > 0.1, "inputs no longer tell a tree from a chain"
    assert_matches_reference(case, case.run())


@pytest.mark.parametrize("window", [1, 3, 40, 129, 4096])  # self, inside a tree, inside a context, two blocks, all
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_window_counts_positions_not_slots(window, dtype):
    case = make_case(MIXED_TREES, dtype=dtype)
    if window < 128:
        assert (case.expected(4, sliding_window=window) - case.expected(4)).abs().max() > 0.1
    assert_matches_reference(case, case.run(window=window), sliding_window=window)


def test_blocks_before_the_window_are_not_read():
    case = make_case([(300, FORK)])
    keys, values = case.cache_views()
    freed = case.block_table[case.req_indices[0], : (300 - 20) // 32].long()  # as vLLM frees them
    expected = case.run(window=20)
    keys[freed] = float("nan")
    values[freed] = float("nan")
    assert torch.equal(case.run(window=20), expected)


@pytest.mark.parametrize("softcap", [0.0, 2.0])  # 2 is below the typical score of 4
@pytest.mark.parametrize("has_sinks", [False, True])
def test_softcap_and_sinks(softcap, has_sinks):
    case = make_case(MIXED_TREES)
    sinks = torch.linspace(-2, 9, 6) if has_sinks else None  # from negligible to dominant
    out = case.run(softcap=softcap, sinks=sinks)
    assert_matches_reference(case, out, softcap=softcap, sinks=sinks)


@pytest.mark.parametrize("num_threads", [1, 2, 4], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_context_is_the_same_however_it_is_split(num_threads, dtype):
    """Three chunks; keys grow along the context, so every fold must rescale."""
    case = make_case([(1300, FORK), (40, [-1])], dtype=dtype, block_size=64)
    keys, _ = case.cache_views()
    for index, block in enumerate(case.block_table[case.req_indices[0]].tolist()):
        keys[block] *= 0.25 * (1 + index % 21)
    out = case.run()
    assert_matches_reference(case, out)
    torch.set_num_threads(1)
    assert torch.equal(out, case.run())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chain_rows_have_the_bits_of_decoding_one_by_one(dtype):
    num_rows = 24
    chain = [row - 1 for row in range(num_rows)]
    together = make_case([(500, chain)], dtype=dtype, block_size=64)
    out = together.run()
    for row in range(num_rows):
        alone = Case(
            trees=[(500 + row, [-1])], query=together.query, kv_cache=together.kv_cache, scale=together.scale,
            block_table=together.block_table, req_indices=together.req_indices, query_starts=[2 + row],
        )  # fmt: skip
        assert torch.equal(alone.run()[2 + row], out[2 + row])


@pytest.mark.parametrize("window", [0, 100])
def test_chain_equals_stock_causal_kernel(window):
    ops = pytest.importorskip("vllm._custom_ops", reason="vLLM is not installed")
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    if not hasattr(torch.ops._C, "cpu_attention_with_kv_cache"):
        pytest.skip("this vLLM has no CPU attention")
    case = make_case([(300, [row - 1 for row in range(9)])], heads=(9, 3), block_size=128)
    case.kv_cache.nan_to_num_()  # stock multiplies unused slots by zero
    query = case.query[2:11].contiguous()
    keys, values = case.kv_cache.view(-1, 3, 256, 64).chunk(2, dim=2)
    lens, starts = torch.tensor([309], dtype=torch.int32), torch.tensor([0, 9], dtype=torch.int32)
    metadata = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=1, num_heads=9, num_kv_heads=3, head_dim=64, seq_lens=lens, dtype=query.dtype, query_start_loc=starts,
        causal=True, sliding_window_size=window or -1, isa="vec", enable_kv_split=True,
    )  # fmt: skip
    stock = torch.empty_like(query)
    ops.cpu_attention_with_kv_cache(
        query=query, key_cache=keys, value_cache=values, output=stock, query_start_loc=starts, seq_lens=lens,
        scale=case.scale, causal=True, alibi_slopes=None, sliding_window=window or -1,
        block_table=case.block_table[case.req_indices[0]][None].contiguous(), softcap=0.0,
        scheduler_metadata=metadata, s_aux=None,
    )  # fmt: skip
    exact = case.expected(0, sliding_window=window)
    own_error, stock_error = ((rows.double() - exact).abs().max() for rows in (case.run(window=window)[2:11], stock))
    assert own_error <= 2 * stock_error + 20 * torch.finfo(torch.float32).eps
    assert stock_error < 1e-4, "stock no longer computes the same thing: layout or window convention changed"


def test_empty_batch_writes_nothing():
    case = make_case([(5, FORK)])
    out = torch.full_like(case.query, CANARY)
    query, keys, values, table, *_ = case.arguments()
    none, cu = torch.empty(0, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    masks = torch.empty(0, 1, dtype=torch.int64)
    tree_attention(out, query, keys, values, table, none, none, none, cu, none, masks, 1.0, 0, 0.0, None)
    assert (out == CANARY).all()


@pytest.mark.parametrize(
    ("position", "replace", "message"),
    [
        (0, lambda query: query.double(), "float32, bfloat16 or float16"),
        (1, lambda keys: keys.transpose(2, 3), "key_cache must be"),
        (4, lambda reqs: reqs.long(), "req_indices must be"),
        (4, lambda reqs: reqs + 9, "outside block_table"),
        (5, lambda starts: starts + 9, "outside the query"),
        (6, lambda lens: lens + 999, "exceed the block table"),
        (7, lambda cu: cu + 1, "start with 0"),
        (9, lambda masks: masks.int(), "ancestor_masks must be"),
    ],
)
def test_wrong_arguments_name_themselves(position, replace, message):
    case = make_case([(5, FORK)])
    arguments = list(case.arguments())
    arguments[position] = replace(arguments[position])
    with pytest.raises(RuntimeError, match=message):
        tree_attention(torch.empty_like(case.query), *arguments, 1.0, 0, 0.0, None)


def test_schema_and_fake():
    case = make_case([(5, FORK)])
    arguments = (torch.zeros_like(case.query), *case.arguments(), case.scale, 0, 0.0, None)
    torch.library.opcheck(torch.ops.tlt_engine.tree_attention.default, arguments)
