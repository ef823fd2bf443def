"""A pickle read as what it says, without doing any of it.

Where a pickle asks for a class, a record of its name is kept; where it wants it called, a record of the call. Nothing
is imported, nothing looked up, nothing compared or hashed, so that no pickle can run anything, whatever it asks for. A
name that is not on the caller's list is a FaultError that tells it.
"""

import math
import pickletools
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from nsa_doctor.artifacts.checkpoint.fault import FaultError, corrupt, cut_short, quoted, unsafe
from nsa_doctor.artifacts.checkpoint.limits import MOST_OPERATIONS, Deadline
from nsa_doctor.artifacts.checkpoint.loader_cost import (
    MOST_DIGITS,
    MOST_MADE,
    hashed_by,
    key_cost,
    length_of,
    made_by,
    why_unfit,
)
from nsa_doctor.artifacts.checkpoint.pickled_values import Kept, Made, Name, Row, Table
from nsa_doctor.artifacts.checkpoint.symbols import is_called
from nsa_doctor.core.internal import name_in_python_3

_CLOCK_EVERY = 65_536
_MOST_BITS = int(MOST_DIGITS * math.log2(10))
_PYTHON_3 = 3  # the first protocol that keeps the names of Python 3
_WORDS_AT_THE_END = ("exhausted", "not enough", "no newline", "but only")  # of what pickletools raises
_CODE = "do not load it, get it from a source you trust; of your own, save the state_dict alone, best as safetensors"


def read_pickle(data: bytes, where: str, is_allowed: Callable[[str], bool], deadline: Deadline) -> tuple[Any, int]:
    """What the pickle at the head of `data` describes, and the bytes it takes; a FaultError when it is no plain one."""
    machine = _Machine(where, is_allowed)
    count = 0
    try:
        for operation, argument, place in pickletools.genops(data):
            assert place is not None
            count += 1
            if count % _CLOCK_EVERY == 0:
                deadline.check(f"reading {where}")
                if count > MOST_OPERATIONS:
                    raise FaultError("limit", f"{where} has more than {MOST_OPERATIONS:,} parts, which is not read")
            if operation.name == "STOP":
                return machine.pop(), place + 1
            if operation.name == "FRAME" and int(argument or 0) > len(data) - place:
                raise cut_short(where, "its pickle breaks off")
            machine.do(operation.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error) as error:
        raise _fault_of(error, where) from None
    raise cut_short(where, "its pickle has no end")


def _fault_of(error: Exception, where: str) -> FaultError:
    """Why a pickle makes no sense."""
    if isinstance(error, _MeaninglessError):
        return corrupt(where, str(error))
    is_short = any(words in str(error) for words in _WORDS_AT_THE_END)
    return cut_short(where, "its pickle breaks off") if is_short else corrupt(where, "its pickle is broken")


class _MeaninglessError(ValueError):
    pass


