"""How a recorded path to a value is written: as a start names it, and as every command shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def path_text(path: Sequence[Sequence[Any]]) -> str:
    """Return a path as a person would write it: `self.layers[0].scale`."""
    text = ""
    for kind, *rest in path:
        detail = rest[0] if rest else ""
        if kind in ("self", "builtins"):
            text = kind
        elif kind == "module":
            text = str(detail)
        elif kind in ("attr", "gattr"):
            text += f".{detail}"
        elif kind in ("ditem", "item"):
            text += f"[{key_text(detail)}]"
        elif kind in ("nthkey", "nthval"):
            text += f".{'keys' if kind == 'nthkey' else 'values'}()[{detail}]"
        elif kind == "type":
            text = f"type({text})"
        else:
            text += {"mro": ".__mro__", "tdict": ".__dict__"}.get(kind, f".{kind}")
    return text


def key_text(constant: Any) -> str:
    """Return a recorded constant as Python writes it; one of torch's by its name, as torch is not here."""
    kind, *rest = constant if isinstance(constant, (list, tuple)) and constant else ("", constant)
    value: Any = rest[0] if rest else None
    match kind:
        case "none":
            return "None"
        case "i" | "torch" | "type":
            return str(value)
        case "f":
            return repr(float.fromhex(value))
        case "y":
            return repr(bytes.fromhex(value))
        case "t":
            texts = [key_text(item) for item in value]
            return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
        case "slice":
            return f"slice({', '.join(key_text(item) for item in value)})"
        case "b" | "s":
            return repr(value)
    return repr(constant)
