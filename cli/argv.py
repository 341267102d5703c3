"""One rewrite of the command line, before the parser sees it.

- `-O2`, `-O=2` and `-O 2` become `--optimization-level 2`.
- `-cc.a.b=value`, `-cc.a.b value`, `-cc JSON` and the long spelling become one `--compilation-config JSON`.
- What stands behind -- of `precompile --engine` becomes one option: it is for the engine.
- The global options may stand anywhere: they are moved in front of the command.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

from graphkiln.cli.errors import UsageProblem

CONFIG = "--compilation-config"
# The names inside it are Inductor's, and have dots of their own.
DOTTED_FIELD = "inductor_compile_config"
LEVEL = "--optimization-level"
FLAGS = ("-v", "-vv", "--verbose", "-q", "--quiet")
ROOT = "--cache-root"
ENGINE, ENGINE_WORDS = "--engine", "--engine-words"


def rewrite(argv: list[str]) -> list[str]:
    """Returns `argv` with vLLM's spellings turned into plain options, the global ones first."""
    before, rest = split_at_double_dash(argv)
    front: list[str] = []
    kept: list[str] = []
    config: dict[str, Any] = {}
    words = iter(before)
    for word in words:
        name, equals, value = word.partition("=")
        if word in FLAGS:
            front.append(word)
        elif name == ROOT:
            front += [ROOT, (value if equals else following(words, ROOT)) or refuse_empty_root()]
        elif name == LEVEL or (name.startswith("-O") and not name.startswith("--")):
            attached = name.removeprefix(LEVEL).removeprefix("-O")
            kept += [LEVEL, attached or (value if equals else following(words, "-O"))]
        elif name in ("-cc", CONFIG):
            config = merged(config, json_object(value if equals else following(words, name)))
        elif name.startswith(("-cc.", CONFIG + ".")):
            given = parsed(value if equals else following(words, name))
            config = merged(config, nested(name, given))
        else:
            kept.append(word)
    if "precompile" in kept and any(word.partition("=")[0] == ENGINE for word in kept) and rest:
        kept, rest = [*kept, ENGINE_WORDS, json.dumps(rest[1:])], []
    if config:
        kept += [CONFIG, json.dumps(config)]
    return front + kept + rest


def split_at_double_dash(argv: list[str]) -> tuple[list[str], list[str]]:
    at = argv.index("--") if "--" in argv else len(argv)
    return argv[:at], argv[at:]


def following(words: Iterator[str], name: str) -> str:
    """Returns the word after option `name`; a missing one is bad usage."""
    value = next(words, None)
    return value if value is not None else refuse(f"option {name} requires an argument")


def parsed(text: str) -> Any:
    """Returns `text` read as JSON where it is JSON, else as the string that it is."""
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except ValueError:
        return text


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def json_object(text: str) -> dict[str, Any]:
    value = parsed(text)
    if not isinstance(value, dict):
        refuse(f"{CONFIG} takes a JSON object, got {text!r}", "single fields are written -cc.FIELD=VALUE")
    return value


def nested(name: str, value: Any) -> dict[str, Any]:
    """Returns {"a": {"b": value}} for the option name `-cc.a.b`."""
    path = name.split(".", 2 if f".{DOTTED_FIELD}." in name else -1)[1:]
    if not all(path):
        refuse(f"{name}: a field name is empty")
    for part in reversed(path):
        value = {part: value}
    return dict(value)


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Returns both, field by field; where both name a plain field, `new` wins."""
    out = dict(old)
    for name, value in new.items():
        before = out.get(name)
        out[name] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return out


def refuse_empty_root() -> NoReturn:
    # An empty path would be the current folder; what was meant is most likely a variable that is not set.
    refuse(f"{ROOT} is empty", "name a folder, or leave the option out for the default")


def refuse(sentence: str, hint: str | None = None) -> NoReturn:
    raise UsageProblem(sentence, hint)
