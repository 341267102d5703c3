"""`precompile --engine vllm -- ARGUMENTS`: an installed vLLM fills its own cache, which is verified then."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from graphkiln.cli.commands.foreign import status_of, tree_of
from graphkiln.cli.errors import NO, UNKNOWN, EngineProblem, UsageProblem
from graphkiln.cli.session import Session

if TYPE_CHECKING:
    from graphkiln.cache.layouts.found import ForeignRow

SERVER = "vllm.entrypoints.cli.main"
# How a server is reached changes nothing in its cache, and here it is asked at an address of our own.
OWN_ADDRESS = ("--host", "--port", "--uds", "--ssl-keyfile", "--ssl-certfile", "--root-path", "--headless")
_STDERR = 2
_ASK_EVERY_S = 0.5
_LOOK_EVERY_S = 0.05
_MOST_TO_ANSWER_S = 5.0
_MOST_TO_END_S = 60.0


def precompile_engine(session: Session, engine: str, words: Sequence[str], *, as_json: bool) -> int:
    """Starts the server once, ends it when it answers, and verifies the entries that are new or changed.

    Exit status as of `verify`; 1 where nothing was written, 3 where entries were there before: it may be
    that the start hit one of them.
    """
    root = checked_root(session, engine, words)
    before = {row.path: row.seen for row in rows_at(root)}
    serve_once(session, root, words)
    after = rows_at(root)
    made = [row for row in after if before.get(row.path) != row.seen]
    verdicts = [row.reader.verify(row) for row in made]
    status = status_of(verdicts) if made else UNKNOWN if before else NO
    if as_json:
        from graphkiln.cli.show.entries import rows_json
        from graphkiln.cli.show.verify import verdicts_json

        facts = {"engine": "vllm", "root": str(root), "entries": rows_json(made)}
        session.json("precompile", facts | {"verified": verdicts_json(verdicts, (), (), {})["entries"]})
        return status
    from graphkiln.cli.show.entries import rows_lines
    from graphkiln.cli.show.foreign import faults_lines
    from graphkiln.cli.show.verify import verdicts_text

    session.data(rows_lines(made, session.style))
    session.data(faults_lines(verdicts, session.style))
    if made:
        session.talk(f"{verdicts_text(verdicts)} in {root}")
    elif before:
        session.talk(f"nothing is new in {root}: the start hit an entry there, or its cache is off")
    else:
        session.talk(f"nothing was written to {root}: is the cache off, or eager mode on")
    return status


def checked_root(session: Session, engine: str, words: Sequence[str]) -> Path:
    """Returns the cache root that is to be filled; raises for what cannot be served."""
    if engine.partition(":")[0] != "vllm":
        raise UsageProblem(f"no engine {engine.partition(':')[0]!r}", "--engine vllm[:DIR]")
    ref = tree_of(session, engine)
    if not words:
        raise UsageProblem(
            "--engine needs the arguments of vllm serve",
            "graphkiln precompile --engine vllm -- MODEL [OPTIONS OF vllm serve]",
        )
    own = next((word for word in words if word.partition("=")[0] in OWN_ADDRESS), None)
    if own is not None:
        raise UsageProblem(f"{own.partition('=')[0]} is not for a start that serves nobody", "leave it out")
    if find_spec("vllm") is None:
        raise EngineProblem(
            f"no vLLM is installed for {sys.executable}",
            "install graphkiln where vLLM is, and start it with that interpreter",
        )
    from graphkiln.cache.layouts.vllm.reader import VllmReader
    from graphkiln.cache.layouts.vllm.scan import PIECES

    root = Path(os.path.abspath(ref.path or VllmReader().places(os.environ)[0]))
    # The folder in a root that holds the entries names the root here as it does where entries are read.
    inside = ref.path is not None and root.name == PIECES and not (root / PIECES).is_dir()
    return root.parent if inside else root


def rows_at(root: Path) -> list[ForeignRow]:
    """Returns the entries below a root, none where nothing was compiled there yet."""
    from graphkiln.cache.layouts.found import ForeignRow
    from graphkiln.cache.layouts.readers import TreeRef, open_tree

    if not root.is_dir() or not os.listdir(root):
        return []
    return [row for row in open_tree(TreeRef("vllm", root)).rows if isinstance(row, ForeignRow)]


def serve_once(session: Session, root: Path, words: Sequence[str]) -> None:
    """Returns when a server was up, which is when all is compiled, and has ended again."""
    port = free_port()
    command = [sys.executable, "-m", SERVER, "serve", *words, "--host", "127.0.0.1", "--port", str(port)]
    began = time.monotonic()
    with server(command, {**os.environ, "VLLM_CACHE_ROOT": str(root)}, quiet=session.quiet) as child:
        while not answers(port):
            ended = status_within(child, _ASK_EVERY_S)
            if ended is None:
                continue
            hint = "see what it said above" if not session.quiet else "without -q it says why"
            raise EngineProblem(f"vLLM ended with status {ended} before it served", hint, NO)
        session.talk(f"vLLM served after {time.monotonic() - began:.1f} s; it is ended now")


@contextlib.contextmanager
def server(
    command: Sequence[str], environ: dict[str, str], *, quiet: bool
) -> Iterator[subprocess.Popen[bytes]]:
    """Gives a child whose talk goes to stderr; at the end it is asked to end, and then made to."""
    talk = subprocess.DEVNULL if quiet else _STDERR
    # A session of its own, so that the workers that it starts can be ended with it.
    child = subprocess.Popen(
        command, env=environ, stdin=subprocess.DEVNULL, stdout=talk, stderr=talk, start_new_session=True
    )
    try:
        yield child
        os.kill(child.pid, signal.SIGTERM)
        status_within(child, _MOST_TO_END_S)
    finally:
        # Of a group that has ended some systems say that it is not ours.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def status_within(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Returns the status of a child that ends within that time, None of one that does not.

    The child is not reaped by it: until that is done nobody else is given its id, or its group's.
    """
    until = time.monotonic() + seconds
    while (found := os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)) is None:
        if time.monotonic() >= until:
            return None
        time.sleep(_LOOK_EVERY_S)
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def answers(port: int) -> bool:
    """Returns whether the server at a port of this machine says that it is well."""
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection("127.0.0.1", port, timeout=_MOST_TO_ANSWER_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
