"""The command line: parse, call one function, print."""

from sottovoce.cli.app import main

__all__ = ["main"]
