"""stdout holds the data and nothing else, whatever a model's code prints while it is built."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = """
import os
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

def make():
    print("by Python")
    os.write(1, b"by the descriptor\\n")
    os.system("echo by a child")
    return Model()
"""


@pytest.mark.slow
def test_what_a_factory_prints_goes_to_stderr(tmp_path: Path) -> None:
    (tmp_path / "printing_model.py").write_text(MODEL)
    command = [sys.executable, "-m", "graphkiln.cli", "key", "printing_model:make", "--json"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    assert json.loads(done.stdout)["command"] == "key"
    assert {"by Python", "by the descriptor", "by a child"} <= set(done.stderr.splitlines())
