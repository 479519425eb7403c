"""A small drafter on disk."""

import pytest

from drafter.small import provenance, small_drafter
from tlt_engine.drafter.checkpoint import save_checkpoint


@pytest.fixture
def directory(tmp_path):
    model = small_drafter().float()
    save_checkpoint(tmp_path / "drafter", model, provenance(model))
    return tmp_path / "drafter"
