"""`python -m onhand.cli` is the `onhand` command."""

from onhand.cli import main

main()
