"""The command line: parse, call the advisor, render, and compute nothing."""

from omnipilot.cli.app import main

__all__ = ["main"]
