"""What a pickle says, without doing any of it: no class is resolved, nothing is called.

A pickle is a program. Here its opcodes are only followed as far as plain values go; a global becomes a
`Global`, and what would be called or built becomes a `Made` that records by what and with what. Limits
hold for every pickle, because whoever can write the file chooses its opcodes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from graphkiln.cache.layouts.pickle_machine import MARK, PLAIN, STEPS, Machine
from graphkiln.cache.layouts.spans import Span, Window

MAX_BYTES = 4 << 30
MAX_OPCODES = 5_000_000
MAX_MEMO = 2_000_000
# Values that wait on the stack, which is how deep a value can be nested while it is written down.
MAX_STACK = 200_000
MAX_MARKS = 10_000
# How many opcodes are followed between two looks at the other limits.
CHECK_EVERY = 256
# A text or bytes larger than this are left where they lie.
LARGE = 1024
# The codes of MEMOIZE, SHORT_BINUNICODE, BINUNICODE, BINBYTES, BINGET, LONG_BINGET, BININT1, BININT2, STOP.
_MEMOIZE, _SHORT_TEXT, _TEXT, _BYTES, _GET, _LONG_GET = 0x94, 0x8C, 0x58, 0x42, 0x68, 0x6A
_BYTE, _SHORT, _STOP = 0x4B, 0x4D, 0x2E
# What pickletools says where the bytes end too early.
_CUT = ("exhausted", "remain", "not enough data", "no newline")
# What Python says of a byte beyond the last one; of an empty stack it says another thing.
_BEYOND = "index out of range"


class PickleFault(Exception):
    """A pickle is not one, is cut off, or goes over a limit: `at` is the byte, `reason` says which."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(at, reason)
        self.at, self.reason = at, reason

    def __str__(self) -> str:
        return f"{self.reason} at byte {self.at}"


def read_pickle(source: bytes | Span) -> Any:
    """Return the one value of a pickle; `PickleFault` for anything that is not a whole pickle.

    Lists, dicts and sets are real ones; what cannot be a key of a dict stands in it as a `Made`. Of a
    `Span` large texts and bytes stay where they are: each is a `Span` of its own, of a text its UTF-8.
    """
    if len(source) > MAX_BYTES:
        raise PickleFault(0, f"{len(source)} bytes are more than {MAX_BYTES}")
    machine, window = Machine(MAX_MARKS), Window(source)
    try:
        _follow(machine, window)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        # IndexError is an empty stack or the end of the bytes, KeyError a memo that was never written.
        text = str(error) or type(error).__name__
        cut = machine.at >= window.size or text == _BEYOND or any(words in text for words in _CUT)
        raise PickleFault(machine.at, "cut off" if cut else f"no pickle: {text}"[:200]) from None
    return machine.result


def _follow(machine: Machine, window: Window) -> None:
    """Take the opcodes one by one, each read as pickletools reads it.

    The few that most of a pickle consists of are read here: a reader for each takes twice as long.
    """
    rare, stack, memo = _rare_opcodes(), machine.stack, machine.memo
    data, base, edge = window.data, window.base, window.edge
    at = here = code = count = 0
    try:
        while code != _STOP:
            for _ in range(CHECK_EVERY):
                if at >= edge:
                    window.move(base + at)
                    data, base, edge, at = window.data, window.base, window.edge, 0
                here = at
                code = data[at]
                if code == _MEMOIZE:
                    if (value := stack[-1]) is MARK:
                        raise ValueError("a mark stands where a value should")
                    memo[len(memo)] = value
                    at += 1
                elif code == _LONG_GET:
                    stack.append(memo[int.from_bytes(data[at + 1 : at + 5], "little")])
                    at += 5
                elif code == _SHORT_TEXT:
                    size = data[at + 1]
                    at += 2
                    if at + size > len(data):
                        raise ValueError("not enough data")
                    stack.append(str(data[at : at + size], "utf-8", "surrogatepass"))
                    at += size
                elif code == _GET:
                    stack.append(memo[data[at + 1]])
                    at += 2
                elif code == _BYTE:
                    stack.append(data[at + 1])
                    at += 2
                elif code == _SHORT:
                    stack.append(data[at + 1] | data[at + 2] << 8)
                    at += 3
                elif code in (_TEXT, _BYTES):
                    size = int.from_bytes(data[at + 1 : at + 5], "little")
                    at += 5
                    if size > LARGE and window.span:
                        stack.append(window.later(at, size))
                    else:
                        part = window.slice(at, size)
                        stack.append(str(part, "utf-8", "surrogatepass") if code == _TEXT else part)
                    at += size
                else:
                    read, step = rare[code]
                    at += 1
                    argument = None
                    if read is not None:
                        window.at = at
                        argument = read(window)
                        at = window.at
                    if step is None:
                        stack.append(argument)
                    else:
                        step(machine, argument)
                        if code == _STOP:
                            break
            count += CHECK_EVERY
            machine.at = base + here
            _check(machine, count)
    finally:
        machine.at = base + here


@cache
def _rare_opcodes() -> dict[int, tuple[Any, Any]]:
    """Return by code what reads the argument of an opcode, and its step; None for none of either."""
    import pickletools

    return {
        ord(opcode.code): (
            opcode.arg and opcode.arg.reader,
            None if opcode.name in PLAIN else STEPS[opcode.name],
        )
        for opcode in pickletools.opcodes
        if opcode.name in PLAIN or opcode.name in STEPS
    }


def _check(machine: Machine, count: int) -> None:
    """Raise `PickleFault` where a limit is exceeded; no opcode adds more than one value."""
    if count > MAX_OPCODES:
        raise PickleFault(machine.at, f"more than {MAX_OPCODES} opcodes")
    if len(machine.stack) > MAX_STACK or len(machine.memo) > MAX_MEMO:
        raise PickleFault(machine.at, "too many values at once")
