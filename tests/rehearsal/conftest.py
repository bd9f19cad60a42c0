"""What tests of rehearsed scripts share: a process that forks ranks, and the materials that a file of tests made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rehearsal.staging import ForkServer


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    """Return the process that has imported torch and transformers once."""
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def stages() -> dict[int, Path]:
    """Return the folders of materials by their seed, empty at first."""
    return {}
