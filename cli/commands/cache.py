"""`graphkiln cache`: what lies in the cache, read without torch and without importing any model."""

from __future__ import annotations

import typer

app = typer.Typer(help="Lists and inspects cache entries.")


@app.command("ls")
def ls(context: typer.Context) -> int:
    """Lists the entries."""
    return 0


@app.command("inspect")
def inspect(context: typer.Context) -> int:
    """Shows one entry."""
    return 0
