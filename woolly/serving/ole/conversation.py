"""The Conversation: a chat call that goes on where a session stands, and is kept there when it is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import HTTPConnection

from woolly.serving.errors import ApiError
from woolly.serving.generation import Running
from woolly.serving.ole.client import owner_of
from woolly.serving.openai.messages import Message
from woolly.serving.sessions import Session, SessionStore

__all__ = ["Conversation", "conversation"]


class Conversation:
    """The messages that are answered: those of the session, where one is named, and those that were sent."""

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

    async def keep(self, running: Running, answer: Mapping[str, Any]) -> None:
        """Writes what was sent and the answer to the session, both or neither."""
        if self.session_id is not None:
            added = [_plain(message) for message in self._sent]
            added.append({name: value for name, value in answer.items() if value is not None})
            await self._store.ask(
                self._store.append,
                self._owner,
                self.session_id,
                added,
                after=self._n_kept,
                context_length=running.usage()["total_tokens"],
                model_name=running.model.name,
            )


def _plain(message: Message) -> dict[str, Any]:
    return message.model_dump(exclude_none=True)


@asynccontextmanager
async def conversation(
    connection: HTTPConnection, session_id: str | None, sent: Sequence[Message]
) -> AsyncIterator[Conversation]:
    """Reads a session and holds it until the block ends: a second message to it meanwhile is refused with 409."""
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
            "the session is answering another message; wait for its end",
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
