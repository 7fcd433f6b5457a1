"""PoolingMixin: embedding, reranking and classification methods of LLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from woolly.engine.pooling import Pooler, PoolingJob
from woolly.engine.pooling.make_pooler import make_pooler
from woolly.errors import RequestError
from woolly.llm.embeddings import check_dimensions, sigmoid, softmax, truncate_embeddings
from woolly.llm.progress import texts_bar
from woolly.store import Purpose, models_for

if TYPE_CHECKING:
    from woolly.engine import EngineDriver, LoadedModel
    from woolly.llm.text_ids import BatchTokenizer, TextIds
    from woolly.plan import Pooling
    from woolly.tokens import Tokenizer

Float32 = npt.NDArray[np.float32]
Text = str | Sequence[int | str]  # token ids are used unchanged; only a first string gets special tokens

# Returns True if the client has disconnected, which stops the preparation of its texts.
given_up: ContextVar[Callable[[], bool]] = ContextVar("woolly_given_up", default=lambda: False)


@dataclass(frozen=True)
class Classification:
    """Probabilities of a classifier's labels for a text. `str(classification)` is the most likely label."""

    label: str  # most likely label
    scores: Mapping[str, float]  # probability by label, in the model's order

    def __str__(self) -> str:
        return self.label


class PoolingMixin:
    """Embedding, reranking and classification methods of LLM.

    Thread-safe; texts run between steps of generating requests.
    """

    tokenizer: Tokenizer
    driver: EngineDriver
    ctx: int
    _loaded: list[LoadedModel]

    def embed(
        self,
        texts: Text | Sequence[Text],
        *,
        normalize: bool = True,
        dimensions: int | None = None,
        pooling: Pooling | None = None,
        truncate: bool = False,
        progress: bool = False,
    ) -> Float32:
        """Return a vector for each text (a string or token ids), float32 [n, width].

        Embeddings have length 1 unless `normalize` is false. `dimensions` truncates each vector, for models with
        Matryoshka training only. `pooling` is mean, cls or last; the default is set by the file, and `pooling` is
        required if the file sets none. A text that exceeds the model's maximum is rejected, or truncated with
        `truncate`. `progress` shows a progress bar on standard error.
        """
        job = self.prepare_embedding(listed(texts), dimensions=dimensions, pooling=pooling, truncate=truncate)
        return self.embeddings(self._run(job, progress), normalize=normalize, dimensions=dimensions)

    def embed_tokens(self, texts: Text | Sequence[Text], *, truncate: bool = False) -> list[Float32]:
        """Return a vector for each token of each text, float32 [n_tokens, width], not normalized.

        Raise RequestError if the model's file specifies pooling.
        """
        job = self.prepare_token_embedding(listed(texts), truncate=truncate)
        return self._run(job, False).all_rows()

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        raw: bool = False,
        truncate: bool = False,
        document_tokens: int | None = None,
        progress: bool = False,
    ) -> Float32:
        """Return the relevance of each document, float32 [n], from 0 to 1; with `raw`, the scores of the model.

        Scores are in the order of the documents. `truncate` shortens documents that are too long for the model;
        `document_tokens` shortens documents to this number of tokens.
        """
        job = self.prepare_ranking(query, documents, truncate=truncate, document_tokens=document_tokens)
        return self.ranks(self._run(job, progress), raw=raw)

    def classify(
        self, texts: Text | Sequence[Text], *, truncate: bool = False, progress: bool = False
    ) -> list[Classification]:
        """Return the probability of each label for each text."""
        job = self.prepare_classification(listed(texts), truncate=truncate)
        return self.classes(self._run(job, progress))

    def prepare_embedding(
        self,
        texts: Sequence[Text],
        *,
        dimensions: int | None = None,
        pooling: Pooling | None = None,
        truncate: bool = False,
    ) -> PoolingJob:
        """Return a job for `embeddings`.

        Raise RequestError if the model is not an embedding model, or if a text is too long.
        """
        if pooling == "none":
            message = "pooling is 'none', which gives no vector per text; expected mean, cls or last"
            raise RequestError(message, field="pooling")
        pooler = self._pooler(pooling)
        if pooler is None or pooler.kind != "embeddings":
            raise self._cannot("embed", "embed texts", pooler)
        check_dimensions(dimensions, pooler.width)
        return self._job(self._ids_of(texts, pooler, truncate), pooler, truncate, "text")

    def prepare_token_embedding(self, texts: Sequence[Text], *, truncate: bool = False) -> PoolingJob:
        """Return a job for `PoolingJob.all_rows`; errors as in `prepare_embedding`."""
        pooler = self._pooler("none")
        assert pooler is not None
        return self._job(self._ids_of(texts, pooler, truncate), pooler, truncate, "text")

    def prepare_ranking(
        self, query: str, documents: Sequence[str], *, truncate: bool = False, document_tokens: int | None = None
    ) -> PoolingJob:
        """Return a job for `ranks`; errors as in `prepare_embedding`."""
        pairs = [(query, document) for document in documents]
        return self.prepare_pairs(pairs, truncate=truncate, document_tokens=document_tokens)

    def prepare_pairs(
        self, pairs: Sequence[tuple[str, str]], *, truncate: bool = False, document_tokens: int | None = None
    ) -> PoolingJob:
        """Return a job for `ranks` of (query, document) pairs."""
        if document_tokens is not None and document_tokens < 1:
            raise RequestError(f"document_tokens is {document_tokens}; expected at least 1", names=("document_tokens",))
        pooler = self._pooler(None)
        if pooler is None or pooler.kind != "scores":
            raise self._cannot("rerank", "rank documents", pooler)
        if pooler.width != 1 and _yes(self._labels) is None:
            raise RequestError(
                f"{self._name} is a classifier with {pooler.width} labels ({', '.join(self._labels)}) and cannot rank;"
                " use classify"
            )
        maker = self._maker(pooler, truncate or document_tokens is not None)
        ids = _each(pairs, "document", lambda pair: maker.pair(*pair))
        return self._job(ids, pooler, truncate, "document", document_tokens)

    def prepare_classification(self, texts: Sequence[Text], *, truncate: bool = False) -> PoolingJob:
        """Return a job for `classes`; errors as in `prepare_embedding`."""
        pooler = self._pooler(None)
        if pooler is None or pooler.kind != "scores":
            raise self._cannot("rerank", "classify texts", pooler)
        return self._job(self._ids_of(texts, pooler, truncate), pooler, truncate, "text")

    def embeddings(self, job: PoolingJob, *, normalize: bool = True, dimensions: int | None = None) -> Float32:
        """Return the embeddings of a finished job, or raise its error."""
        return truncate_embeddings(job.result(), dimensions, normalize)

    def ranks(self, job: PoolingJob, *, raw: bool = False) -> Float32:
        """Return the relevance scores of a finished job, or raise its error."""
        rows = job.result()
        yes = _yes(self._labels) if rows.shape[1] > 1 else None
        if raw:
            return np.ascontiguousarray(rows[:, yes or 0])
        return sigmoid(rows[:, 0]) if yes is None else np.ascontiguousarray(softmax(rows)[:, yes])

    def classes(self, job: PoolingJob) -> list[Classification]:
        """Return the labels of a finished job, or raise its error."""
        rows = job.result()
        scores = sigmoid(rows) if rows.shape[1] == 1 else softmax(rows)
        labels = self._labels or tuple(f"LABEL_{i}" for i in range(rows.shape[1]))
        return [
            Classification(labels[int(row.argmax())], dict(zip(labels, row.tolist(), strict=True))) for row in scores
        ]

    @property
    def _name(self) -> str:
        return self._loaded[0].path.stem

    @property
    def _labels(self) -> tuple[str, ...]:
        return self._loaded[0].program.plan.labels

    def _run(self, job: PoolingJob, progress: bool) -> PoolingJob:
        bar = texts_bar(len(job.texts)) if progress else nullcontext(None)
        with bar as report:
            job.on_progress = report
            self.driver.run_pooling(job)
        return job

    def _pooler(self, pooling: Pooling | None) -> Pooler | None:
        _ = self.driver.engine  # raises if the LLM was closed
        loaded = self._loaded[0]
        return make_pooler(loaded.program, loaded.file.tensors, pooling)

    def _cannot(self, purpose: Purpose, verb: str, pooler: Pooler | None) -> RequestError:
        """Return the error for a model without the capability; the error names models with the capability."""
        transcribes = self._loaded[0].program.plan.transcribes
        if transcribes:
            why = "it is a speech-to-text model"
        elif pooler is None:
            why = f"it is a chat model, not {'an embedder' if purpose == 'embed' else 'a reranker'}"
        else:
            why = "it scores texts" if pooler.kind == "scores" else "its file has no head that scores texts"
        choice = ", or set pooling to mean or last"
        return RequestError(
            f"{self._name} cannot {verb}: {why}; use a model that can, such as {' or '.join(models_for(purpose)[:2])}"
            f"{choice if pooler is None and purpose == 'embed' and not transcribes else ''}",
            code="wrong_model",
            field="model",
            names=("pooling",),
        )

    def _ids_of(self, texts: Sequence[Text], pooler: Pooler, truncate: bool) -> list[TextIds]:
        return _each(texts, "text", self._maker(pooler, truncate).text)

    def _maker(self, pooler: Pooler, truncate: bool) -> BatchTokenizer:
        from woolly.llm.text_ids import BatchTokenizer  # imported late: most models generate text

        return BatchTokenizer(self.tokenizer, self._loaded[0].file.metadata, self._max_tokens(pooler), truncate)

    def _max_tokens(self, pooler: Pooler) -> int:
        """Return the maximum number of tokens per text."""
        return min(self.ctx, self.driver.engine.program.max_rows) if pooler.is_whole else self.ctx

    def _job(
        self, texts: Sequence[TextIds], pooler: Pooler, truncate: bool, what: str, inner: int | None = None
    ) -> PoolingJob:
        """Return a job of texts; texts that are too long for the model are truncated or rejected.

        With `inner`, each text is truncated to this number of tokens between its head and its tail.
        """
        most = self._max_tokens(pooler)
        kept, n_cut = [], []
        for index, text in enumerate(texts):
            n = len(text.ids)
            if n == 0:
                raise RequestError(f"{what} {index} is empty; expected at least one token", names=())
            wanted = text if inner is None else text.cut(text.n_head + inner + text.n_tail) or text
            short = wanted.cut(most) if truncate or len(wanted.ids) <= most else None
            if short is None:
                raise RequestError(
                    f"{what} {index} has {n} tokens, but this model takes at most {most}: it is too large; shorten it"
                    + ("" if truncate else ", or set truncate"),
                    code="context_length",
                    limit=most,
                    given=n,
                    names=("truncate",),
                )
            kept.append(short.ids)
            n_cut.append(n - len(short.ids))
        return PoolingJob(kept, pooler, n_cut=n_cut)


def _each(texts: Sequence[Any], what: str, make: Callable[[Any], TextIds]) -> list[TextIds]:
    """Return the token ids of each text; an error names the text."""
    out = []
    is_given_up = given_up.get()
    for index, text in enumerate(texts):
        if is_given_up():
            raise RequestError("the client disconnected before its texts were tokenized")
        try:
            out.append(make(text))
        except RequestError as error:
            raise error.with_message(f"{what} {index}: {error}", RequestError) from error
    return out


def listed(texts: Any) -> Sequence[Any]:
    """Return a list of texts unchanged, or a single text or its ids in a list."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        return [texts]
    return [texts] if len(texts) and isinstance(texts[0], (int, np.integer)) else texts


def _yes(labels: Sequence[str]) -> int | None:
    """Return the index of the label "yes", which rerankers made from chat models use for relevant documents."""
    return next((i for i, label in enumerate(labels) if label.lower() == "yes"), None)
