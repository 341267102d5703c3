"""What the arguments of a piece are called by a person who looks at the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def piece_arguments(wiring: Mapping[str, Any]) -> list[list[str]]:
    """Returns what the arguments of each use of a piece are called by a person who looks at the model.

    Lists are flattened.
    """
    names: dict[int, str] = {}
    argument_names = [row["name"] for row in wiring["door"]["arguments"]]
    for register, spec in enumerate(wiring["inputs"]):
        if "parameter" in spec:
            names[register] = spec["parameter"]
        elif "path" in spec:
            names[register] = "a value in the model"
        elif "tokens" in spec:
            names[register] = "the token count"
        else:
            member = spec.get("member")
            name = argument_names[int(spec["argument"])]
            names[register] = name if member is None else f"{name}[{member!r}]"
    found: list[list[str]] = []
    for step in wiring["steps"]:
        outs = [int(out) for out in step["outs"]]
        if "piece" in step:
            number = int(step["piece"])
            names_after = {
                out: f"output {index} of piece {number} at cut {len(found)}" for index, out in enumerate(outs)
            }
            found.append([name for value in step["args"] for name in _argument_names(value, names)])
            names.update(names_after)
        elif "item" in step:
            names[outs[0]] = f"item {step['index']} of {', '.join(_argument_names(step['item'], names))}"
        else:
            names.update(dict.fromkeys(outs, f"the result of {step['op']}"))
    return found


def _argument_names(value: Sequence[Any], names: Mapping[int, str]) -> list[str]:
    kind, content = value
    if kind == "l":
        return [name for item in content for name in _argument_names(item, names)]
    return [names.get(int(content), f"register {content}") if kind == "r" else "a constant"]
