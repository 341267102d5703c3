"""Progress: a bar on a terminal, lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

CODE = """
from graphkiln.cli.session import Session
from graphkiln.cli.show.progress import progress_for

with progress_for(Session(verbosity={verbosity}, quiet={quiet})) as progress:
    if progress:
        progress.phase("compile")
        for done in range(4):
            progress.pieces(done, 3)
        progress.note("one note")
print("data")
"""


def run(*, verbosity: int = 0, quiet: bool = False, terminal: bool = False) -> tuple[str, str]:
    """Returns stdout and stderr of a child that reports progress; stderr may be a terminal."""
    code = CODE.format(verbosity=verbosity, quiet=quiet)
    if not terminal:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return done.stdout, done.stderr
    above, below = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=below, text=True, env=environment
    ) as child:
        os.close(below)
        drawn = b"".join(iter(lambda: read(above), b""))
        assert child.stdout
        out = child.stdout.read()
    os.close(above)
    assert child.returncode == 0
    return out, drawn.decode()


def read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # Linux says so when the other end of a terminal is closed
        return b""


def test_a_pipe_gets_a_line_for_each_phase() -> None:
    assert run() == ("data\n", "compile\n3/3 pieces\none note\n")


def test_a_pipe_gets_a_line_for_each_piece_with_v() -> None:
    assert "1/3 pieces\n2/3 pieces\n3/3 pieces\n" in run(verbosity=1)[1]


def test_quiet_says_nothing() -> None:
    assert run(quiet=True) == ("data\n", "")
    assert run(quiet=True, terminal=True) == ("data\n", "")


def test_a_terminal_gets_a_bar_beside_the_data() -> None:
    out, drawn = run(terminal=True)
    assert out == "data\n"
    assert "compile" in drawn
    assert "3/3" in drawn
    assert "one note" in drawn
