from __future__ import annotations

import json
import stat
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from onhand.errors import StorageError
from onhand.locks import exclusive
from onhand.privacy import Ledger, ledger
from support.uses import USE


@pytest.fixture
def made(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


def test_what_was_added_is_read_in_order(made: Ledger) -> None:
    uses = [USE, replace(USE, action="receive", size_bytes=98_000_000), replace(USE, port=None, outcome="refused")]
    for use in uses:
        made.add(use)
    assert made.read().uses == tuple(uses)
    assert made.read().unreadable_lines == 0


def test_a_line_is_json_with_its_fields_by_name(made: Ledger) -> None:
    made.add(USE)
    assert json.loads(made.path.read_text()) == {
        "when": "2026-01-02T03:04:05Z",
        "action": "connect",
        "outcome": "allowed",
        "host": "127.0.0.1",
        "port": 443,
        "purpose": "pull tiny",
        "by": "user",
        "size_bytes": None,
    }


def test_reading_makes_no_file(made: Ledger, tmp_path: Path) -> None:
    assert made.read().uses == ()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes")
def test_only_the_owner_can_read_it(made: Ledger) -> None:
    made.add(USE)
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "damage",
    [
        b"\x00\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b"{}\n",
        b"null\n",
        b'{"when": 1, "action": "connect", "outcome": "allowed", "host": "h", "port": 1, "purpose": "p", "by": "b"}\n',
        b'{"when": "2026-01-02T03:0',
    ],
    ids=["bytes", "depth", "fields", "null", "types", "cut off"],
)
def test_damaged_lines_are_counted_and_cost_no_other(made: Ledger, damage: bytes) -> None:
    made.add(USE)
    with made.path.open("ab") as file:
        file.write(damage)
    made.add(USE)
    found = made.read()
    assert found.uses == (USE, USE)
    assert found.unreadable_lines == 1


def test_it_stays_below_its_bound_and_keeps_the_newest(
    made: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "MAX_BYTES", 2_000)
    for port in range(200):
        made.add(replace(USE, port=port))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 * 2_000 + 2 * 250
    ports = [use.port for use in made.read().uses]
    assert ports == list(range(ports[0] or 0, 200))
    assert len(ports) >= 2_000 // 250


def test_a_use_is_not_held_up_by_another_process_that_puts_the_full_file_aside(
    made: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.add(USE)
    monkeypatch.setattr(ledger, "MAX_BYTES", made.path.stat().st_size)
    with exclusive(tmp_path / ".network.lock"):
        made.add(USE)
    assert made.read().uses == (USE, USE)


def test_many_writers_lose_no_line(made: Ledger, tmp_path: Path) -> None:
    def write(number: int) -> None:
        for _ in range(50):
            Ledger(tmp_path).add(replace(USE, port=number))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = made.read()
    assert sorted(use.port or 0 for use in found.uses) == sorted(list(range(8)) * 50)
    assert found.unreadable_lines == 0


def test_what_cannot_be_written_or_read_is_a_storage_error(made: Ledger) -> None:
    made.path.mkdir()
    with pytest.raises(StorageError, match="cannot be written"):
        made.add(USE)
    with pytest.raises(StorageError, match="cannot be read"):
        made.read()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_storage_error(made: Ledger) -> None:
    made.path.symlink_to("/dev/full")
    with pytest.raises(StorageError, match="No space left"):
        made.add(USE)


def test_a_file_that_others_made_huge_is_read_at_its_end_alone(made: Ledger) -> None:
    with made.path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no disk, and reading it would take all memory
    with made.path.open("ab") as file:
        file.write(b"\n" + json.dumps(asdict(USE)).encode() + b"\n")
    assert made.read().uses == (USE,)


def test_the_audit_tells_whether_a_use_would_be_written_down(made: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made.read().writable
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root, whom the tests may run as, may write everywhere
    assert not made.read().writable
