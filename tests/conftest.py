"""One thread for every test: the same bits on every run, and two workers that do not fight for two cores."""

from __future__ import annotations

import os

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def data_folder() -> str:
    """The folder of the larger data sets; the tests that need it are skipped where there is none."""
    folder = os.environ.get("NODESLAB_DATA")
    if not folder:
        pytest.skip("NODESLAB_DATA is not set")
    return folder
