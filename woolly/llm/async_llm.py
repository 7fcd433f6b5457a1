"""AsyncLLM: `LLM` for asyncio. The engine runs on a separate thread and never blocks the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from woolly.engine import Chunk, Completion, EngineDriver, Request, Score
from woolly.engine.pooling.wait import wait_for_pooling
from woolly.engine.threads.chunk_queue import AsyncChunkQueue, LoopNotifier
from woolly.errors import KeywordError, RequestError
from woolly.llm.answer import ChatChunk, ChatCompletion, ChatReader, read_answers, read_note
from woolly.llm.llm import LLM
from woolly.llm.pooling import Classification, Float32, Text, listed
from woolly.llm.prompts import Chats, Messages, is_list_of_chats, is_list_of_prompts
from woolly.llm.unsupported_calls import UnsupportedCallsMixin
from woolly.multimodal import read_audio
from woolly.speech.async_segments import stream_segments

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from woolly.chat import ChatFormat
    from woolly.engine.pooling import PoolingJob
    from woolly.llm.options import ChatOptions, GenerateOptions
    from woolly.llm.requests import Params, Prompt, Prompts
    from woolly.multimodal.audio import AudioSource
    from woolly.plan import Pooling
    from woolly.sampling import SamplingParams
    from woolly.speech import DecodeRequest, Transcriber, Transcript, TranscriptSegment


class AsyncLLM(UnsupportedCallsMixin):
    """Asynchronous `LLM` with the same arguments and coroutines as methods. Cancelling a task cancels its request.

    >>> async with AsyncLLM("smollm2") as llm:
    ...     async for chunk in llm.stream_chat("Why is the sky blue?", max_tokens=50):
    ...         print(chunk.text, end="")
    """

    def __init__(self, model: str | os.PathLike[str], **options: Any) -> None:
        """Open the model like `LLM(model, **options)`.

        The constructor blocks the event loop while loading; see `open`.
        """
        self.llm = LLM(model, **options)

    @classmethod
    async def open(cls, model: str | os.PathLike[str], **options: Any) -> AsyncLLM:
        """Open the model on another thread: `async with await AsyncLLM.open("smollm2") as llm`."""
        loading = asyncio.ensure_future(asyncio.to_thread(cls, model, **options))
        try:
            return await asyncio.shield(loading)
        except asyncio.CancelledError:
            # A thread cannot be stopped, so free the model when it is loaded.
            loading.add_done_callback(_free)
            raise

    @overload
    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion: ...

    @overload
    async def generate(
        self,
        prompt: Prompts,
        params: Params | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[Completion]: ...

    async def generate(
        self,
        prompt: Prompt | Prompts,
        params: Params | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion | list[Completion]:
        """Generate like `LLM.generate`, without streaming."""
        _check_options(options, "stream")
        groups = await asyncio.to_thread(self.llm.prepare, prompt, params, **options)
        completions = await self._complete(groups)
        return completions if is_list_of_prompts(prompt) else completions[0].checked()

    @overload
    async def chat(
        self, messages: Messages, params: SamplingParams | None = None, **options: Unpack[ChatOptions]
    ) -> ChatCompletion: ...

    @overload
    async def chat(
        self, messages: Chats, params: Params | None = None, **options: Unpack[ChatOptions]
    ) -> list[ChatCompletion]: ...

    async def chat(
        self,
        messages: Messages | Chats,
        params: Params | None = None,
        **options: Unpack[ChatOptions],
    ) -> ChatCompletion | list[ChatCompletion]:
        """Chat like `LLM.chat`, without streaming."""
        _check_options(options, "stream_chat")
        chats = await asyncio.to_thread(self.llm.prepare_chats, messages, params, **options)
        completions = await self._complete([requests for _, requests in chats])
        if not (many := is_list_of_chats(messages)):
            completions[0].checked()
        answers = read_answers(chats, completions, options.get("schema"))
        return answers if many else answers[0]

    async def compact(
        self, messages: Messages, params: SamplingParams | None = None, **options: Unpack[ChatOptions]
    ) -> str:
        """Compact a conversation like `LLM.compact`."""
        layout, requests = await asyncio.to_thread(self.llm.prepare_note, messages, params, **options)
        (completion,) = await self._complete([requests])
        return read_note(layout, requests, completion)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncStream:
        """Stream like `LLM.generate` with `stream`: `async for chunk in llm.stream(prompt)`.

        The first read starts the request and its `timeout`, and raises the error of an invalid request.
        """
        if is_list_of_prompts(prompt):
            raise RequestError("streaming takes one prompt, but got a list")

        def prepare() -> Sequence[Request]:
            return self.llm.prepare(prompt, params, **options)[0]

        return AsyncStream(self.llm.driver, prepare)

    def stream_chat(
        self, messages: Messages, params: SamplingParams | None = None, **options: Unpack[ChatOptions]
    ) -> AsyncChatStream:
        """Stream like `LLM.chat` with `stream`; errors as in `stream`."""
        return AsyncChatStream(self.llm.driver, lambda: self.llm.prepare_chat(messages, params, **options))

    async def transcribe(self, audio: AudioSource, **options: Any) -> Transcript:
        """Transcribe like `LLM.transcribe`, without streaming."""
        transcriber = await asyncio.to_thread(self._transcriber, audio, options)
        async for _ in stream_segments(transcriber, self._written):
            pass
        return transcriber.transcript

    async def stream_transcript(self, audio: AudioSource, **options: Any) -> AsyncIterator[TranscriptSegment]:
        """Stream like `LLM.transcribe` with `stream`: `async for segment in llm.stream_transcript("talk.wav")`."""
        transcriber = await asyncio.to_thread(self._transcriber, audio, options)
        async for segment in stream_segments(transcriber, self._written):
            yield segment

    def _transcriber(self, audio: AudioSource, options: Mapping[str, Any]) -> Transcriber:
        _check_options(options, "stream_transcript")
        return self.llm.new_transcriber(read_audio(audio), **options)

    async def _written(self, ask: DecodeRequest) -> Sequence[int]:
        (completion,) = await self._complete([[self.llm.decode_request(ask)]])
        return completion.checked().token_ids

    async def score(self, prompt: Prompt) -> Score:
        """Score like `LLM.score`."""
        request = await asyncio.to_thread(self.llm.prepare_score, prompt)
        await self._run([request])
        return Score.of(request)

    async def embed(
        self,
        texts: Text | Sequence[Text],
        *,
        normalize: bool = True,
        dimensions: int | None = None,
        pooling: Pooling | None = None,
        truncate: bool = False,
    ) -> Float32:
        """Embed like `LLM.embed`; cancelling the task ends the job."""
        prepare = partial(self.llm.prepare_embedding, dimensions=dimensions, pooling=pooling, truncate=truncate)
        job = await self.pool(prepare, listed(texts))
        return self.llm.embeddings(job, normalize=normalize, dimensions=dimensions)

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        raw: bool = False,
        truncate: bool = False,
        document_tokens: int | None = None,
    ) -> Float32:
        """Rerank like `LLM.rerank`."""
        prepare = partial(self.llm.prepare_ranking, truncate=truncate, document_tokens=document_tokens)
        job = await self.pool(prepare, query, documents)
        return self.llm.ranks(job, raw=raw)

    async def classify(self, texts: Text | Sequence[Text], *, truncate: bool = False) -> list[Classification]:
        """Classify like `LLM.classify`."""
        prepare = partial(self.llm.prepare_classification, truncate=truncate)
        return self.llm.classes(await self.pool(prepare, listed(texts)))

    async def pool(self, prepare: Callable[..., PoolingJob], *args: Any) -> PoolingJob:
        """Prepare a job on another thread, run it and return it."""
        job = await asyncio.to_thread(prepare, *args)
        await wait_for_pooling(self.llm.driver, job)
        return job

    async def close(self) -> None:
        """Stop the engine thread and free all resources; unfinished requests end as cancelled."""
        await asyncio.to_thread(self.llm.close)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Async{self.llm!r}"

    async def _complete(self, groups: Sequence[Sequence[Request]]) -> list[Completion]:
        await self._run([request for group in groups for request in group])
        return [Completion.of(group) for group in groups]

    async def _run(self, requests: Sequence[Request]) -> None:
        """Run requests to their end; cancelling the task cancels the requests."""
        async with AsyncStream(self.llm.driver, requests, raises=False) as stream:
            async for _ in stream:
                pass


class AsyncStream(AsyncIterator[Chunk]):
    """Chunks of one or several interleaved answers.

    The first read starts the request; closing or dropping it ends it.
    """

    def __init__(
        self,
        driver: EngineDriver,
        requests: Sequence[Request] | Callable[[], Sequence[Request]],
        *,
        raises: bool = True,
    ) -> None:
        """A callable prepares the requests on another thread, because tokenization would block the event loop."""
        self._driver = driver
        self._prepare = requests if callable(requests) else None
        self._requests: tuple[Request, ...] = () if callable(requests) else tuple(requests)
        self._raises = raises
        self._queue: AsyncChunkQueue | None = None  # set when the request starts
        self._closed = False

    async def __anext__(self) -> Chunk:
        try:
            if self._queue is None and not self._closed:
                self._queue = await self._start()
            if self._queue is None or self._closed or (chunk := await self._queue.read()) is None:
                raise StopAsyncIteration
        except BaseException:
            self._end()
            raise
        if chunk.error is not None and self._raises:
            self._end()
            raise chunk.error
        return chunk

    async def aclose(self) -> None:
        """Cancel the unfinished requests."""
        self._end()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def __del__(self) -> None:
        self._end()

    async def _start(self) -> AsyncChunkQueue | None:
        if self._prepare is not None:
            self._requests = tuple(await asyncio.to_thread(self._prepare))
            self._prepare = None
        if self._closed:
            return None
        chunks = AsyncChunkQueue(len(self._requests), LoopNotifier())
        self._driver.add(self._requests, chunks.put)
        return chunks

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            if self._queue is not None and self._queue.n_open:
                self._driver.cancel(self._requests)


class AsyncChatStream(AsyncStream):
    """AsyncStream of ChatChunks."""

    def __init__(self, driver: EngineDriver, prepare: Callable[[], tuple[ChatFormat, Sequence[Request]]]) -> None:
        self._reader: ChatReader | None = None

        def requests() -> Sequence[Request]:
            layout, requests = prepare()
            self._reader = ChatReader(layout, requests)
            return requests

        super().__init__(driver, requests)

    def __aiter__(self) -> AsyncChatStream:
        return self

    async def __aenter__(self) -> AsyncChatStream:
        return self

    async def __anext__(self) -> ChatChunk:
        chunk = await super().__anext__()
        assert self._reader is not None  # set before the first chunk
        return self._reader.read(chunk)


def _free(loading: asyncio.Future[AsyncLLM]) -> None:
    if not loading.cancelled() and loading.exception() is None:
        loading.result().llm.close()


def _check_options(options: Mapping[str, Any], stream: str) -> None:
    for name in ("stream", "progress"):
        if name in options:
            raise KeywordError(f"AsyncLLM does not support {name!r}; use its method {stream} to stream", field=name)
