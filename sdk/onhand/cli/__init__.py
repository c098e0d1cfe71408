"""The `onhand` command. Exit codes and JSON shapes: docs/guides/cli.md."""

from onhand.cli.app import main

__all__ = ["main"]
