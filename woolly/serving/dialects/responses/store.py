"""The ResponseStore: the responses that clients may continue or fetch again, in memory and within bounds."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.requests import HTTPConnection

from woolly.serving.dialects.answer import json_bytes
from woolly.serving.errors import ApiError, refuse

__all__ = ["Kept", "ResponseStore", "store_of"]

Data = dict[str, Any]

_MOST = 1000  # responses
_MOST_BYTES = 64 << 20
_MOST_REFERENCES = 4096  # of one body
_REFERENCE = "item_reference"


@dataclass(frozen=True)
class Kept:
    """A response, what it answered, and the one that it continued."""

    owner: str
    response: Data
    items: list[Data]  # of the input, each with an id
    previous: str | None
    n_bytes: int


@dataclass
class _Live:
    owner: str
    response: Data
    cancel: Callable[[], None]
    is_cancelled: bool = False


class ResponseStore:
    """Keeps responses within bounds. Each owner sees its own. Belongs to the event loop's thread.

    When the bounds are reached, the owner who has most loses the longest unused response: no owner can push out
    those of another who has less.
    """

    def __init__(self, most: int = _MOST, most_bytes: int = _MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: dict[str, Kept] = {}
        self._order: dict[str, OrderedDict[str, None]] = {}  # ids of each owner, the longest unused first
        self._sizes: Counter[str] = Counter()  # bytes of each owner
        self._items: dict[tuple[str, str], dict[str, Data]] = {}  # by owner and id; by response, the latest last
        self._live: dict[str, _Live] = {}
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @contextmanager
    def running(self, owner: str, response: Data, cancel: Callable[[], None]) -> Iterator[Callable[[], bool]]:
        """Shows a response that is under way while the block runs; yields whether a client has cancelled it."""
        live = self._live[response["id"]] = _Live(owner, response, cancel)
        try:
            yield lambda: live.is_cancelled
        finally:
            del self._live[response["id"]]

    def keep(self, owner: str, response: Data, items: list[Data], previous: str | None) -> None:
        """Keeps a response that has ended; one that is larger than all that may be kept is not."""
        n_bytes = len(json_bytes([response, items]))
        if n_bytes > self._most_bytes:
            return
        kept = self._kept[response["id"]] = Kept(owner, response, items, previous, n_bytes)
        self._order.setdefault(owner, OrderedDict())[response["id"]] = None
        self._sizes[owner] += n_bytes
        self.n_bytes += n_bytes
        for key, item in _named(kept):
            self._items.setdefault(key, {}).setdefault(response["id"], item)
        while len(self._kept) > self._most:
            self._forget_one(max(self._order, key=lambda one: (len(self._order[one]), one == owner)))
        while self.n_bytes > self._most_bytes:
            self._forget_one(max(self._order, key=lambda one: (self._sizes[one], one == owner)))

    def get(self, owner: str, id: str) -> Data:
        """Returns a response, which may be under way. ApiError 404 if there is none."""
        live = self._live.get(id)
        return live.response if live is not None and live.owner == owner else self.ended(owner, id).response

    def ended(self, owner: str, id: str) -> Kept:
        """Returns a response that has ended, with its input. ApiError 404 if there is none."""
        kept = self._kept.get(id)
        if kept is None or kept.owner != owner:
            raise ApiError(404, "not_found", f"there is no response {id[:80]!r} here; it may have been forgotten")
        self._order[owner].move_to_end(id)
        return kept

    def delete(self, owner: str, id: str) -> None:
        """Forgets a response. ApiError 404 if there is none."""
        self.ended(owner, id)
        self._forget(id)

    def cancel(self, owner: str, id: str) -> Data:
        """Ends a response that is under way. ApiError 404 if there is none, 400 if it has ended."""
        live = self._live.get(id)
        if live is None or live.owner != owner:
            status = self.ended(owner, id).response["status"]
            raise ApiError(400, "invalid_request", f"the response is {status}; one that is under way can be cancelled")
        live.is_cancelled = True
        live.cancel()
        return {**live.response, "status": "cancelled"}

    def resolved(self, owner: str, items: Sequence[Data]) -> list[Data]:
        """Returns the items, with stored items in the places of references.

        ApiError 400 if an item is not here, or is referred to twice: what a body refers to is then never larger than
        the store.
        """
        ids = [str(item.get("id")) for item in items if item.get("type") == _REFERENCE]
        if len(ids) > _MOST_REFERENCES:
            raise refuse("input", f"it has {len(ids)} references to items; at most {_MOST_REFERENCES} were expected")
        found: dict[str, Data] = {}
        for id in ids:
            if id in found:
                raise refuse("input", f"it refers to the item {id[:80]!r} twice; once was expected")
            found[id] = self._item(owner, id)
        return [found[str(item.get("id"))] if item.get("type") == _REFERENCE else item for item in items]

    def conversation(self, owner: str, id: str) -> list[Data]:
        """Returns the items of a response and of all that it continued, oldest first. ApiError 400 if one is gone."""
        turns: list[list[Data]] = []
        at: str | None = id
        while at is not None:
            try:
                kept = self.ended(owner, at)
            except ApiError:
                raise ApiError(
                    400,
                    "previous_response_not_found",
                    f"the previous response {at[:80]!r} is not here: it was not stored or is forgotten; send all items",
                    param="previous_response_id",
                ) from None
            turns.append([*kept.items, *kept.response["output"]])
            at = kept.previous
        return [item for turn in reversed(turns) for item in turn]

    def _item(self, owner: str, id: str) -> Data:
        found = self._items.get((owner, id))
        if found is None:
            raise refuse("input", f"there is no item {id[:80]!r} here; send the item itself")
        return found[next(reversed(found))]

    def _forget_one(self, owner: str) -> None:
        self._forget(next(iter(self._order[owner])))

    def _forget(self, id: str) -> None:
        kept = self._kept.pop(id)
        self.n_bytes -= kept.n_bytes
        self._sizes[kept.owner] -= kept.n_bytes
        del self._order[kept.owner][id]
        if not self._order[kept.owner]:
            del self._order[kept.owner], self._sizes[kept.owner]
        for key, _ in _named(kept):
            if (found := self._items.get(key)) is not None:
                found.pop(id, None)
                if not found:
                    del self._items[key]


def _named(kept: Kept) -> Iterator[tuple[tuple[str, str], Data]]:
    """Yields the items that a later body can refer to; the id of an input item is the client's, and may be no text."""
    output: list[Data] = kept.response["output"]
    for item in (*kept.items, *output):
        if isinstance(id := item["id"], str):
            yield (kept.owner, id), item


def store_of(connection: HTTPConnection) -> ResponseStore:
    """Returns the store of an app."""
    state = connection.app.state
    store: ResponseStore | None = getattr(state, "responses", None)
    if store is None:
        store = state.responses = ResponseStore()
    return store
