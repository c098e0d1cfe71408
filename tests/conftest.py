"""The whole suite runs offline, in a home of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import suite_network

HOME = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Before a test is so much as imported."""
    home = config.stash[HOME] = tempfile.TemporaryDirectory(prefix="onhand-tests-")
    os.environ["ONHAND_HOME"] = home.name
    suite_network.go_offline()


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[HOME].cleanup()


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_the_loopback(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """BR-69: after the last test, by the ledgers of all tests and of the processes that they started."""
    yield
    folders = [Path(pytestconfig.stash[HOME].name), tmp_path_factory.getbasetemp()]
    assert suite_network.leaks(folders) == []


@pytest.fixture
def online() -> Iterator[None]:
    """Takes the guard away from one test; see `suite_network.online`."""
    with suite_network.online():
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    allowed = suite_network.allowances()
    terminalreporter.write_line(f"the network was allowed for: {', '.join(allowed) or 'nothing'}")
