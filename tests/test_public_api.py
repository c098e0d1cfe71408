"""The public surface is complete, documented, and holds no surprise."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass

import pytest

import onhand
import onhand.errors
from onhand.errors import OnhandError

PUBLIC = [getattr(onhand, name) for name in onhand.__all__]


def test_all_is_sorted_and_holds_every_public_name() -> None:
    assert list(onhand.__all__) == sorted(onhand.__all__)
    visible = {
        name
        for name, value in vars(onhand).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and getattr(value, "__module__", "").startswith("onhand")
    }
    assert visible <= set(onhand.__all__)


def test_every_error_is_public_and_drawn_in_the_tree() -> None:
    drawn = onhand.errors.__doc__ or ""
    for name, value in vars(onhand.errors).items():
        if isinstance(value, type) and issubclass(value, OnhandError):
            assert name in onhand.__all__, name
            assert name in drawn, name


@pytest.mark.parametrize("name", [name for name in onhand.__all__ if isinstance(getattr(onhand, name), type)])
def test_everything_public_has_a_docstring(name: str) -> None:
    value = getattr(onhand, name)
    assert value.__doc__, name
    for member_name, member in vars(value).items():
        if not member_name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            assert member.__doc__, f"{name}.{member_name}"


@pytest.mark.parametrize("value", [v for v in PUBLIC if is_dataclass(v)], ids=lambda v: v.__name__)
def test_values_are_frozen(value: type) -> None:
    assert value.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert fields(value)


def test_errors_are_also_the_builtins_that_they_resemble() -> None:
    assert issubclass(onhand.OptionError, ValueError)
    assert issubclass(onhand.ModelNotFoundError, LookupError)
    assert issubclass(onhand.ContextOverflowError, ValueError)
    assert issubclass(onhand.DownloadError, OSError)
    assert issubclass(onhand.BackendError, RuntimeError)
