"""`graphkiln cache`: what lies in the cache, read without torch and without importing any model."""

from __future__ import annotations

import typer

from graphkiln.cli.commands import reading

app = typer.Typer(help="Lists, compares and cleans cache entries; imports nothing that lies in them.")
app.command("ls")(reading.ls)
app.command("inspect")(reading.inspect)
app.command("diff")(reading.diff)
