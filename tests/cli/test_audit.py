from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import onhand
from onhand.privacy import Ledger
from support.uses import USE

RECEIVED = replace(USE, action="receive", port=8080, size_bytes=98_362_432)
REFUSED = onhand.NetworkUse(
    when="2026-01-03T03:04:05Z",
    action="look-up",
    outcome="refused",
    host="a.invalid",
    port=None,
    purpose="unknown",
    by="chatty",
)


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onhand.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done
    return done


@pytest.fixture
def ledger(home: Path) -> Ledger:
    home.mkdir()
    return Ledger(home)


def test_when_nothing_ever_connected_it_says_so_plainly(home: Path) -> None:
    done = run("audit")
    assert done.stdout == "Nothing ever connected: onhand has made no connection, and refused none.\n"
    assert done.stderr == ""
    found = json.loads(run("audit", "--json").stdout)
    assert found == {"path": str(home / "network.jsonl"), "uses": [], "unreadable_lines": 0, "writable": True}


def test_it_tells_what_connected_where_why_and_on_whose_act(ledger: Ledger) -> None:
    ledger.add(RECEIVED)
    ledger.add(REFUSED)
    first, second, _, total = run("audit").stdout.splitlines()
    assert first == "2026-01-02T03:04:05Z  allowed  receive  127.0.0.1 port 8080  for: pull tiny  by: user    98.4 MB"
    assert second == "2026-01-03T03:04:05Z  refused  look-up  a.invalid            for: unknown    by: chatty"
    assert total == f"1 allowed, 1 refused ({ledger.path})"


def test_its_json_has_every_field(ledger: Ledger) -> None:
    ledger.add(RECEIVED)
    (use,) = json.loads(run("audit", "--json").stdout)["uses"]
    assert onhand.NetworkUse(**use) == RECEIVED


def test_a_damaged_ledger_is_never_taken_for_an_empty_one(ledger: Ledger) -> None:
    ledger.path.write_bytes(b"\x00\n")
    done = run("audit")
    assert "Nothing ever" not in done.stdout
    assert "1 lines" in done.stderr


def test_a_ledger_that_cannot_be_read_is_one_line_and_leaves_with_6(ledger: Ledger) -> None:
    ledger.path.mkdir()
    assert "cannot be read" in run("audit", code=6).stderr


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_ledger_that_cannot_be_written_is_told(ledger: Ledger) -> None:
    ledger.add(RECEIVED)
    ledger.path.chmod(0o400)
    assert "cannot be written" in run("audit").stderr


def test_a_host_cannot_steer_the_terminal_through_the_ledger(ledger: Ledger) -> None:
    ledger.path.write_text(json.dumps({"x": "\x1b]0;owned\x07"}) + "\n")
    done = run("audit")
    assert "\x1b" not in done.stdout + done.stderr


def test_pulling_while_offline_leaves_with_10_and_says_what_to_do(home: Path) -> None:
    done = run("pull", "smollm2-135m", code=10)
    assert done.stderr.startswith("error: smollm2-135m cannot be fetched: onhand is offline")
    assert "ONHAND_OFFLINE" in done.stderr
    assert not (home / "network.jsonl").exists()
