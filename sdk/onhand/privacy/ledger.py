"""The network ledger: one line of JSON for each use of the network, written when there is one and never sent anywhere.

A line holds names of hosts and no more of what was said to them: no path, no query, no credentials, no text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from onhand.errors import StorageError
from onhand.home import data_folder
from onhand.locks import exclusive_if_free

FILE = "network.jsonl"
OLDER = "network.older.jsonl"
MAX_BYTES = 512 << 10  # of each of the two files: some 2,500 lines, years of pulls

Action = Literal["look-up", "connect", "send", "bind", "receive"]
"""What was done: a name looked up, a connection, a datagram, a port opened to others, and at the end what came."""

Outcome = Literal["allowed", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkUse:
    """One use of the network, made or refused.

    when: UTC, ISO 8601. host: as the program gave it: a name where it is looked up, an address where it is connected
    to. port: None where there is none. purpose: what for. by: on whose act: "user", or the Python package that tried.
    size_bytes: what came, where it is known.
    """

    when: str
    action: Action
    outcome: Outcome
    host: str
    port: int | None
    purpose: str
    by: str
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkAudit:
    """What the ledger says. uses: oldest first. unreadable_lines: those that are damaged. path: of the ledger.

    writable: whether a use would be written down now; where it would not, an empty ledger proves nothing.
    """

    path: Path
    uses: tuple[NetworkUse, ...]
    unreadable_lines: int
    writable: bool


def audit() -> NetworkAudit:
    """Every use of the network that onhand made or refused, as the ledger of the data folder has it.

    The ledger keeps the newest, a megabyte of them. Raises StorageError where it cannot be read; what is damaged in it
    is counted and left out.
    """
    return Ledger(data_folder()).read()


class Ledger:
    """The ledger of one data folder: the file in use, and the one that was full before it."""

    def __init__(self, folder: Path) -> None:
        """folder: exists; nothing is made in it before there is something to write."""
        self._folder = folder
        self.path = folder / FILE

    def add(self, use: NetworkUse) -> None:
        """Write one line, and put a full file aside first. Any process may, at any time. Raises StorageError."""
        line = json.dumps(asdict(use)).encode() + b"\n"
        try:
            self._make_room()
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "ab", buffering=0) as file:  # one write, which others' lines do not cut
                file.write(b"\n" + line if _is_cut_off(self.path) else line)
        except OSError as error:
            raise StorageError(f"the network ledger {self.path} cannot be written ({error.strerror})") from error

    def read(self) -> NetworkAudit:
        """What it holds. Raises StorageError."""
        found = [_parsed(line) for line in self._lines()]
        uses = tuple(use for use in found if use is not None)
        target = self.path if self.path.exists() else self._folder
        return NetworkAudit(
            path=self.path,
            uses=uses,
            unreadable_lines=len(found) - len(uses),
            writable=os.access(target, os.W_OK),
        )

    def _lines(self) -> Iterator[bytes]:
        for path in (self._folder / OLDER, self.path):
            try:
                with path.open("rb") as file:
                    file.seek(max(_size(path) - 2 * MAX_BYTES, 0))  # whatever others made of the file
                    content = file.read(2 * MAX_BYTES)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StorageError(
                    f"the network ledger {path} cannot be read ({error.strerror}): change its owner or mode"
                ) from error
            yield from (line for line in content.splitlines() if line.strip())

    def _make_room(self) -> None:
        if _size(self.path) < MAX_BYTES:
            return
        # Under a lock: of two processes that both found it full, the second would put the first's new file aside.
        with exclusive_if_free(self._folder / ".network.lock") as held:
            if held and _size(self.path) >= MAX_BYTES:
                self.path.replace(self._folder / OLDER)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _is_cut_off(path: Path) -> bool:
    """Whether a process died, or a disk was full, in the middle of the last line."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - 1, 0))
        return file.read(1) not in (b"\n", b"")


def _parsed(line: bytes) -> NetworkUse | None:
    try:
        use = NetworkUse(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    texts = (use.when, use.action, use.outcome, use.host, use.purpose, use.by)
    numbers = (use.port, use.size_bytes)
    sound = all(isinstance(text, str) for text in texts) and all(isinstance(n, int | None) for n in numbers)
    return use if sound else None
