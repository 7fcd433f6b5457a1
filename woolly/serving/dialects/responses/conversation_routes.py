"""/v1/conversations: stored items that responses can continue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from fastapi import Query, Request
from pydantic import BaseModel, ConfigDict, Field

from woolly.serving.dialects.responses.conversations import conversations_of, new_items
from woolly.serving.dialects.responses.store import store_of
from woolly.serving.dialects.sampling_parameters import Items, Metadata
from woolly.serving.gate.request_id import owner_of
from woolly.serving.router import APIRouter

router = APIRouter()

Data = dict[str, Any]


class ConversationBody(BaseModel):
    """Items and metadata of a new conversation."""

    model_config = ConfigDict(extra="forbid")

    items: Items[dict[str, Any]] | None = None
    metadata: Metadata | None = None


class MetadataBody(BaseModel):
    """New metadata of a conversation."""

    model_config = ConfigDict(extra="forbid")

    metadata: Metadata | None


class ItemsBody(BaseModel):
    """Items to add to a conversation."""

    model_config = ConfigDict(extra="forbid")

    items: Items[dict[str, Any]] = Field(min_length=1)


async def create(request: Request, body: ConversationBody | None = None) -> Data:
    """Create a conversation, optionally with items."""
    body = body or ConversationBody()
    items = _new(request, body.items or [])
    return conversations_of(request).create(owner_of(request), items, body.metadata or {}).shown


async def get(id: str, request: Request) -> Data:
    """Return a conversation without its items."""
    return conversations_of(request).get(owner_of(request), id).shown


async def update(id: str, body: MetadataBody, request: Request) -> Data:
    """Replace the metadata of a conversation."""
    return conversations_of(request).update(owner_of(request), id, body.metadata or {}).shown


async def delete(id: str, request: Request) -> Data:
    """Delete a conversation and its items."""
    conversations_of(request).delete(owner_of(request), id)
    return {"id": id, "object": "conversation.deleted", "deleted": True}


async def list_items(
    id: str,
    request: Request,
    order: Literal["asc", "desc"] = "desc",
    limit: int = Query(20, ge=1, le=100),
    after: str | None = Query(None, max_length=200),
) -> Data:
    """Return the items of a conversation, newest first unless `order` is asc."""
    items = list(conversations_of(request).get(owner_of(request), id).items.values())
    return page_of(items if order == "asc" else items[::-1], limit, after)


async def add_items(id: str, body: ItemsBody, request: Request) -> Data:
    """Add items to the end of a conversation, and return them."""
    items = _new(request, body.items)
    conversations_of(request).add(owner_of(request), id, items)
    return page_of(items, len(items), None)


async def get_item(id: str, item_id: str, request: Request) -> Data:
    """Return an item of a conversation."""
    return conversations_of(request).item(owner_of(request), id, item_id)


async def remove_item(id: str, item_id: str, request: Request) -> Data:
    """Remove an item, and return the conversation."""
    return conversations_of(request).remove(owner_of(request), id, item_id).shown


def page_of(items: Sequence[Data], limit: int, after: str | None) -> Data:
    """Return a page of a list in OpenAI's format: the items after the id `after`, or all for an unknown id."""
    ids = [item["id"] for item in items]
    first = ids.index(after) + 1 if after in ids else 0
    page = list(items[first : first + limit])
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": "", "last_id": ""}
    return {"object": "list", "data": page, "has_more": first + len(page) < len(items), **ends}


def _new(request: Request, items: Sequence[Data]) -> list[Data]:
    return new_items(store_of(request).resolved(owner_of(request), items))


for _base in ("/v1/conversations", "/conversations"):
    router.post(_base)(create)
    router.get(f"{_base}/{{id}}")(get)
    router.post(f"{_base}/{{id}}")(update)
    router.delete(f"{_base}/{{id}}")(delete)
    router.get(f"{_base}/{{id}}/items")(list_items)
    router.post(f"{_base}/{{id}}/items")(add_items)
    router.get(f"{_base}/{{id}}/items/{{item_id}}")(get_item)
    router.delete(f"{_base}/{{id}}/items/{{item_id}}")(remove_item)
