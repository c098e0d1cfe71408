"""The check that ends every run of the suite finds what it is to find."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from onhand.privacy import Ledger, NetworkUse
from support.children import run_python
from support.suite_network import leaks
from support.uses import USE


@pytest.mark.parametrize(
    ("use", "leak"),
    [
        (USE, False),
        (replace(USE, host="198.51.100.7"), True),
        (replace(USE, host="192.0.2.1"), True),  # allowed, so it left
        (replace(USE, host="telemetry.example"), True),
        (replace(USE, host="telemetry.example", outcome="refused"), True),  # somebody dials out
        (replace(USE, host="a.invalid", outcome="refused"), False),
        (replace(USE, host="telemetry.example", by="tests"), False),  # a corpus, and in the summary
    ],
    ids=lambda value: f"{value.outcome} {value.host} by {value.by}" if isinstance(value, NetworkUse) else "",
)
def test_the_last_check_knows_a_leak(use: NetworkUse, leak: bool) -> None:
    # Not below pytest's own folder, where the last check of this very run would find it.
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "of" / "a test").mkdir(parents=True)
        Ledger(Path(folder) / "of" / "a test").add(use)
        assert leaks([Path(folder)]) == ([use] if leak else [])


def test_processes_that_tests_start_are_offline_and_tell_the_ledger(home: Path) -> None:
    code = """
        import onhand, socket
        try:
            socket.gethostbyname("a.invalid")
        except onhand.OfflineError:
            print("refused")
    """
    assert run_python(code, online=False) == "refused\n"
    (use,) = Ledger(home).read().uses
    assert use.host == "a.invalid"
