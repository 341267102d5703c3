"""The command `graphkiln`: its commands, its global options, and how every run of it ends."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from graphkiln.cli.argv import rewrite
from graphkiln.cli.commands import cache, check, explain, key, precompile, target, warm
from graphkiln.cli.errors import INTERRUPTED, Problem, UsageProblem, problem_of
from graphkiln.cli.session import Session, json_text
from graphkiln.cli.show.stdout import complete_streams, unwritten, write_out

# The root of what the parser raises has no name that all versions of typer share.
PARSER_ERROR: Any = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="graphkiln",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Compiles a model's graphs before the server starts, and proves that a start used them.",
    epilog="Exit status: 0 yes, 1 no, 2 bad input, 3 cannot be known from here, 4 not on this machine.",
)
app.command("precompile")(precompile.precompile)
app.command("warm")(warm.warm)
app.command("check")(check.check)
app.command("key")(key.key)
app.command("explain")(explain.explain)
app.add_typer(target.app, name="target")
app.add_typer(cache.app, name="cache")


def main(argv: list[str] | None = None) -> int:
    """Runs one command line and returns its exit status."""
    words = (sys.argv[1:] if argv is None else argv) or ["--help"]
    complete_streams()
    print_anything()
    try:
        with unwound_by_term():
            status = typer.main.get_command(app).main(
                rewrite(words), prog_name="graphkiln", standalone_mode=False
            )
        write_out("")  # what --help printed
    except KeyboardInterrupt:
        status = INTERRUPTED
    except OSError as error:
        # Help is all that the parser writes itself, and what it writes opens no file.
        nameless = error.filename is None and not isinstance(error, BrokenPipeError)
        return failed(words, unwritten(error) if nameless and {"--help", "-h"} & set(words) else error)
    except Exception as error:
        return failed(words, error)
    if status == INTERRUPTED:
        print("interrupted", file=sys.stderr)
    return int(status or 0)


@contextlib.contextmanager
def unwound_by_term() -> Iterator[None]:
    """Lets SIGTERM unwind the process as Ctrl-C does, its compilers killed first.

    A process that sees a described device is ended on the way, which has folders of its own to put away.
    """

    def end(number: int, frame: object) -> None:
        from graphkiln.cli.children import kill_children

        described = sys.modules.get("graphkiln.core.target.child")
        kill_children(described.running() if described is not None else ())
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def print_anything() -> None:
    """Lets stdout and stderr show what they have no letters for, a path in another script, as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # slower to import than all the rest of this module

        write_out(f"graphkiln {version('graphkiln')}\n")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    cache_root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where entries are kept.", show_default=False)
    ] = None,
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose", "-v", count=True, help="Say more; -vv adds tracebacks.", show_default=False
        ),
    ] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no talk.")] = False,
    show_version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The global options; they may stand anywhere on the line."""
    from graphkiln.cli.talk import start_talk  # --help and --version need none

    context.obj = Session(cache_root, verbose, quiet)
    start_talk(context.obj)


def failed(words: list[str], error: Exception) -> int:
    """Tells what went wrong, on one line and its hint, and returns the exit status for it."""
    usage = usage_problem(error)
    problem = usage or problem_of(error)
    if not usage and ("-vv" in words or words.count("-v") + words.count("--verbose") > 1):
        import traceback

        traceback.print_exception(error)
    print(f"error: {problem.sentence}", file=sys.stderr)
    if problem.hint:
        print(f"hint: {problem.hint}", file=sys.stderr)
    if "--json" in words:
        facts = {"kind": problem.kind, "message": problem.sentence, "hint": problem.hint}
        with contextlib.suppress(OSError):  # the error is told; that stdout takes nothing may be it
            write_out(json_text(command_of(words), {"error": facts, "exit": problem.status}) + "\n")
    return problem.status


def usage_problem(error: Exception) -> Problem | None:
    """Returns an error of the parser's as one of ours; it knows the command whose --help is the hint."""
    if not isinstance(error, PARSER_ERROR):
        return None
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "graphkiln"
    sentence = error.format_message().removesuffix(".")
    return problem_of(UsageProblem(sentence[:1].lower() + sentence[1:], f"{path} --help says what it takes"))


def command_of(words: list[str]) -> str:
    """Returns the name of the command that was typed, `cache ls` for example."""
    names: list[str] = []
    command = typer.main.get_command(app)
    for word in words:
        below = getattr(command, "commands", {}).get(word)
        if below is not None:
            names.append(word)
            command = below
    return " ".join(names)
