"""What a compile saw and made, as files for a person to read: `--debug-dump DIR`.

    <model>-<lookup>[-2, -3, ...]/         one start; nothing that is there already is touched
      decisions.txt                        what was asked, what is in effect, and why
      rank_0_0/<prefix>/
        before_split.py  after_split.py    the traced graph, and the parts that it was cut into
        guards.txt                         what the trace took for granted
        piece_0/
          graph.py                         one distinct piece
          tokens_1_2048/                   compiled for this range of token counts
            passes.txt  passes/            what each pass did, and the graph after each that changed it
            wrapper.py  kernel_0.cpp ...   Inductor's own output, before it is sealed

Written as things come, so that a compile that fails leaves what it got to. It is for this machine's
eyes and may hold paths; nothing of it is in an entry or in a key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import fx

from graphkiln.cache.factors.paths import path_text
from graphkiln.core.trace.fold import unfold
from graphkiln.core.trace.shapes import facts_of

if TYPE_CHECKING:
    from graphkiln.core.compile.inductor import BuiltPiece
    from graphkiln.core.passes.pipeline import PassRun
    from graphkiln.core.plan import Plan
    from graphkiln.core.report import Decision
    from graphkiln.core.trace.capture import Capture


class DebugDump:
    """The folder of one start: `path`."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        """Makes a folder of its own for a start in `folder`. Raises OSError where it cannot."""
        label = re.sub("[^A-Za-z0-9._-]+", "-", plan.label).strip("-.") or "model"
        folder.mkdir(parents=True, exist_ok=True)
        self.path = _new_folder(folder, f"{label}-{(plan.lookup or 'no-key')[:10]}")
        self.decisions(plan, plan.decisions, None)

    def decisions(self, plan: Plan, decisions: Iterable[Decision], key: str | None) -> None:
        """Writes what was asked and what became of it; the last call stands."""
        rows = [
            f"{row.field}: asked {row.asked!r}, got {row.got!r}, because {row.reason}" for row in decisions
        ]
        _write(
            self.path / "decisions.txt",
            [f"{plan.label} for {plan.target.name}", f"lookup {plan.lookup}", f"key    {key}", ""],
            _titled("decided", rows),
            _titled("requested", [_json(plan.requested())]),
            _titled("in effect", [_json(plan.effective())]),
        )

    def part(self, rank: str, prefix: str) -> PartDump:
        """Returns the place of one compiled part."""
        return PartDump(self.path / f"rank_{rank}" / prefix)


class PartDump:
    """The folder of one compiled part."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def traced(self, capture: Capture, factor: Mapping[str, Any]) -> None:
        """Writes the traced graph, and what the trace took for granted."""
        _write(self._folder / "before_split.py", [_module_text(capture.graph)])
        facts = [f"{fact.text}   {fact.line}".rstrip() for fact in facts_of(capture.shape_env)]
        _write(self._folder / "guards.txt", *_guards(factor), _titled("shapes (T is the token count)", facts))

    def split(self, text: str, graphs: Sequence[fx.GraphModule]) -> None:
        """Writes the split graph, and each distinct piece by its number."""
        _write(self._folder / "after_split.py", [text])
        for number, graph in enumerate(graphs):
            _write(self._folder / f"piece_{number}" / "graph.py", [_module_text(graph)])

    def watch(self, number: int, smallest: int, largest: int) -> Callable[[str, fx.Graph], None]:
        """Returns what is to be told of a piece's graph before the passes and after each."""
        folder = self._folder / f"piece_{number}" / f"tokens_{smallest}_{largest}" / "passes"
        before = ""
        count = 0

        def seen(name: str, graph: fx.Graph) -> None:
            nonlocal before, count
            text = graph.python_code("self", verbose=True, include_stride=True).src
            if text != before:
                plain = re.sub("[^A-Za-z0-9._]+", "-", name)
                _write(folder / f"{count}_{plain}.py", [text.strip()])
            before, count = text, count + 1

        return seen

    def piece(self, number: int, smallest: int, largest: int, built: BuiltPiece) -> None:
        """Writes what Inductor made of a piece, and what each pass did to it."""
        folder = self._folder / f"piece_{number}" / f"tokens_{smallest}_{largest}"
        _write(folder / "passes.txt", [_run_text(run) for run in built.passes])
        _write(folder / "wrapper.py", [built.wrapper])
        for index, kernel in enumerate(built.kernels):
            types = ", ".join(kernel.argtypes)
            _write(folder / f"kernel_{index}.cpp", [f"// arguments: {types}", kernel.source])


def _new_folder(folder: Path, name: str) -> Path:
    number = 1
    while True:
        path = folder / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def _guards(factor: Mapping[str, Any]) -> list[list[str]]:
    """Returns the code factor as paragraphs, what is read most often first."""
    values = [
        f"{path_text(record['path'])}  {record['kind']}"
        + (f" {record['extra']}" if record.get("extra") is not None else "")
        + (f" {path_text(record['other'])}" if "other" in record else f" = {_short(record['value'])}")
        for record in unfold(factor["values"])
    ]
    functions = [f"{module}:{name}" for module, names in factor["functions"].items() for name in names]
    told = {"values", "functions", "class", "smallest"}
    return [
        [f"{factor['class']}, for {factor['smallest']} tokens and more", ""],
        _titled("values that the trace depends on", sorted(values)),
        _titled("functions that were traced", functions),
        *(_titled(name, [_json(value)]) for name, value in sorted(factor.items()) if name not in told),
    ]


def _titled(title: str, lines: Iterable[str]) -> list[str]:
    return [title, "-" * len(title), *(list(lines) or ["none"]), ""]


def _short(value: Any) -> str:
    return json.dumps(value, default=str)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, default=str)


def _module_text(module: fx.GraphModule) -> str:
    return str(module.print_readable(print_output=False, include_stride=True, include_device=True))


def _run_text(run: PassRun) -> str:
    matches = "no count" if run.matches is None else f"{run.matches} changed"
    return f"{run.name}: {matches}, {run.seconds * 1000:.2f} ms"


def _write(path: Path, *paragraphs: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [line for paragraph in paragraphs for line in paragraph]
    path.write_text("\n".join(lines).rstrip("\n") + "\n", encoding="utf-8", errors="surrogatepass")
