"""kv_compact against a dictionary of slots, over the memory layouts that caches come in."""

import random

import pytest
import torch
from torch import Tensor

from tests.reference.kv_compact import kv_compact as reference
from tlt_engine.ops import kv_compact

Moves = list[list[tuple[int, int]]]

# The path 2 -> 4 -> 5 of a tree whose root sits in slot 10: the first move reads slot 12, the second writes it.
PATH_MOVES: Moves = [[(12, 11), (14, 12), (15, 13)]]


def contiguous(num_blocks: int, block_size: int, num_heads: int, head_size: int, dtype: torch.dtype) -> Tensor:
    """One plane of random bytes, slot-major."""
    size = torch.empty(0, dtype=dtype).element_size()
    shape = (num_blocks, block_size, num_heads, head_size * size)
    return torch.randint(0, 256, shape, dtype=torch.uint8).view(dtype)


def transposed_keys(*sizes: int, dtype: torch.dtype) -> Tensor:
    """[head_size, block_size] inside a (block, head), as the CPU cache keeps keys."""
    return contiguous(*sizes, dtype).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def head_major(*sizes: int, dtype: torch.dtype) -> Tensor:
    """[head, slot, head_size] inside a block, keys and values in one page: the plane is half of each row."""
    num_blocks, block_size, num_heads, head_size = sizes
    page = contiguous(num_blocks, num_heads, block_size, 2 * head_size, dtype)
    return page[..., head_size:].permute(0, 2, 1, 3)


def slot_major(*sizes: int, dtype: torch.dtype) -> Tensor:
    """Everything contiguous: a slot is one run of bytes."""
    return contiguous(*sizes, dtype)


def padded_heads(*sizes: int, dtype: torch.dtype) -> Tensor:
    """Slots contiguous, but a gap after every head, and the data starts one element into its storage."""
    num_blocks, block_size, num_heads, head_size = sizes
    return contiguous(num_blocks, block_size, num_heads, head_size + 3, dtype)[..., 1 : 1 + head_size]


def aligned_heads(*sizes: int, dtype: torch.dtype) -> Tensor:
    """Every head padded to whole 16-byte units, which an odd head must not be moved in."""
    num_blocks, block_size, num_heads, head_size = sizes
    return contiguous(num_blocks, block_size, num_heads, (head_size + 15) // 16 * 16, dtype)[..., :head_size]


def spread_elements(*sizes: int, dtype: torch.dtype) -> Tensor:
    """A gap after every element, so that neighbouring elements never lie together."""
    num_blocks, block_size, num_heads, head_size = sizes
    return contiguous(num_blocks, block_size, num_heads, 4 * head_size, dtype)[..., ::4]


LAYOUTS = [slot_major, transposed_keys, head_major, padded_heads, aligned_heads, spread_elements]
DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn]  # elements of 4, 2 and 1 bytes


def run(planes: list[Tensor], moves: Moves, device: torch.device) -> list[Tensor]:
    """Returns the planes after the op, on the CPU."""
    flat = [move for request in moves for move in request]
    cu_moves = torch.tensor([0] + [len(request) for request in moves]).cumsum(0).to(torch.int32)
    slots = torch.tensor(flat, dtype=torch.int64).reshape(-1, 2)
    on_device = [_storage_copy(plane, device) for plane in planes]
    kv_compact(on_device, slots[:, 0].contiguous().to(device), slots[:, 1].contiguous().to(device), cu_moves.to(device))
    return [plane.cpu() if plane.is_cuda else plane for plane in on_device]


def _storage_copy(plane: Tensor, device: torch.device) -> Tensor:
    """Copies the whole storage, gaps included, and views it as before."""
    storage = torch.empty(0, dtype=plane.dtype).set_(plane.untyped_storage()).clone().to(device)
    return storage.as_strided(plane.shape, plane.stride(), plane.storage_offset())


def as_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def assert_matches_reference(planes: list[Tensor], moves: Moves, device: torch.device) -> None:
    for moved, expected in zip(run(planes, moves, device), reference(planes, moves), strict=True):
        assert torch.equal(as_bytes(moved), as_bytes(expected))


def tree_moves(num_reqs: int, max_moves: int, seed: int) -> Moves:
    """Accepted paths of random trees; requests lie 40 slots apart, so blocks are shared and crossed."""
    draw = random.Random(seed)
    moves = []
    for req in range(num_reqs):
        rows = sorted(draw.sample(range(1, 40), draw.randint(0, max_moves)))
        moves.append([(40 * req + row, 40 * req + depth) for depth, row in enumerate(rows, 1) if row != depth])
    return moves


