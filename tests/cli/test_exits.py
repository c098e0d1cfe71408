from __future__ import annotations

from itertools import permutations
from pathlib import Path

from onhand import errors
from onhand.cli.exits import EXIT_CODES, OTHER, exit_code

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "cli.md"


def test_no_class_of_the_table_is_a_parent_of_another() -> None:
    assert not [pair for pair in permutations(EXIT_CODES, 2) if issubclass(*pair)]


def test_an_error_leaves_with_the_code_of_its_nearest_class() -> None:
    assert exit_code(errors.OptionError("x", 1, "2")) == 2
    assert exit_code(errors.HashMismatchError("x", "a", "b")) == 5
    assert exit_code(errors.ContextOverflowError(9, 8)) == 7
    assert exit_code(errors.ModelExistsError("x")) == OTHER


def test_the_guide_names_every_code() -> None:
    rows = [
        line.split("|")[1].strip() for line in GUIDE.read_text(encoding="utf-8").splitlines() if line.startswith("|")
    ]
    assert {str(code) for code in EXIT_CODES.values()} <= set(rows)