class _Machine:
    """The stack and the memory of a pickle."""

    def __init__(self, where: str, is_allowed: Callable[[str], bool]) -> None:
        self._where, self._is_allowed = where, is_allowed
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []
        self._memory: dict[int, Any] = {}
        self._protocol = self._made = 0

    def do(self, operation: str, argument: Any) -> None:
        """Take one operation; raises what is caught above when it makes no sense."""
        if operation in _PUSHED:
            if type(argument) is int and argument.bit_length() > _MOST_BITS:
                raise _MeaninglessError(f"it holds a whole number of more than {MOST_DIGITS:,} digits")
            self._stack.append(argument)
        elif operation in _CONSTANTS:
            self._stack.append(_CONSTANTS[operation]())
        else:
            _OPERATIONS[operation](self, argument)  # a KeyError is an operation that no file of weights has

    def pop(self) -> Any:
        """The value on top."""
        return self._stack.pop()

    def _marks(self) -> list[Any]:
        items, self._stack = self._stack, self._marked.pop()
        return items

    def mark(self, _argument: Any) -> None:
        self._marked.append(self._stack)
        self._stack = []

    def pop_any(self, _argument: Any) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._marks()

    def pop_marked(self, _argument: Any) -> None:
        self._marks()

    def duplicate(self, _argument: Any) -> None:
        self._stack.append(self._stack[-1])

    def collected(self, _argument: Any) -> None:
        items = self._marks()  # which changes the stack
        self._stack.append(tuple(items))

    def tuple_of(self, count: int) -> None:
        items = tuple(self._stack[len(self._stack) - count :])
        if len(items) < count:
            raise IndexError
        del self._stack[len(self._stack) - count :]
        self._stack.append(items)

    def row(self, _argument: Any) -> None:
        items = self._marks()
        self._stack.append(Row(items))

    def table(self, _argument: Any) -> None:
        made = Table()
        items = self._marks()
        self._hash(items[::2])
        made.pairs = list(_pairs(items))
        self._stack.append(made)

    def append(self, _argument: Any) -> None:
        item = self.pop()
        self._items().append(item)

    def extend(self, _argument: Any) -> None:
        items = self._marks()
        self._items().extend(items)

    def extend_set(self, _argument: Any) -> None:
        items = self._marks()
        self._hash(items)
        self._items().extend(items)

    def set_item(self, _argument: Any) -> None:
        value, key = self.pop(), self.pop()
        self._hash([key])
        self._pairs().append((key, value))

    def set_items(self, _argument: Any) -> None:
        items = self._marks()
        self._hash(items[::2])
        self._pairs().extend(_pairs(items))

    def frozen(self, _argument: Any) -> None:
        items = self._marks()
        self._hash(items)
        self._stack.append(Row(items))

    def _hash(self, keys: Iterable[Any]) -> None:
        """Count what a loader goes through that hashes them."""
        costs = [key_cost(key) for key in keys if isinstance(key, tuple | Made | Row)]
        self._made += sum(costs)
        if self._made > MOST_MADE:
            raise self._costly("has keys of values in values that take for ever to hash")

    def _costly(self, what: str) -> FaultError:
        return unsafe(self._where, f"it {what}, so that loading it takes more memory or time than there is", _CODE)

    def _items(self) -> list[Any]:
        target = self._stack[-1]
        if not isinstance(target, (Row, Made)):
            raise _MeaninglessError("it appends to what is no list")
        return target.items

    def _pairs(self) -> list[tuple[Any, Any]]:
        target = self._stack[-1]
        if not isinstance(target, (Table, Made)):
            raise _MeaninglessError("it sets items of what is no dictionary")
        return target.pairs

    def remember(self, place: int) -> None:
        if place > MOST_OPERATIONS:  # a loader makes room for all places before it
            raise self._costly("remembers a value at a place beyond all that it has")
        self._memory[place] = self._stack[-1]

    def remember_next(self, _argument: Any) -> None:
        self._memory[len(self._memory)] = self._stack[-1]

    def recall(self, place: int) -> None:
        self._stack.append(self._memory[place])

    def ask(self, words: str) -> None:
        self._stack.append(self._named(*words.split(" ", 1)))

    def ask_by_stack(self, _argument: Any) -> None:
        name, module = self.pop(), self.pop()
        if type(name) is not str or type(module) is not str:
            raise self._unsafe("asks for a name that it computes")
        self._stack.append(self._named(module, name))

    def _named(self, module: str, name: str) -> Name:
        """The name, if it may be asked for; what Python 2 called otherwise under its name of today, as pickle does."""
        if self._protocol < _PYTHON_3:
            module, name = name_in_python_3(module, name)
        text = f"{module}.{name}"
        if not self._is_allowed(text):
            raise self._unsafe(f"asks for {quoted(text)}")
        return Name(text)

    def call(self, _argument: Any) -> None:
        arguments = self.pop()
        self._make(self.pop(), arguments)

    def call_with_words(self, _argument: Any) -> None:
        words, arguments = self.pop(), self.pop()
        self._make(self.pop(), (arguments, words))

    def call_marked(self, _argument: Any) -> None:
        called, *arguments = self._marks()
        self._make(called, tuple(arguments))

    def instance(self, words: str) -> None:
        arguments = tuple(self._marks())
        self._make(self._named(*words.split(" ", 1)), arguments)

    def _make(self, called: Any, arguments: Any) -> None:
        if not isinstance(called, Name):
            raise self._unsafe("calls what it has computed")
        if not is_called(called.text):
            raise self._unsafe(f"calls {quoted(called.text)}")
        self._hash(hashed_by(called.text, arguments))
        why, made = why_unfit(called.text, arguments), made_by(called.text, arguments)
        self._made += made
        if why or self._made > MOST_MADE:
            count = f"{made:,}" if made < 2**63 else "more than 2**63"
            what = why or f"to make {count} values or bytes that the file does not hold"
            raise self._costly(f"has a loader call {quoted(called.text)} {what}")
        self._stack.append(Made(called.text, arguments, length_of(called.text, arguments)))

    def build(self, _argument: Any) -> None:
        state = self.pop()
        target = self._stack[-1]
        if not isinstance(target, Made):
            what = quoted(target.text) if isinstance(target, Name) else "a plain value"
            raise self._unsafe(f"changes {what}")
        target.state = state if target.state is None else (target.state, state)

    def keep(self, _argument: Any) -> None:
        self._stack.append(Kept(self.pop()))

    def keep_named(self, key: str) -> None:
        self._stack.append(Kept(key))

    def refuse(self, _argument: Any) -> None:
        raise self._unsafe("asks for a class by a number that only its author knows")

    def set_protocol(self, number: int) -> None:
        self._protocol = number

    def nothing(self, _argument: Any) -> None:
        pass

    def _unsafe(self, what: str) -> FaultError:
        return unsafe(self._where, f"it {what}, so that loading it can run code", _CODE)


def _pairs(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    if len(items) % 2:
        raise _MeaninglessError("a key has no value")
    return zip(items[::2], items[1::2], strict=True)


_PUSHED = frozenset(
    {
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
        *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    }
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": lambda: (),
    "EMPTY_LIST": lambda: Row([]),
    "EMPTY_SET": lambda: Row([]),
    "EMPTY_DICT": Table,
}
_OPERATIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _Machine.set_protocol,
    "FRAME": _Machine.nothing,
    "MARK": _Machine.mark,
    "POP": _Machine.pop_any,
    "POP_MARK": _Machine.pop_marked,
    "DUP": _Machine.duplicate,
    "TUPLE": _Machine.collected,
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "LIST": _Machine.row,
    "FROZENSET": _Machine.frozen,
    "DICT": _Machine.table,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.extend,
    "ADDITEMS": _Machine.extend_set,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "PUT": _Machine.remember,
    "BINPUT": _Machine.remember,
    "LONG_BINPUT": _Machine.remember,
    "MEMOIZE": _Machine.remember_next,
    "GET": _Machine.recall,
    "BINGET": _Machine.recall,
    "LONG_BINGET": _Machine.recall,
    "GLOBAL": _Machine.ask,
    "STACK_GLOBAL": _Machine.ask_by_stack,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "NEWOBJ_EX": _Machine.call_with_words,
    "OBJ": _Machine.call_marked,
    "INST": _Machine.instance,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.keep,
    "PERSID": _Machine.keep_named,
    "EXT1": _Machine.refuse,
    "EXT2": _Machine.refuse,
    "EXT4": _Machine.refuse,
}
