"""What a pickle says, without doing any of it: no class is resolved, nothing is called.

A pickle is a program. Here its opcodes are only followed as far as plain values go; a global becomes a
`Global`, and what would be called or built becomes a `Made` that records by what and with what. Limits
hold for every pickle, because whoever can write the file chooses its opcodes.
"""

from __future__ import annotations

import io
from typing import Any

from graphkiln.cache.layouts.pickle_machine import MARK, PLAIN, STEPS, Machine

MAX_BYTES = 4 << 30
MAX_OPCODES = 5_000_000
MAX_MEMO = 2_000_000
# Values that wait on the stack, which is how deep a value can be nested while it is written down.
MAX_STACK = 200_000
MAX_MARKS = 10_000
# How many opcodes are followed between two looks at the other limits.
CHECK_EVERY = 256
# A text or bytes from this size on can be left where they lie.
LARGE = 1024
# The codes of MEMOIZE, SHORT_BINUNICODE, BINUNICODE, BINBYTES, BINGET and LONG_BINGET.
_MEMOIZE, _SHORT_TEXT, _TEXT, _BYTES, _GET, _LONG_GET = 0x94, 0x8C, 0x58, 0x42, 0x68, 0x6A
# What pickletools says where the bytes end too early.
_CUT = ("exhausted", "remain", "not enough data", "no newline")


class PickleFault(Exception):
    """A pickle is not one, is cut off, or goes over a limit: `at` is the byte, `reason` says which."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(at, reason)
        self.at, self.reason = at, reason

    def __str__(self) -> str:
        return f"{self.reason} at byte {self.at}"


def read_pickle(data: bytes, *, views: bool = False) -> Any:
    """Return the one value of a pickle; `PickleFault` for anything that is not a whole pickle.

    Lists, dicts and sets are real ones; what cannot be a key of a dict stands in it as a `Made`. With
    `views` a large text is a view of its UTF-8, and large bytes are a view too, neither copied nor decoded.
    """
    if len(data) > MAX_BYTES:
        raise PickleFault(0, f"{len(data)} bytes are more than {MAX_BYTES}")
    machine = Machine(MAX_MARKS)
    try:
        _follow(machine, data, views)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        # IndexError is an empty stack or the end of the bytes, KeyError a memo that was never written.
        text = str(error) or type(error).__name__
        cut = machine.at >= len(data) or any(words in text for words in _CUT)
        raise PickleFault(machine.at, "cut off" if cut else f"no pickle: {text}"[:200]) from None
    return machine.result


def _follow(machine: Machine, data: bytes, views: bool) -> None:
    """Take the opcodes one by one, each read as pickletools reads it.

    The few that most of a pickle consists of are read here: a reader for each takes twice as long.
    """
    import pickletools

    table: dict[str, Any] = vars(pickletools)["code2op"]
    view = memoryview(data)

    known, stream, stack, memo = table, io.BytesIO(data), machine.stack, machine.memo
    at = count = 0
    name = ""
    while name != "STOP":
        machine.at = at
        code = data[at]
        if code == _MEMOIZE:
            if (value := stack[-1]) is MARK:
                raise ValueError("a mark stands where a value should")
            memo[len(memo)] = value
            at += 1
        elif code == _SHORT_TEXT:
            end = at + 2 + data[at + 1]
            if end > len(data):
                raise ValueError("not enough data")
            stack.append(str(data[at + 2 : end], "utf-8", "surrogatepass"))
            at = end
        elif code == _TEXT:
            end = at + 5 + int.from_bytes(data[at + 1 : at + 5], "little")
            if end > len(data):
                raise ValueError("not enough data")
            part = view[at + 5 : end]
            keep = views and len(part) > LARGE
            stack.append(part if keep else str(part, "utf-8", "surrogatepass"))
            at = end
        elif code == _BYTES:
            end = at + 5 + int.from_bytes(data[at + 1 : at + 5], "little")
            if end > len(data):
                raise ValueError("not enough data")
            part = view[at + 5 : end]
            stack.append(part if views and len(part) > LARGE else bytes(part))
            at = end
        elif code == _GET:
            stack.append(memo[data[at + 1]])
            at += 2
        elif code == _LONG_GET:
            stack.append(memo[int.from_bytes(data[at + 1 : at + 5], "little")])
            at += 5
        else:
            opcode, argument = known[chr(code)], None
            at += 1
            if opcode.arg is not None:
                stream.seek(at)
                argument = opcode.arg.reader(stream)
                at = stream.tell()
            name = opcode.name
            if name in PLAIN:
                stack.append(argument)
            else:
                STEPS[name](machine, argument)
        count += 1
        if not count % CHECK_EVERY:
            _check(machine, count)
    _check(machine, count)


def _check(machine: Machine, count: int) -> None:
    """Raise `PickleFault` where a limit is exceeded; no opcode adds more than one value."""
    if count > MAX_OPCODES:
        raise PickleFault(machine.at, f"more than {MAX_OPCODES} opcodes")
    if len(machine.stack) > MAX_STACK or len(machine.memo) > MAX_MEMO:
        raise PickleFault(machine.at, "too many values at once")
