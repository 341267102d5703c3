"""The stack and the memo of a pickle that is followed without being run, and a step for each opcode."""

from __future__ import annotations

from typing import Any

from graphkiln.cache.layouts.pickled_values import Global, Made

# A key is a word, a number or a short tuple; hashing a deep one would overrun the stack of this process.
MAX_KEY_PARTS = 64


class Mark:
    pass


MARK = Mark()


class Machine:
    """The stack, the memo, and where the opcode that is being followed lies."""

    def __init__(self, most_marks: int) -> None:
        self.most_marks = most_marks
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.marks: list[int] = []
        self.result: Any = None
        self.at = 0

    def mark(self, _: Any = None) -> None:
        if len(self.marks) >= self.most_marks:
            raise ValueError("too many marks")
        self.marks.append(len(self.stack))
        self.stack.append(MARK)

    def above_mark(self) -> list[Any]:
        start = self.marks.pop()
        found = self.stack[start + 1 :]
        del self.stack[start:]
        return found

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is MARK:
            raise ValueError("a mark stands where a value should")
        return value

    def pop_one(self, _: Any = None) -> None:
        if self.stack.pop() is MARK:
            self.marks.pop()

    def top(self) -> Any:
        if self.stack[-1] is MARK:
            raise ValueError("a mark stands where a value should")
        return self.stack[-1]

    def tuple_of(self, count: int) -> None:
        values = [self.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(values)))

    def remember(self, place: Any) -> None:
        self.memo[int(place)] = self.top()

    def recall(self, place: Any) -> None:
        self.stack.append(self.memo[int(place)])

    def made(self, by: Any, args: Any) -> None:
        self.stack.append(Made(by, args))

    def call(self, _: Any = None) -> None:
        args = self.pop()
        self.stack.append(Made(self.pop(), args))

    def call_with_names(self, _: Any = None) -> None:
        names, args = self.pop(), self.pop()
        self.stack.append(Made(self.pop(), (args, names)))

    def class_above_mark(self, named: Any) -> None:
        found = self.above_mark()
        if named is None:
            self.made(found[0], tuple(found[1:]))
        else:
            self.made(_global(named), tuple(found))

    def build(self, _: Any = None) -> None:
        state = self.pop()
        target = self.top()
        if isinstance(target, Made):
            target.states.append(state)
        else:
            self.stack[-1] = Made("state of a plain value", target, [state])

    def extend(self, values: list[Any]) -> None:
        target = self.top()
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, set):
            target.update(_key(value) for value in values)
        elif isinstance(target, Made):
            target.items.extend(values)
        else:
            raise ValueError("items are added to what takes none")

    def set_items_above_mark(self, _: Any = None) -> None:
        self.set_items(self.above_mark())

    def set_items(self, values: list[Any]) -> None:
        if len(values) % 2:
            raise ValueError("a key without a value")
        pairs = zip(values[::2], values[1::2], strict=True)
        target = self.top()
        if isinstance(target, dict):
            target.update((key if type(key) is str else _key(key), value) for key, value in pairs)
        elif isinstance(target, Made):
            target.items.extend(pairs)
        else:
            raise ValueError("items are set in what takes none")

    def stop(self, _: Any = None) -> None:
        self.result = self.pop()
        if self.stack:
            raise ValueError("values are left over at the end")


def _key(value: Any) -> Any:
    """Return what can stand for a value as the key of a dict: itself, unless hashing it could go deep."""
    if type(value) is str:
        return value
    pending, left = [value], MAX_KEY_PARTS
    while pending:
        one = pending.pop()
        left -= 1
        if left < 0 or isinstance(one, (list, dict, set, frozenset, bytearray)):
            return Made("not a key", value)
        if isinstance(one, tuple):
            pending += one[: MAX_KEY_PARTS + 1]
    return value


def _global(text: str) -> Global:
    module, _, name = text.partition(" ")
    return Global(module, name)


def _stack_global(machine: Machine, _: Any) -> None:
    name, module = machine.pop(), machine.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise ValueError("a global whose name is no text")
    machine.stack.append(Global(module, name))


PLAIN = frozenset({
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "UNICODE",
    "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "FLOAT", "BINFLOAT",
})  # fmt: skip
STEPS: dict[str, Any] = {
    "NONE": lambda machine, _: machine.stack.append(None),
    "NEWTRUE": lambda machine, _: machine.stack.append(True),
    "NEWFALSE": lambda machine, _: machine.stack.append(False),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "EMPTY_TUPLE": lambda machine, _: machine.stack.append(()),
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "EMPTY_SET": lambda machine, _: machine.stack.append(set()),
    "PROTO": lambda machine, _: None,
    "FRAME": lambda machine, _: None,
    "READONLY_BUFFER": lambda machine, _: None,
    "NEXT_BUFFER": lambda machine, _: machine.made("buffer from elsewhere", ()),
    "MARK": Machine.mark,
    "POP": Machine.pop_one,
    "POP_MARK": lambda machine, _: machine.above_mark(),
    "DUP": lambda machine, _: machine.stack.append(machine.top()),
    "LIST": lambda machine, _: machine.stack.append(machine.above_mark()),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.above_mark())),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "DICT": lambda machine, _: _dict_above_mark(machine),
    "FROZENSET": lambda machine, _: machine.stack.append(frozenset(map(_key, machine.above_mark()))),
    "APPEND": lambda machine, _: _one_item(machine),
    "APPENDS": lambda machine, _: machine.extend(machine.above_mark()),
    "ADDITEMS": lambda machine, _: machine.extend(machine.above_mark()),
    "SETITEM": lambda machine, _: _one_pair(machine),
    "SETITEMS": Machine.set_items_above_mark,
    "GET": Machine.recall,
    "PUT": Machine.remember,
    "BINPUT": Machine.remember,
    "LONG_BINPUT": Machine.remember,
    "GLOBAL": lambda machine, text: machine.stack.append(_global(text)),
    "STACK_GLOBAL": _stack_global,
    "EXT1": lambda machine, code: machine.made("extension", (code,)),
    "EXT2": lambda machine, code: machine.made("extension", (code,)),
    "EXT4": lambda machine, code: machine.made("extension", (code,)),
    "PERSID": lambda machine, text: machine.made("persistent id", (text,)),
    "BINPERSID": lambda machine, _: machine.made("persistent id", (machine.pop(),)),
    "REDUCE": Machine.call,
    "NEWOBJ": Machine.call,
    "NEWOBJ_EX": Machine.call_with_names,
    "INST": Machine.class_above_mark,
    "OBJ": Machine.class_above_mark,
    "BUILD": Machine.build,
    "STOP": Machine.stop,
}


def _dict_above_mark(machine: Machine) -> None:
    values = machine.above_mark()
    machine.stack.append({})
    machine.set_items(values)


def _one_item(machine: Machine) -> None:
    value = machine.pop()
    machine.extend([value])


def _one_pair(machine: Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.set_items([key, value])
