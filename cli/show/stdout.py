"""Keeping stdout for the data: while a model's code runs, what it prints goes to stderr."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


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
