"""Who is tapped."""

import torch

from tlt_engine.drafter.feature_ring import FeatureRing
from tlt_engine.worker.feature_tap import FeatureTap
from worker.tapped import take


def test_a_full_batch_is_not_newly_tapped():
    ring = FeatureRing(4, 8, 4, dtype=torch.float32)
    tap = FeatureTap(ring, capture_threshold=2)
    take(tap, "abc", 0)
    assert len(ring) == 0
    take(tap, "bc", 2)
    assert ring.extent("b") == ring.extent("c") == (2, 4), "features begin where the tap did"
    take(tap, "abc", 4)
    assert "a" not in ring
    assert ring.extent("c") == (2, 6)
    assert ring.read("c", 4, 6).tolist() == [[4.0, 4.0, -4.0, -4.0], [5.0, 5.0, -5.0, -5.0]]
