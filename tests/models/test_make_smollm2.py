from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "make_smollm2"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True)


def test_help_names_the_target() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "TARGET_FOLDER" in done.stdout


def test_a_target_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("")
    done = run(str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"make_smollm2: {tmp_path} exists already: give another folder, or remove it"
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]
