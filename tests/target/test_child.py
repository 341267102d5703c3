"""The process that sees a described device: begun before it is needed, ended with whoever called it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from graphkiln.core.report import Silent
from graphkiln.core.target import child, elsewhere
from graphkiln.core.target.child import begun_ahead, waiting_child

# Stands for the module that serves: says that it is there, then what the pipe tells it.
_SERVES = """
import sys
from multiprocessing.connection import Connection
theirs = Connection(int(sys.argv[1]))
theirs.send("begun")
try:
    theirs.send(theirs.recv() * 2)
except EOFError:
    sys.exit(3)
"""

# A call of `core.target.elsewhere` that takes longer than anybody waits, and puts away what it made.
_SLOW = """
import sys, time
from pathlib import Path
from graphkiln.core import start
from graphkiln.core.target import elsewhere

def key(made):
    Path(made).touch()
    try:
        time.sleep(600)
    finally:
        # For a second signal to come in the middle of it.
        time.sleep(0.5)
        Path(made).unlink()

elsewhere.become = lambda description: None
start.key = key
elsewhere.main()
"""


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stands_for_it.py").write_text(_SERVES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(child, "SERVES", "stands_for_it")
    monkeypatch.setattr(child, "_DRIVERS", ())


@pytest.mark.usefixtures("serving")
def test_the_process_that_was_begun_ahead_is_the_one_that_is_called() -> None:
    with begun_ahead("h200"):
        (ahead,) = child._ahead
        assert ahead.pipe.recv() == "begun"
        with waiting_child() as called:
            assert called is ahead
            called.pipe.send(21)
            assert called.pipe.recv() == 42
        assert called.process.returncode == 0


@pytest.mark.usefixtures("serving")
def test_it_is_not_called_when_its_environment_is_not_the_one_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with begun_ahead("h200"):
        (ahead,) = child._ahead
        monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
        with waiting_child() as called:
            assert called is not ahead
            assert ahead.process.returncode is not None
            assert called.environ["TORCHINDUCTOR_MAX_AUTOTUNE"] == "1"
            assert called.pipe.recv() == "begun"
            called.pipe.send(1)


@pytest.mark.usefixtures("serving")
def test_the_end_of_one_block_leaves_the_process_of_another() -> None:
    with begun_ahead("h200"):
        (ahead,) = child._ahead
        with begun_ahead("h200"):
            assert len(child._ahead) == 2
        assert child._ahead == [ahead]
        assert ahead.process.poll() is None


@pytest.mark.usefixtures("serving")
def test_it_reads_nothing_from_the_terminal_and_is_dropped_with_what_it_started(tmp_path: Path) -> None:
    (tmp_path / "stands_for_it.py").write_text(
        "import subprocess, sys\n"
        "from multiprocessing.connection import Connection\n"
        "theirs = Connection(int(sys.argv[1]))\n"
        "started = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "theirs.send((sys.stdin.read(), started.pid))\n"
        "started.wait()\n"
    )
    with waiting_child() as called:
        read, pid = called.pipe.recv()
        assert read == ""
        called.drop()
    _until(lambda: not _runs(pid))


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("target", [None, "cpu", "cpu:avx2", "cuda"])
def test_nothing_is_begun_for_what_is_here(target: str | None) -> None:
    with begun_ahead(target):
        assert child._ahead == []


@pytest.mark.usefixtures("serving")
def test_nothing_is_begun_where_the_device_may_be_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_DRIVERS", (os.devnull,))
    with begun_ahead("h200"):
        assert child._ahead == []


@pytest.mark.usefixtures("serving")
def test_it_is_gone_when_nothing_was_called() -> None:
    with begun_ahead("h200"):
        (ahead,) = child._ahead
    assert ahead.process.returncode is not None
    assert child._ahead == []


@pytest.mark.usefixtures("serving")
def test_a_call_that_ends_early_ends_the_process() -> None:
    with contextlib.suppress(KeyboardInterrupt), waiting_child() as called:
        assert called.pipe.recv() == "begun"
        raise KeyboardInterrupt
    assert called.process.returncode == 3
    assert child.running() == frozenset()


@pytest.mark.parametrize(
    ("number", "to_both", "status"),
    [
        (None, False, 5),
        (signal.SIGKILL, False, -9),
        (signal.SIGTERM, False, 143),
        (signal.SIGTERM, True, 143),
    ],
)
def test_what_is_under_way_is_put_away_when_nobody_waits_any_more(
    number: signal.Signals | None, to_both: bool, status: int, tmp_path: Path
) -> None:
    """The caller closes its end, is killed, which closes it too, or is told to end, alone or with both."""
    (tmp_path / "slow.py").write_text(_SLOW)
    made = tmp_path / "made"
    caller = (
        "import sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from graphkiln.cli.app import unwound_by_term\n"
        "from graphkiln.core.target import child\n"
        "child.SERVES = 'slow'\n"
        "with unwound_by_term(), child.waiting_child() as called:\n"
        f"    called.pipe.send(('h200', 'key', ({str(made)!r},), {{}}))\n"
        "    print(called.process.pid, flush=True)\n"
        "    input()\n"
        "    raise SystemExit(5)\n"
    )
    command = [sys.executable, "-P", "-c", caller]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        _until(made.exists)
        if number is None:
            process.communicate("\n")
        else:
            if to_both:
                os.kill(pid, number)
            process.send_signal(number)
    _until(lambda: not made.exists())
    _until(lambda: not _runs(pid))
    assert process.returncode == status


@pytest.mark.parametrize("error", [EOFError("a file ended"), ConnectionResetError("by a peer")])
def test_what_is_raised_on_either_side_is_not_taken_for_the_end_of_the_process(error: Exception) -> None:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        theirs.send(("error", error, ""))
        with pytest.raises(type(error), match=str(error)):
            elsewhere._heard(ours, Silent())

        class Closed(Silent):
            def note(self, text: str) -> None:
                raise error

        theirs.send(("note", "of the start"))
        with pytest.raises(type(error), match=str(error)):
            elsewhere._heard(ours, Closed())
        theirs.close()
        with pytest.raises(elsewhere._NoWord):
            elsewhere._heard(ours, Silent())


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    # Nobody may be there to ask what became of it: it stays as a zombie then.
    return state != "Z"


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
