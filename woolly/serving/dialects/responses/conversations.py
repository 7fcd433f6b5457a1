"""Conversations stored for clients, in memory and with limits."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import HTTPConnection

from woolly.serving.dialects.reply import json_bytes
from woolly.serving.dialects.responses.bounded_store import BoundedStore
from woolly.serving.dialects.responses.items import read_items
from woolly.serving.errors import ApiError, invalid_param

Data = dict[str, Any]

_MAX_CONVERSATIONS = 1000  # conversations
_MAX_BYTES = 64 << 20
_MAX_CONVERSATION_BYTES = 16 << 20  # maximum size of a conversation before an answer
_MAX_ITEMS = 10_000  # per conversation
_ITEM = 64  # approximate overhead of an item in bytes


@dataclass
class StoredConversation:
    """A conversation with its items by id, in order."""

    owner: str
    id: str
    created_at: int
    metadata: dict[str, str]
    items: dict[str, Data] = field(default_factory=dict)
    n_bytes: int = 0
    is_answering: bool = False

    @property
    def shown(self) -> Data:
        """Return the conversation in OpenAI's format."""
        fields = {"id": self.id, "object": "conversation", "created_at": self.created_at}
        return {**fields, "metadata": self.metadata}


class ConversationStore:
    """Store of conversations with limits.

    Each owner can access only its own conversations. Use this class only on the event loop thread.
    """

    def __init__(
        self,
        most: int = _MAX_CONVERSATIONS,
        max_bytes: int = _MAX_BYTES,
        max_conversation_bytes: int = _MAX_CONVERSATION_BYTES,
    ) -> None:
        self._kept: BoundedStore[StoredConversation] = BoundedStore(most, max_bytes)
        self._max_conversation_bytes = max_conversation_bytes

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def n_bytes(self) -> int:
        """Return the bytes of the stored values."""
        return self._kept.n_bytes

    def create(self, owner: str, items: Sequence[Data], metadata: Mapping[str, str]) -> StoredConversation:
        """Create a conversation. Raises ApiError 400 if the items are invalid or too large."""
        id = f"conv_{secrets.token_hex(24)}"
        conversation = StoredConversation(owner, id, int(time.time()), dict(metadata))
        self._check(conversation, items)
        conversation.n_bytes = len(json_bytes(conversation.shown))
        self._add(conversation, items)
        return conversation

    def get(self, owner: str, id: str) -> StoredConversation:
        """Return a conversation. Raises ApiError 404 if the owner has no such conversation."""
        found = self._kept.get(owner, id)
        if found is None:
            message = f"unknown conversation {id[:80]!r}; it may have been evicted"
            raise ApiError(404, "not_found", message)
        return found

    def update(self, owner: str, id: str, metadata: Mapping[str, str]) -> StoredConversation:
        """Replace the metadata of a conversation."""
        conversation = self.get(owner, id)
        before = len(json_bytes(conversation.metadata))
        conversation.metadata = dict(metadata)
        conversation.n_bytes += len(json_bytes(conversation.metadata)) - before
        self._put(conversation)
        return conversation

    def delete(self, owner: str, id: str) -> None:
        """Delete a conversation. A running answer continues, but is not stored."""
        self.get(owner, id)
        self._kept.forget(id)

    def item(self, owner: str, id: str, item_id: str) -> Data:
        """Return an item. Raises ApiError 404 if the item does not exist."""
        found = self.get(owner, id).items.get(item_id)
        if found is None:
            raise ApiError(404, "not_found", f"unknown item {item_id[:80]!r} in this conversation")
        return found

    def add(self, owner: str, id: str, items: Sequence[Data]) -> None:
        """Add items to the end of a conversation. Raises ApiError 400 if the items are invalid or too large."""
        conversation = self.get(owner, id)
        self._check(conversation, items)
        self._add(conversation, items)

    def remove(self, owner: str, id: str, item_id: str) -> StoredConversation:
        """Remove an item."""
        item = self.item(owner, id, item_id)
        conversation = self.get(owner, id)
        del conversation.items[item_id]
        conversation.n_bytes -= _size(item)
        self._put(conversation)
        return conversation

    @contextmanager
    def answering(self, owner: str, id: str, items: Sequence[Data]) -> Iterator[list[Data]]:
        """Yield the earlier items while a response to them and to new `items` runs.

        Raises ApiError 409 if another response is running, because the two responses would not see each other.
        """
        conversation = self.get(owner, id)
        self._check(conversation, items)
        if conversation.is_answering:
            message = "another response in this conversation is running; wait for it, or cancel it"
            raise ApiError(409, "conversation_locked", message, param="conversation", retry_after=1.0)
        conversation.is_answering = True
        try:
            yield list(conversation.items.values())
        finally:
            conversation.is_answering = False

    def settle(self, owner: str, id: str, items: Sequence[Data]) -> None:
        """Add the input and output of a finished response, unless the conversation was deleted.

        Items whose id has been used meanwhile get a new id.
        """
        conversation = self._kept.get(owner, id)
        if conversation is not None:
            known = conversation.items
            self._add(conversation, [{**item, "id": _new_id(item)} if item["id"] in known else item for item in items])

    def _check(self, conversation: StoredConversation, items: Sequence[Data]) -> None:
        read_items(items)
        seen = set(conversation.items)
        for i, item in enumerate(items):
            if item["id"] in seen:
                raise invalid_param(
                    f"items.{i}.id", "the id is already used in this conversation; omit it to get a new id"
                )
            seen.add(item["id"])
        if len(seen) > _MAX_ITEMS:
            raise invalid_param("items", f"the conversation would have {len(seen)} items; the limit is {_MAX_ITEMS}")
        n_bytes = conversation.n_bytes + sum(map(_size, items))
        if n_bytes > self._max_conversation_bytes:
            message = f"the conversation would have {n_bytes} bytes; the limit is {self._max_conversation_bytes}"
            raise ApiError(413, "conversation_too_large", message, param="items")

    def _add(self, conversation: StoredConversation, items: Sequence[Data]) -> None:
        conversation.items.update((item["id"], item) for item in items)
        conversation.n_bytes += sum(map(_size, items))
        self._put(conversation)

    def _put(self, conversation: StoredConversation) -> None:
        self._kept.put(conversation.owner, conversation.id, conversation, conversation.n_bytes)


def new_items(items: Sequence[Mapping[str, Any]]) -> list[Data]:
    """Return items in the format of conversations: each has an id; messages have a type, status and parts."""
    return [_shown(item) for item in items]


def conversations_of(connection: HTTPConnection) -> ConversationStore:
    """Return the app's store of conversations."""
    state = connection.app.state
    store: ConversationStore | None = getattr(state, "conversations", None)
    if store is None:
        store = state.conversations = ConversationStore()
    return store


def _shown(item: Mapping[str, Any]) -> Data:
    shown = dict(item)
    if "type" not in shown and "role" in shown:
        shown["type"] = "message"
    if not isinstance(shown.get("id"), str) or not shown["id"]:
        shown["id"] = _new_id(shown)
    if shown.get("type") == "message":
        if isinstance(content := shown.get("content"), str):
            kind = "output_text" if shown.get("role") == "assistant" else "input_text"
            part: Data = {"type": kind, "text": content}
            shown["content"] = [part | {"annotations": []} if kind == "output_text" else part]
        shown["status"] = "completed"
    return shown


def _new_id(item: Mapping[str, Any]) -> str:
    return f"{'msg' if item.get('type') == 'message' else 'item'}_{secrets.token_hex(24)}"


def _size(item: Data) -> int:
    return len(json_bytes(item)) + _ITEM
