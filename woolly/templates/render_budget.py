"""Limits for rendering a chat template, and the functions that charge for its work and memory.

A template is a program from a downloaded file. All work that it can repeat and all memory that it can allocate is
charged in advance to the `Budget` of the current render, which has two limits:

- work: a unit is about one evaluated node of the template, at least 0.1 microseconds. Memory that is not charged
  separately is at most 8 bytes per unit.
- memory: the bytes of every string and copy created during the render, including those already freed.

In addition, the thread's CPU time is limited, for machines on which the work would take too long. Wall-clock time is
not limited, because valid templates may take long while other programs run.
"""

import time
from collections.abc import Iterable
from contextvars import ContextVar
from operator import length_hint
from typing import Any

from jinja2.runtime import Undefined
from jinja2.utils import Namespace

from woolly.errors import TemplateError

#: Deeper nesting is rejected, because comparing, hashing and printing recurse in C.
MAX_DEPTH = 100
#: No template needs integers beyond the range of a float, whose arithmetic would not take constant time.
MAX_BITS = 1024

_DEADLINE_STRIDE = 20_000

DictItems: type = type({}.items())
DictKeys: type = type({}.keys())
DictValues: type = type({}.values())
ListIterator: type = type(iter([]))
SIZED = frozenset({str, list, tuple, dict, range, DictItems, DictKeys, DictValues})
NUMBERS = frozenset({int, float, bool})

_NESTS = frozenset({list, tuple, DictItems, DictKeys, DictValues})
_SCALARS = frozenset({int, float, bool, type(None)})


class Budget:
    """Remaining budget of one render. `work` and `memory` only decrease."""

    __slots__ = ("_deadline", "_mark", "depth", "given", "memory", "work")

    def __init__(self, work: int, memory: int, seconds: float, given: frozenset[int] = frozenset()) -> None:
        """`given` has the ids of the conversation's lists, which a template cannot change."""
        self.given = given
        self.work = work
        self.memory = memory
        self.depth = 0
        self._deadline = time.thread_time() + seconds
        self._mark = work - _DEADLINE_STRIDE

    def spend(self, work: int) -> None:
        """Charge `work` units."""
        self.work -= work
        if self.work < self._mark:
            self._check()

    def hold(self, n_bytes: int) -> None:
        """Charge for `n_bytes` that the caller is about to allocate."""
        self.memory -= n_bytes
        if self.memory < 0:
            raise TemplateError(
                "the chat template was stopped because it makes far more text than the conversation holds; "
                "use another template"
            )

    def _check(self) -> None:
        if self.work < 0:
            raise TemplateError(
                "the chat template was stopped because it does far more work than the conversation needs; "
                "use another template"
            )
        if time.thread_time() > self._deadline:
            raise TemplateError("the chat template was stopped because it ran for too long; use another template")
        self._mark = self.work - _DEADLINE_STRIDE


#: Budget of the current render in this thread or task.
ACTIVE: ContextVar[Budget] = ContextVar("template_budget")


def spend(work: int) -> None:
    """Charge `work` units to the active budget."""
    ACTIVE.get().spend(work)


def hold(n_bytes: int) -> None:
    """Charge `n_bytes` to the active budget."""
    ACTIVE.get().hold(n_bytes)


def text_bytes(text: str) -> int:
    """Return an upper bound on the memory of `text`, in constant time."""
    return len(text) if text.isascii() else 4 * len(text)


def weigh(value: Any) -> tuple[int, int]:
    """Charge for a walk over `value` and everything in it. Return the number of values and the bytes of text.

    Shared parts count at each occurrence, as in comparing or printing. A small value with a huge string representation
    exhausts the budget here, and a value that contains itself is rejected as too deep.
    """
    budget = ACTIVE.get()
    if type(value) is str:
        budget.spend(1 + (len(value) >> 5))
        return 1, text_bytes(value)
    n_values = n_bytes = depth = 0
    level = [value]
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise TemplateError(f"the chat template nests values more than {MAX_DEPTH} deep; use another template")
        n_values += len(level)
        below: list[Any] = []
        for item in level:
            cls = type(item)
            if cls is str:
                n_bytes += text_bytes(item)
            elif cls in _NESTS:
                budget.spend(8 * len(item))
                below.extend(item)
            elif cls is dict:
                budget.spend(16 * len(item))
                below.extend(item)
                below.extend(item.values())
            elif cls is Namespace:
                below.append(item._Namespace__attrs)
            elif cls is range:
                budget.spend(len(item))
            elif cls is int:
                n_bytes += item.bit_length() >> 1
        level = below
    budget.spend(n_values + (n_bytes >> 5))
    return n_values, n_bytes


def text_of(value: Any) -> str:
    """Return `str(value)` after charging for it."""
    cls = type(value)
    if cls is str:
        return value  # type: ignore[no-any-return]
    spend(4)
    if cls not in _SCALARS:
        n_values, n_bytes = weigh(value)
        # The repr of a character has at most four times its bytes. The punctuation of a value has fewer than 32.
        hold(4 * n_bytes + 32 * n_values)
    return str(value)


def join_texts(pieces: Iterable[str], separator: str = "") -> str:
    """Return `separator.join(pieces)`. Each piece is charged separately, so an infinite iterator is stopped."""
    active = ACTIVE.get()
    parts = []
    gap = text_bytes(separator)
    for piece in pieces:
        active.hold((len(piece) if piece.isascii() else 4 * len(piece)) + gap)
        parts.append(piece)
    return separator.join(parts)


def charged_iterable(value: Any, weight: int = 1) -> Any:
    """Return `value` if a template may iterate over it, after charging `weight` units per element."""
    cls = type(value)
    if cls in SIZED:
        spend(4 + weight * len(value))
    elif cls is ListIterator:
        spend(4 + weight * length_hint(value))
    elif not isinstance(value, Undefined):
        raise TypeError(f"{cls.__name__!r} object is not iterable")
    return value


def charged_list(value: Any) -> list[Any]:
    """Return `list(value)` after charging for it."""
    iterable = charged_iterable(value, 4)
    # A range, a string or a view creates an object for each element.
    hold((8 if type(value) in (list, tuple, ListIterator) else 80) * length_hint(iterable))
    return list(iterable)


def check_key(value: Any) -> Any:
    """Return `value` if a template may use it as a key: it hashes in constant time, without deliberate collisions."""
    cls = type(value)
    small = cls is not int or abs(value) < 1 << 60
    if small and (cls is str or cls in _SCALARS or isinstance(value, Undefined)):
        return value
    raise TypeError(f"a key must be a string or a small number, not {cls.__name__!r}")
