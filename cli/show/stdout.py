"""stdout is for the data: what a model's code prints goes to stderr, and what cannot be written is told."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator


class ClosedStdout(io.TextIOBase):
    """Stands for a stdout that the process was started without: it refuses what is written to it."""

    def write(self, text: str) -> int:
        """Raises OSError, which names stdout, unless there is nothing to write."""
        if text:
            raise OSError(errno.EBADF, "it is closed", "stdout")
        return 0


def complete_streams() -> None:
    """Puts something in the place of each standard stream that the process was started without."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The next file that is opened would get this number, and be written to by what prints.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdout is None:
        sys.stdout = ClosedStdout()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # as long as the process


def write_out(text: str) -> None:
    """Writes to stdout at once. Raises OSError, which names stdout, where it cannot be written to."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritten(error) from error


def unwritten(error: OSError) -> OSError:
    """Returns an error of a write to stdout as one that names it, and lets go what was not written."""
    _give_up_stdout()
    return OSError(error.errno, error.strerror, "stdout")


def _give_up_stdout() -> None:
    """Lets go what was not written: the interpreter would try again, and complain, as it ends."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


@contextlib.contextmanager
def talk_goes_to_stderr() -> Iterator[None]:
    """Inside, what anything prints goes to stderr, by Python or by its file descriptor, children included."""
    sys.stdout.flush()
    with contextlib.redirect_stdout(sys.stderr), _descriptor_of_stdout():
        yield


@contextlib.contextmanager
def _descriptor_of_stdout() -> Iterator[None]:
    try:
        kept, other = os.dup(1), os.dup(2)
    except OSError:
        # The process was started without one of them: there is nothing to keep clean, or no place for it.
        yield
        return
    try:
        os.dup2(other, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(other)
