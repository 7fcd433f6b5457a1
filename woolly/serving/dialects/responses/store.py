"""ResponseStore: responses that clients may continue or fetch again, in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.requests import HTTPConnection

from woolly.serving.dialects.reply import json_bytes
from woolly.serving.dialects.responses.bounded_store import BoundedStore
from woolly.serving.errors import ApiError, invalid_param

Data = dict[str, Any]

_MAX_RESPONSES = 1000  # responses
_MAX_BYTES = 64 << 20
_MAX_REFERENCES = 4096  # of one body
_REFERENCE = "item_reference"


@dataclass(frozen=True)
class Kept:
    """Response with its input, and the response that it continued."""

    owner: str
    response: Data
    items: list[Data]  # of the input, each with an id
    previous: str | None


@dataclass
class _Live:
    owner: str
    response: Data
    items: list[Data]
    cancel: Callable[[], None]
    is_cancelled: bool = False


class ResponseStore:
    """Bounded store of responses. Each owner sees its own. Event loop thread only."""

    def __init__(self, most: int = _MAX_RESPONSES, max_bytes: int = _MAX_BYTES) -> None:
        self._kept: BoundedStore[Kept] = BoundedStore(most, max_bytes, self._forget_items)
        self._items: dict[tuple[str, str], dict[str, Data]] = {}  # by owner and id; by response, the latest last
        self._live: dict[str, _Live] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def n_bytes(self) -> int:
        """Return the bytes of the stored values."""
        return self._kept.n_bytes

    @contextmanager
    def running(
        self, owner: str, response: Data, items: list[Data], cancel: Callable[[], None]
    ) -> Iterator[Callable[[], bool]]:
        """Shows a response that is under way while the block runs; yields whether a client has cancelled it.

        `items` are its input. A nested block replaces the response: a queued one is then in
        progress.
        """
        id = response["id"]
        outer = self._live.get(id)
        live = self._live[id] = _Live(owner, response, items, cancel)
        try:
            yield lambda: live.is_cancelled
        finally:
            if outer is None:
                del self._live[id]
            else:
                self._live[id] = outer

    def keep(self, owner: str, response: Data, items: list[Data], previous: str | None) -> None:
        """Store a finished response, unless it is larger than the store's limit."""
        kept = Kept(owner, response, items, previous)
        for key, item in _named(kept):
            self._items.setdefault(key, {}).setdefault(response["id"], item)
        if not self._kept.put(owner, response["id"], kept, len(json_bytes([response, items]))):
            self._forget_items(response["id"], kept)

    def get(self, owner: str, id: str) -> Data:
        """Return a response, which may be running. ApiError 404 if there is none."""
        live = self._under_way(owner, id)
        return self.ended(owner, id).response if live is None else live.response

    def items(self, owner: str, id: str) -> list[Data]:
        """Return the input of a response, which may be under way. ApiError 404 if there is none."""
        live = self._under_way(owner, id)
        return self.ended(owner, id).items if live is None else live.items

    def has_ended(self, id: str) -> bool:
        """Return True if a response is stored."""
        return id in self._kept

    def ended(self, owner: str, id: str) -> Kept:
        """Return a response that has ended, with its input. ApiError 404 if there is none."""
        kept = self._kept.get(owner, id)
        if kept is None:
            raise ApiError(404, "not_found", f"there is no response {id[:80]!r} here; it may have been forgotten")
        return kept

    def delete(self, owner: str, id: str) -> None:
        """Forgets a response. ApiError 404 if there is none, 409 if it is under way."""
        if self._under_way(owner, id) is not None:
            raise ApiError(409, "response_under_way", "the response is under way; cancel it first")
        self.ended(owner, id)
        self._kept.forget(id)

    def cancel(self, owner: str, id: str) -> Data:
        """Ends a response that is under way. ApiError 404 if there is none, 400 if it has ended."""
        live = self._under_way(owner, id)
        if live is None:
            status = self.ended(owner, id).response["status"]
            raise ApiError(400, "invalid_request", f"the response is {status}; one that is under way can be cancelled")
        live.is_cancelled = True
        live.cancel()
        return {**live.response, "status": "cancelled"}

    def resolved(self, owner: str, items: Sequence[Data]) -> list[Data]:
        """Return the items, with stored items in the places of references.

        ApiError 400 if an item is missing, or referenced twice: the referenced items are then never larger than
        the store.
        """
        ids = [str(item.get("id")) for item in items if item.get("type") == _REFERENCE]
        if len(ids) > _MAX_REFERENCES:
            raise invalid_param("input", f"expected at most {_MAX_REFERENCES} references to items, but got {len(ids)}")
        found: dict[str, Data] = {}
        for id in ids:
            if id in found:
                raise invalid_param("input", f"it refers to item {id[:80]!r} twice; refer to it once")
            found[id] = self._item(owner, id)
        return [found[str(item.get("id"))] if item.get("type") == _REFERENCE else item for item in items]

    def conversation(self, owner: str, id: str) -> list[Data]:
        """Return the items of a response and of all that it continued, oldest first. ApiError 400 if one is gone."""
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
            output = kept.response["output"]
            if output and output[0]["type"] == "compaction":  # a note replaces all earlier items
                turns.append(output)
                break
            turns.append([*kept.items, *output])
            at = kept.previous
        return [item for turn in reversed(turns) for item in turn]

    def _under_way(self, owner: str, id: str) -> _Live | None:
        live = self._live.get(id)
        return live if live is not None and live.owner == owner and id not in self._kept else None

    def _item(self, owner: str, id: str) -> Data:
        found = self._items.get((owner, id))
        if found is None:
            raise invalid_param("input", f"there is no item {id[:80]!r} here; send the item itself")
        return found[next(reversed(found))]

    def _forget_items(self, id: str, kept: Kept) -> None:
        for key, _ in _named(kept):
            if (found := self._items.get(key)) is not None:
                found.pop(id, None)
                if not found:
                    del self._items[key]


def _named(kept: Kept) -> Iterator[tuple[tuple[str, str], Data]]:
    """Yield the items that a later body can refer to; the id of an input item may be any JSON."""
    output: list[Data] = kept.response["output"]
    for item in (*kept.items, *output):
        if isinstance(id := item["id"], str):
            yield (kept.owner, id), item


def store_of(connection: HTTPConnection) -> ResponseStore:
    """Return the store of an app."""
    state = connection.app.state
    store: ResponseStore | None = getattr(state, "responses", None)
    if store is None:
        store = state.responses = ResponseStore()
    return store
