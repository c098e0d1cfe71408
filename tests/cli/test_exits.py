from __future__ import annotations

import errno
from itertools import permutations
from pathlib import Path

from onhand import errors
from onhand.cli.exits import EXIT_CODES, OTHER, exit_code
from onhand.types import MemoryPlan

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "cli.md"


def test_no_class_of_the_table_is_a_parent_of_another() -> None:
    assert not [pair for pair in permutations(EXIT_CODES, 2) if issubclass(*pair)]


def test_an_error_leaves_with_the_code_of_its_nearest_class() -> None:
    assert exit_code(errors.OptionError("x", 1, "2")) == 2
    assert exit_code(errors.HashMismatchError("x", "a", "b")) == 5
    assert exit_code(errors.ContextOverflowError(9, 8)) == 7
    assert exit_code(errors.ModelExistsError("x")) == OTHER
    assert exit_code(errors.OfflineError("x")) == 10
    plan = MemoryPlan(
        weights_bytes=9,
        kv_bytes=9,
        overhead_bytes=9,
        available_bytes=8,
        limited_by="the machine",
        window_tokens=1,
        slots=1,
        kv_bits=32,
    )
    assert exit_code(errors.MemoryPlanError("x", plan)) == 9


def test_a_disk_that_is_full_leaves_with_6_whoever_found_out() -> None:
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO):
        assert exit_code(OSError(number, "of the disk")) == 6
    assert exit_code(BrokenPipeError(errno.EPIPE, "the reader has gone")) == OTHER
    assert exit_code(PermissionError(errno.EACCES, "of a file")) == OTHER


def test_the_guide_names_every_code() -> None:
    rows = [
        line.split("|")[1].strip() for line in GUIDE.read_text(encoding="utf-8").splitlines() if line.startswith("|")
    ]
    assert {str(code) for code in EXIT_CODES.values()} <= set(rows)
