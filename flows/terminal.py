"""What every command shares: where it prints, and the options that all have."""

import sys
from typing import Annotated

import typer
from rich.console import Console

STDERR = Console(stderr=True)
STDOUT = Console(width=None if sys.stdout.isatty() else 110)  # tables in a pipe or a file keep their columns

Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and every library's log.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")]
