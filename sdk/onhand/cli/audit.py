"""`onhand audit`: what ever connected where, why, and on whose act."""

from __future__ import annotations

from dataclasses import asdict

from onhand.cli import flags
from onhand.cli.console import megabytes, note, say, say_json
from onhand.privacy import NetworkAudit, NetworkUse
from onhand.privacy import audit as read_ledger

NOTHING = "Nothing ever connected: onhand has made no connection, and refused none."


def audit(json: flags.Json = False) -> None:
    """Tell what ever connected where, why, and on whose act: what onhand fetched, and what it refused while offline."""
    found = read_ledger()
    if json:
        say_json(asdict(found) | {"path": str(found.path)})
    else:
        _print(found)


def _print(found: NetworkAudit) -> None:
    if found.uses:
        rows = [_row(use) for use in found.uses]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            say("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
        refused = sum(use.outcome == "refused" for use in found.uses)
        say(f"\n{len(found.uses) - refused} allowed, {refused} refused ({found.path})")
    elif not found.unreadable_lines:
        say(NOTHING)
    if found.unreadable_lines:
        note(f"{found.unreadable_lines} lines of {found.path} are damaged and left out")
    if not found.writable:
        note(f"{found.path} cannot be written: what connects now leaves no line; change its owner or mode")


def _row(use: NetworkUse) -> tuple[str, ...]:
    where = use.host if use.port is None else f"{use.host} port {use.port}"
    size = "" if use.size_bytes is None else megabytes(use.size_bytes)
    return (use.when, use.outcome, use.action, where, f"for: {use.purpose}", f"by: {use.by}", size)
