"""The command line: parse, call the advisor, render. Nothing is computed here."""

from omnipilot.cli.app import main

__all__ = ["main"]
