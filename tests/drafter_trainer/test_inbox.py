"""What waits for a trainer that does not look stays within its cap."""

from drafter.small import random_sample
from tlt_engine.drafter_trainer.inbox import Inbox


def test_the_latest_are_kept_in_order():
    size = random_sample(10).num_bytes()
    inbox = Inbox(int(3.5 * size))
    for seed in range(8):
        inbox.put(random_sample(10, seed=seed))
        assert inbox.num_bytes() <= inbox.max_bytes
    assert inbox.num_dropped == 5
    assert [inbox.take().req_id for _ in range(3)] == ["r5", "r6", "r7"]
    assert inbox.take() is None


def test_one_that_is_larger_than_the_cap_is_the_buffers_to_refuse():
    inbox = Inbox(10)
    inbox.put(random_sample(10, seed=1))
    inbox.put(random_sample(10, seed=2))
    assert inbox.take().req_id == "r2"
