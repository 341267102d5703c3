"""`graphkiln cache`: what lies in the cache, read without torch and without importing any model."""

from __future__ import annotations

import typer

from graphkiln.cli.commands import cache_marks, cache_prune, cache_starts, cache_verify, reading

app = typer.Typer(help="Lists, compares and cleans cache entries; imports nothing that lies in them.")
app.command("ls")(reading.ls)
app.command("inspect")(reading.inspect)
app.command("diff")(reading.diff)
app.command("verify")(cache_verify.verify)
app.command("restore")(cache_verify.restore)
app.command("prune")(cache_prune.prune)
app.command("rm")(cache_prune.rm)
app.command("pin")(cache_marks.pin)
app.command("unpin")(cache_marks.unpin)
app.command("label")(cache_marks.label)
app.command("starts")(cache_starts.starts)
app.command("dir")(cache_marks.directory)
app.command("size")(cache_marks.size)
