"""In-memory store of responses that clients may fetch or continue."""

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
_MAX_REFERENCES = 4096  # per body
_REFERENCE = "item_reference"


@dataclass(frozen=True)
class StoredResponse:
    """A response with its input and the id of the previous response."""

    owner: str
    response: Data
    items: list[Data]  # input items, each with an id
    previous: str | None


@dataclass
class _Live:
    owner: str
    response: Data
    items: list[Data]
    cancel: Callable[[], None]
    is_cancelled: bool = False


class ResponseStore:
    """Store of responses with limits.

    Each owner can access only its own responses. Use this class only on the event loop thread.
    """

    def __init__(self, most: int = _MAX_RESPONSES, max_bytes: int = _MAX_BYTES) -> None:
        self._kept: BoundedStore[StoredResponse] = BoundedStore(most, max_bytes, self._forget_items)
        self._items: dict[tuple[str, str], dict[str, Data]] = {}  # by (owner, item id), then by response id
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
        """Register a running response while the block runs; yield a function that returns True after a cancellation.

        `items` is the input. A nested block replaces the response, for example when a queued response starts.
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
        """Store a finished response, unless it exceeds the store's limit."""
        kept = StoredResponse(owner, response, items, previous)
        for key, item in _named(kept):
            self._items.setdefault(key, {}).setdefault(response["id"], item)
        if not self._kept.put(owner, response["id"], kept, len(json_bytes([response, items]))):
            self._forget_items(response["id"], kept)

    def get(self, owner: str, id: str) -> Data:
        """Return a stored or running response. Raises ApiError 404 if the response does not exist."""
        live = self._under_way(owner, id)
        return self.ended(owner, id).response if live is None else live.response

    def items(self, owner: str, id: str) -> list[Data]:
        """Return the input of a stored or running response. Raises ApiError 404 if the response does not exist."""
        live = self._under_way(owner, id)
        return self.ended(owner, id).items if live is None else live.items

    def has_ended(self, id: str) -> bool:
        """Return True if a response is stored."""
        return id in self._kept

    def ended(self, owner: str, id: str) -> StoredResponse:
        """Return a stored response with its input. Raises ApiError 404 if the response does not exist."""
        kept = self._kept.get(owner, id)
        if kept is None:
            raise ApiError(404, "not_found", f"unknown response {id[:80]!r}; it may have been evicted")
        return kept

    def delete(self, owner: str, id: str) -> None:
        """Delete a stored response. Raises ApiError 404 for an unknown response, 409 for a running response."""
        if self._under_way(owner, id) is not None:
            raise ApiError(409, "response_under_way", "the response is running; cancel it first")
        self.ended(owner, id)
        self._kept.forget(id)

    def cancel(self, owner: str, id: str) -> Data:
        """Cancel a running response. Raises ApiError 404 for an unknown response, 400 for a finished response."""
        live = self._under_way(owner, id)
        if live is None:
            status = self.ended(owner, id).response["status"]
            raise ApiError(400, "invalid_request", f"the response is {status}; only running responses can be cancelled")
        live.is_cancelled = True
        live.cancel()
        return {**live.response, "status": "cancelled"}

    def resolved(self, owner: str, items: Sequence[Data]) -> list[Data]:
        """Replace references in a list of items with the stored items.

        Raises ApiError 400 if an item is missing, or is referenced twice, which could exceed the size of the store.
        """
        ids = [str(item.get("id")) for item in items if item.get("type") == _REFERENCE]
        if len(ids) > _MAX_REFERENCES:
            raise invalid_param("input", f"expected at most {_MAX_REFERENCES} references to items, but got {len(ids)}")
        found: dict[str, Data] = {}
        for id in ids:
            if id in found:
                raise invalid_param("input", f"item {id[:80]!r} is referenced twice; reference it once")
            found[id] = self._item(owner, id)
        return [found[str(item.get("id"))] if item.get("type") == _REFERENCE else item for item in items]

    def conversation(self, owner: str, id: str) -> list[Data]:
        """Return the items of a response and of all previous responses, oldest first.

        Raises ApiError 400 if a response is missing.
        """
        turns: list[list[Data]] = []
        at: str | None = id
        while at is not None:
            try:
                kept = self.ended(owner, at)
            except ApiError:
                raise ApiError(
                    400,
                    "previous_response_not_found",
                    f"unknown previous response {at[:80]!r}: it was not stored or has been evicted; send all items",
                    param="previous_response_id",
                ) from None
            output = kept.response["output"]
            if output and output[0]["type"] == "compaction":  # a summary replaces all earlier items
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
            raise invalid_param("input", f"unknown item {id[:80]!r}; send the item itself")
        return found[next(reversed(found))]

    def _forget_items(self, id: str, kept: StoredResponse) -> None:
        for key, _ in _named(kept):
            if (found := self._items.get(key)) is not None:
                found.pop(id, None)
                if not found:
                    del self._items[key]


def _named(kept: StoredResponse) -> Iterator[tuple[tuple[str, str], Data]]:
    """Yield the items that later bodies can reference. The id of an input item may be any JSON value."""
    output: list[Data] = kept.response["output"]
    for item in (*kept.items, *output):
        if isinstance(id := item["id"], str):
            yield (kept.owner, id), item


def store_of(connection: HTTPConnection) -> ResponseStore:
    """Return the app's store of responses."""
    state = connection.app.state
    store: ResponseStore | None = getattr(state, "responses", None)
    if store is None:
        store = state.responses = ResponseStore()
    return store
