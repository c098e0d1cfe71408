"""The suite's own guard: every test runs offline, and what the ledgers of all of them say is read at the end.

`allowed` is the one way out, for children that fetch corpora; the run's summary names each. The fixture `online` is for
tests of fetching itself, whose index is a folder or on the loopback.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import onhand
from onhand.privacy import Ledger, NetworkUse, recorded
from onhand.privacy.ledger import FILE

ALLOWED_BY = "tests"
"""Who a use of the network is said to be by, in the ledger, when it is an allowed one."""

# What the tests of refusals try to reach: documentation's addresses and what is no host at all.
REHEARSED = ("192.0.2.", "2001:db8::", "*", "(no name of a host)", "address-family-")

_allowances: list[str] = []
_guards: list[onhand.privacy.OfflineGuard] = []


def go_offline() -> None:
    """From now on, for this process and those that it starts."""
    os.environ["ONHAND_OFFLINE"] = "1"
    _guards.append(onhand.offline())


@contextmanager
def online() -> Iterator[None]:
    """Let a test of fetching through; what it connects to is recorded, and must be the loopback all the same."""
    _guards.pop().end()
    del os.environ["ONHAND_OFFLINE"]
    try:
        with recorded("a test", by="test"):
            yield
    finally:
        go_offline()


def allowed(purpose: str) -> dict[str, str]:
    """The environment of a child that may use the network. purpose: for the summary of the run."""
    _allowances.append(purpose)
    return {name: value for name, value in os.environ.items() if name != "ONHAND_OFFLINE"}


def allowances() -> list[str]:
    """What was allowed in this run."""
    return list(_allowances)


def leaks(folders: list[Path]) -> list[NetworkUse]:
    """What the ledgers anywhere below these folders hold that no test may do."""
    ledgers = {path.parent for folder in folders for path in folder.rglob(FILE) if path.is_file()}
    return [use for folder in sorted(ledgers) for use in Ledger(folder).read().uses if not _is_harmless(use)]


def _is_harmless(use: NetworkUse) -> bool:
    rehearsed = use.outcome == "refused" and (use.host.endswith(".invalid") or use.host.startswith(REHEARSED))
    return use.by == ALLOWED_BY or rehearsed or _is_loopback(use.host)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
