"""Offline, and the ledger of the network: what connects where, why and on whose act."""

from onhand.privacy.guard import OfflineGuard, offline, recorded, require_online
from onhand.privacy.ledger import Ledger, NetworkAudit, NetworkUse, audit

__all__ = [
    "Ledger",
    "NetworkAudit",
    "NetworkUse",
    "OfflineGuard",
    "audit",
    "offline",
    "recorded",
    "require_online",
]
