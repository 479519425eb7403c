"""The real target that ``make model`` leaves."""

import pytest

from models import MODEL_DIR


@pytest.fixture(scope="session")
def model():
    if not (MODEL_DIR / "config.json").exists():
        pytest.skip("no real model; run 'make model'")
    return str(MODEL_DIR)
