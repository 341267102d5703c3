"""Commands as a user without rights, where this one may become another."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def as_other_user(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user without rights, where this one may become another."""
    from tests.cache.child import UNPRIVILEGED

    # Before the change of user the plan alone is made once: the interpreter may be its owner's only.
    code = (
        "import contextlib, io, os, sys; from graphkiln.cli.app import main\n"
        "plan = [word for word in sys.argv[1:] if word != '--yes']\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):\n"
        "    main(plan); import graphkiln.cache.layouts.removal\n"
        f"if os.getuid() == 0: os.setgroups([]); os.setgid({UNPRIVILEGED}); os.setuid({UNPRIVILEGED})\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)


def opened_for_another_user(folder: Path) -> None:
    """Let another user read everything below a folder, and nobody write to it."""
    from tests.cache.child import UNPRIVILEGED

    outer = Path(tempfile.gettempdir()).resolve()
    for parent in folder.resolve().parents:
        if parent != outer and parent.is_relative_to(outer):
            parent.chmod(0o755)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
        if os.getuid() == 0:
            os.chown(path, UNPRIVILEGED, UNPRIVILEGED)


def opened_again(folder: Path) -> None:
    """Let the test's own user delete everything below a folder."""
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
