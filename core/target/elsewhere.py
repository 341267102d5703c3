"""Starting for a device that is not here: in a child process that sees it, told apart from this one.

What becomes a described device stays one, so it is never the caller's own process. The child gets the
call, gives back progress, and in the end the report or the error.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from graphkiln.core.collector import collector_paused
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import NoDevice
from graphkiln.core.report import Progress, Silent, StartReport
from graphkiln.core.target.child import waiting_child
from graphkiln.core.target.described import become, refuse_assembling, seen_here
from graphkiln.core.target.description import Description, find_description
from graphkiln.core.target.named import find_target
from graphkiln.core.target.required import require_tried

# What only loads finds nothing to compile with: no program at all, and no assembler.
_WITHOUT_MEANS = {"PATH": "", "CC": "/nonexistent/cc", "CXX": "/nonexistent/c++"}
# How often a process looks whether its caller is there.
_LOOK_S = 5


def described_elsewhere(deployment: Deployment) -> Description | None:
    """Returns the description that a deployment is for, unless this process or its GPU is that device.

    Raises BadTarget, and NoDevice where nothing can be compiled for it from here.
    """
    if deployment.target is None or seen_here() is not None:
        return None
    described: Description | None = getattr(find_target(deployment.target), "described", None)
    if described is not None:
        require_tried(described)
    return described


def call_there(
    description: Description, name: str, *args: Any, progress: Progress | None = None, **named: Any
) -> Any:
    """Returns what `graphkiln.core.start.NAME(*args, **named)` gives in a process that sees the device.

    Raises what it raises, and NoDevice when the process ends without a word.
    """
    began = time.monotonic()
    target = args[0].target
    file = os.path.abspath(target) if os.path.isfile(target) else target
    with waiting_child() as child:
        try:
            _tell(child.pipe, (file, name, args, named))
            result = _heard(child.pipe, progress or Silent())
        except _NoWord as error:
            raise NoDevice(f"target {description.title}", *_ending(child.process.wait())) from error
    return with_process(result, time.monotonic() - began)


def _ending(status: int) -> tuple[str, str]:
    """Returns how a process ended without a word, and what to do about it."""
    wrote = "see what it wrote before"
    if status >= 0:
        return f"the process that compiles for it ended (exit status {status})", wrote
    why = f"{wrote}; a system that is out of memory kills so" if status == -signal.SIGKILL else wrote
    names = {one.value: one.name for one in signal.Signals}
    return f"the process that compiles for it was ended by {names.get(-status, f'signal {-status}')}", why


def with_process(result: Any, seconds: float) -> Any:
    """Returns a start's report with what its process took beside its phases, of all the `seconds`."""
    if not isinstance(result, StartReport):
        return result
    return replace(result, phases=(("process", max(0.0, seconds - result.seconds)), *result.phases))


class _NoWord(Exception):
    """The other process is gone, and said nothing of it."""


def _tell(ours: Connection, call: Any) -> None:
    try:
        ours.send(call)
    except ConnectionError as error:
        raise _NoWord from error


def _heard(ours: Connection, progress: Progress) -> Any:
    while True:
        try:
            kind, *content = ours.recv()
        except (EOFError, ConnectionError) as gone:
            raise _NoWord from gone
        if kind == "result":
            return content[0]
        if kind == "error":
            error, text = content
            raise error from _Reported(text)
        getattr(progress, kind)(*content)


class _Reported(Exception):
    """An error as the child process saw it: its traceback as text."""

    def __str__(self) -> str:
        return f"in the process that saw the device\n{self.args[0]}"


class _Told:
    """A progress that tells the parent process."""

    def __init__(self, theirs: Connection) -> None:
        self._theirs = theirs

    def phase(self, name: str) -> None:
        self._theirs.send(("phase", name))

    def pieces(self, done: int, total: int, what: str = "pieces") -> None:
        self._theirs.send(("pieces", done, total, what))

    def note(self, text: str) -> None:
        self._theirs.send(("note", text))


class _Stopped(BaseException):
    """Nobody waits for what runs: no exception, so that nothing on the way takes it for one."""


def main() -> None:
    """Serves the one call that comes through the pipe, in a process of its own."""
    # A terminal stops a process that is not in its foreground for a line to stderr, if it is set to.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    caller = os.getppid()
    theirs = Connection(int(sys.argv[1]))
    try:
        call = theirs.recv()
    except EOFError:
        # This process was begun ahead, and nothing was to be called.
        return
    signal.signal(signal.SIGTERM, _stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    watched = [theirs, caller, threading.get_ident()]
    threading.Thread(target=_stop_with_the_caller, args=watched, daemon=True).start()
    status = 0
    try:
        _serve(theirs, *call)
    except (_Stopped, BrokenPipeError):
        status = 128 + signal.SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Taking apart what was made takes seconds, and is of no use to anybody.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _stop(number: int, frame: object) -> None:
    """Ends what runs as an exception does, once, so that folders and locks are given back."""
    signal.signal(number, signal.SIG_IGN)
    raise _Stopped


def _stop_with_the_caller(theirs: Connection, caller: int, worker: int) -> None:
    # Nothing more is ever sent: what can be read is the end, and nobody wants what is made here any more.
    # A process that the caller forked may hold the pipe open when the caller is gone.
    while not wait([theirs], _LOOK_S) and os.getppid() == caller:
        pass
    # To the thread that works: a wait in it ends by a signal of its own alone.
    signal.pthread_kill(worker, signal.SIGTERM)


def _serve(theirs: Connection, target: str, name: str, args: Sequence[Any], named: dict[str, Any]) -> None:
    try:
        if named.get("require_hit"):
            os.environ.update(_WITHOUT_MEANS)
        with collector_paused():
            become(find_description(target))
            if named.get("require_hit"):
                refuse_assembling()
            from graphkiln.core import start

        call: Callable[..., Any] = getattr(start, name)
        if name in ("precompile", "warm"):
            named["progress"] = _Told(theirs)
        theirs.send(("result", call(*args, **named)))
    except Exception as error:
        theirs.send(("error", _tellable(error, target), traceback.format_exc()))


def _tellable(error: Exception, target: str) -> Exception:
    """Returns an error that the parent process can read: this one, or a NoDevice that quotes it."""
    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception:
        # Reading it back runs whatever code the error's class has.
        again = None
    if isinstance(again, Exception):
        return error
    return NoDevice(f"target {target}", f"{type(error).__name__}: {error}", "see -vv")


if __name__ == "__main__":
    main()