def test_hand_drawn_path_moves_in_order(device):
    plane = torch.arange(16, dtype=torch.float32).reshape(2, 8, 1, 1).expand(2, 8, 2, 3).contiguous()
    (moved,) = run([plane], PATH_MOVES, device)
    assert moved[:, :, 1, 2].flatten().tolist() == [*range(11), 12, 14, 15, 14, 15]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_size", [1, 6, 64])  # one element, an odd number of pairs, 16-byte units
def test_layouts_match_reference(layout, dtype, head_size, device):
    torch.manual_seed(head_size)
    moves = tree_moves(num_reqs=3, max_moves=9, seed=head_size)
    sources = {source for request in moves for source, _ in request}
    assert any(dst in sources for request in moves for _, dst in request), "no move overwrites an earlier source"
    assert_matches_reference([layout(4, 32, 3, head_size, dtype=dtype)], moves, device)


def test_planes_of_different_shape_type_and_block_size(device):
    torch.manual_seed(0)
    planes = [
        slot_major(4, 32, 3, 64, dtype=torch.bfloat16),
        transposed_keys(8, 16, 2, 8, dtype=torch.float32),
        head_major(2, 64, 5, 7, dtype=torch.float8_e4m3fn),
    ]
    assert_matches_reference(planes, tree_moves(3, 12, seed=5), device)


def test_more_planes_than_one_launch_takes(device):
    torch.manual_seed(0)
    planes = [slot_major(2, 16, 1, 4, dtype=torch.float32) for _ in range(70)]
    assert_matches_reference(planes, [[(5, 2)], [], [(20, 18), (21, 19)]], device)


def test_more_moves_than_one_pass_takes(device):
    torch.manual_seed(0)
    moves = [[(row, row - 1) for row in range(2, 150)]]
    assert_matches_reference([transposed_keys(2, 128, 1, 4, dtype=torch.bfloat16)], moves, device)


@pytest.mark.parametrize("layout", [head_major, padded_heads])
def test_bytes_between_heads_stay(layout, device):
    torch.manual_seed(0)
    plane = layout(2, 16, 2, 5, dtype=torch.bfloat16)
    (moved,) = run([plane], [[(9, 3)]], device)
    before, after = (
        torch.empty(0, dtype=plane.dtype).set_(tensor.untyped_storage()).view(torch.int16) for tensor in (plane, moved)
    )
    assert int((before != after).sum()) <= 2 * 5
    assert not torch.equal(before, after)


@pytest.mark.parametrize("planes", [[], [torch.zeros(2, 4, 1, 2)]])
@pytest.mark.parametrize("moves", [[], [[]]])
def test_nothing_to_move(planes, moves, device):
    assert_matches_reference(planes, moves, device)


WRONG_ARGUMENTS = [
    (0, [torch.zeros(8, 2, 4)], r"a plane must be \[num_blocks, .*but has shape \[8, 2, 4\]"),
    (0, [torch.zeros(2, 8, 1, 4, dtype=torch.float64)], "must have 1, 2 or 4 bytes, but Double has 8"),
    (0, [torch.zeros(2, 8, 0, 4)], r"must not be empty, but has shape \[2, 8, 0, 4\]"),
    (1, torch.tensor([16]), r"slots must be in \[0, 16\), but move 0 names 16"),
    (2, torch.tensor([-1]), r"slots must be in \[0, 16\), but move 0 names -1"),
    (2, torch.tensor([3, 4]), "dst_slots must have 1 entries, but has 2"),
    (3, torch.tensor([0, 2], dtype=torch.int32), "cu_moves must end at no more than 1, but ends at 2"),
    (3, torch.tensor([0, 1]), "cu_moves must be Int, but is Long"),
]


@pytest.mark.parametrize(("position", "replacement", "message"), WRONG_ARGUMENTS)
def test_wrong_arguments_name_themselves(position, replacement, message):
    arguments = [
        [torch.zeros(2, 8, 1, 4)],
        torch.tensor([5]),
        torch.tensor([3]),
        torch.tensor([0, 1], dtype=torch.int32),
    ]
    arguments[position] = replacement
    with pytest.raises(RuntimeError, match=message):
        kv_compact(*arguments)


def test_schema_and_fake(device):
    planes = [torch.randn(2, 8, 1, 4, device=device), torch.randn(2, 8, 4, 1, device=device).transpose(2, 3)]
    slots = torch.tensor([5, 6], device=device)
    cu_moves = torch.tensor([0, 2], dtype=torch.int32, device=device)
    torch.library.opcheck(torch.ops.tlt_engine.kv_compact.default, (planes, slots, slots - 1, cu_moves))
