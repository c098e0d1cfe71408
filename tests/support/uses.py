"""A line of the network ledger."""

from __future__ import annotations

from onhand.privacy import NetworkUse

USE = NetworkUse(
    when="2026-01-02T03:04:05Z",
    action="connect",
    outcome="allowed",
    host="127.0.0.1",
    port=443,
    purpose="pull tiny",
    by="user",
)
