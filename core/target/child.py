"""The process in which a described device is seen: this interpreter once more, told over a pipe what to call.

Nothing here imports torch. A command begins the process before it imports torch itself, and the two
imports run side by side. What goes between both are objects of one process and its own child, and of
nobody else.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping

from graphkiln.core.target.description import is_description

SERVES = "graphkiln.core.target.elsewhere"
# Where there is a driver, the device may be here, and the process not needed.
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg")
# For a compiler to come back and for folders to be removed.
_PATIENCE_S = 20


class Child:
    """A process that waits for one call, and the `pipe` to it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = dict(environ)
        self.pipe, theirs = multiprocessing.Pipe()
        command = [sys.executable, "-P", "-m", SERVES, str(theirs.fileno())]
        with theirs:
            # In a group of its own: Ctrl-C is for this process, which then ends the child, once. A group
            # that is not the terminal's must not read from it.
            self.process = subprocess.Popen(
                command,
                env=self.environ,
                pass_fds=[theirs.fileno()],
                process_group=0,
                stdin=subprocess.DEVNULL,
            )
        _running.add(self.process.pid)

    def end(self) -> None:
        """Waits for the end of a process that has answered."""
        self.process.wait()
        self._ended()

    def _ended(self) -> None:
        _running.discard(self.process.pid)
        self.pipe.close()

    def interrupt(self) -> None:
        """Ends a process in the middle of what it does; it may put away what it has begun."""
        # That nobody waits any more is what the child goes by, also where this process is killed.
        self.pipe.close()
        try:
            self.process.wait(_PATIENCE_S)
            self._ended()
        except subprocess.TimeoutExpired:
            self.drop()

    def drop(self) -> None:
        """Ends a process that has nothing to put away."""
        # Its compilers are in its group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.end()


_ahead: list[Child] = []
_running: set[int] = set()


def running() -> frozenset[int]:
    """Returns the ids of the processes of this kind that have not ended."""
    return frozenset(_running)


@contextlib.contextmanager
def begun_ahead(target: str | None) -> Iterator[None]:
    """Begins the process that a start for `target` will call, where its device is described and not here."""
    if not is_description(target) or any(map(os.path.exists, _DRIVERS)):
        yield
        return
    child = Child(_environ())
    _ahead.append(child)
    try:
        yield
    finally:
        if child in _ahead:
            _ahead.remove(child)
            child.drop()


@contextlib.contextmanager
def waiting_child() -> Iterator[Child]:
    """Gives a process that waits for a call: the one begun ahead, if nothing that it began with has changed.

    It ends with its body, and is interrupted where the body raises.
    """
    child = _ahead.pop() if _ahead else None
    if child is not None and child.environ != _environ():
        child.drop()
        child = None
    child = child or Child(_environ())
    try:
        yield child
    except BaseException:
        child.interrupt()
        raise
    child.end()


def _environ() -> dict[str, str]:
    # A GPU that is here would be seen beside the one that is not.
    return {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(map(os.fspath, sys.path))}
