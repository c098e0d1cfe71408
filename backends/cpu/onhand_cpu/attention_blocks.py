"""Where a run has to end so that attention gives every token the bits that it gets in any other run.

The attention kernel takes keys and queries in blocks, as large as the processor's L2 cache suggests (docs/adr/0005). A
query that is alone in its block goes through another kernel. Queries come in even numbers (see onhand_cpu.decoder), so
that happens in blocks of an odd number only; there a run is no longer than a block. With heads of more than 128 values
queries are multiplied by a block of keys in another order of summation when it holds up to 64; there a run crosses
neither the end of a block nor its 64th place.
"""

from __future__ import annotations

import os
import sys
from functools import cache

WIDE_HEAD_SIZE = 128
NARROW_BLOCK = 64
USUAL_L2_BYTES = 2**21
_SC_LEVEL2_CACHE_SIZE = 191  # glibc's number, which Python has no name for; ONNX Runtime asks for the same


def run_tokens(head_size: int, place: int, wanted: int) -> int:
    """How many of the wanted tokens a run may append from a place of a slot on, with a float KV cache."""
    period = keys_a_block(head_size, l2_bytes())
    queries = min(period, 2 * head_size)
    if queries % 2:
        wanted = min(wanted, queries - 1)
    if head_size <= WIDE_HEAD_SIZE:
        return wanted
    inside = place % period
    return min(wanted, (NARROW_BLOCK - 1 if inside < NARROW_BLOCK - 1 < period else period) - inside)


def keys_a_block(head_size: int, l2: int) -> int:
    """How many keys, with their values, the kernel takes at a time: as many as fill a quarter of L2."""
    return max(l2 // 4 // (2 * 4 * head_size), 2)


@cache
def l2_bytes() -> int:
    """The L2 cache of a core, as glibc tells; the usual size where there is none to ask."""
    if sys.platform != "linux":
        return USUAL_L2_BYTES
    try:
        return max(os.sysconf(_SC_LEVEL2_CACHE_SIZE), 0) or USUAL_L2_BYTES
    except (ValueError, OSError):  # another C library
        return USUAL_L2_BYTES
