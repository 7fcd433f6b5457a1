"""A chat that continues a stored session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import HTTPConnection

from woolly.chat import Event
from woolly.llm import ChatChunk
from woolly.serving.dialect import ReplyContext
from woolly.serving.dialects.completions.chat import message_of
from woolly.serving.dialects.completions.messages import Message
from woolly.serving.dialects.ole.store import Session, SessionStore
from woolly.serving.errors import ApiError
from woolly.serving.gate.request_id import owner_of


class Conversation:
    """Messages of the named session, if any, followed by the new messages."""

    def __init__(
        self, store: SessionStore, owner: str, session: Session | None, kept: Sequence[Message], sent: Sequence[Message]
    ) -> None:
        self.session_id = None if session is None else session.id
        self.model = None if session is None else session.model_name
        self.messages = [*kept, *sent]
        self._store = store
        self._owner = owner
        self._n_kept = len(kept)
        self._sent = sent

    async def keep(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[ChatChunk]:
        """Yield the chunks. Before the last chunk is yielded, the new messages and the answer are stored together."""
        events: list[Event] = []
        async for chunk in chunks:
            events += chunk.events
            if chunk.finish_reason is not None and self.session_id is not None:  # a session has one answer
                answer = message_of(events).items()
                added = [_plain(message) for message in self._sent]
                await self._store.ask(
                    self._store.append,
                    self._owner,
                    self.session_id,
                    [*added, {name: value for name, value in answer if value is not None}],
                    after=self._n_kept,
                    context_length=head.running.usage()["total_tokens"],
                    model_name=head.running.model.name,
                )
            yield chunk


def _plain(message: Message) -> dict[str, Any]:
    return message.model_dump(exclude_none=True)


@asynccontextmanager
async def conversation(
    connection: HTTPConnection, session_id: str | None, sent: Sequence[Message]
) -> AsyncIterator[Conversation]:
    """Read a session and lock it until the block ends; meanwhile, other messages to the session get 409."""
    state = connection.app.state
    store: SessionStore = state.sessions
    owner = owner_of(connection)
    if session_id is None:
        yield Conversation(store, owner, None, (), sent)
        return
    busy: set[tuple[str, str]] = state.busy_sessions
    if (owner, session_id) in busy:
        raise ApiError(
            409,
            "session_busy",
            "the session is busy with another message; wait for it",
            param="session_id",
            retry_after=1.0,
        )
    busy.add((owner, session_id))
    try:
        session = await store.ask(store.get, owner, session_id)
        await store.ask(store.check_room, owner, session_id, [_plain(message) for message in sent])
        kept = await store.ask(store.messages, owner, session_id)
        yield Conversation(store, owner, session, [Message.model_validate(one) for one in kept], sent)
    finally:
        busy.discard((owner, session_id))
