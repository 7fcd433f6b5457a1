"""Reranking, scoring of text pairs, and classification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import Request, Response

from woolly.engine.pooling import PoolingJob
from woolly.llm import LLM
from woolly.serving.dialects.embeddings.bodies import ClassifyBody, RerankBody, ScoreBody, as_texts
from woolly.serving.dialects.embeddings.envelope import enveloped
from woolly.serving.dialects.reply import json_reply
from woolly.serving.errors import invalid_param
from woolly.serving.generation.pooling import PoolingResult, run_pooling


async def rerank(body: RerankBody, request: Request) -> Response:
    """Rank documents by relevance to a query, best first."""
    documents = body.listed()
    pooled, order = await rank(request, body, documents)
    if body.texts is not None:
        wanted = bool(body.return_text or body.return_documents)
        found: Any = [{"index": i, "score": score, **({"text": documents[i]} if wanted else {})} for i, score in order]
        return json_reply(found, pooled.headers)
    results = [
        {
            "index": i,
            "relevance_score": score,
            **({"document": {"text": documents[i]}} if body.return_documents else {}),
        }
        for i, score in order
    ]
    head = enveloped(pooled, "rerank")
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    return json_reply({**head, "results": results, "meta": meta}, pooled.headers)


async def rank(
    request: Request, body: RerankBody, documents: Sequence[str]
) -> tuple[PoolingResult, list[tuple[int, float]]]:
    """Return the best documents with their scores. Equal scores keep their order."""
    n_best, limit = body.best(len(documents)), body.max_tokens_per_doc
    if limit is not None and limit < 1:
        raise invalid_param("max_tokens_per_doc", f"expected at least 1, but got {limit}")

    def prepare(llm: LLM) -> PoolingJob:
        return llm.prepare_ranking(body.query, documents, truncate=body.cuts, document_tokens=limit)

    def finish(llm: LLM, job: PoolingJob) -> list[float]:
        return [float(one) for one in llm.ranks(job, raw=bool(body.raw_scores))]

    pooled = await run_pooling(request, body.model, ("rerank",), prepare, finish, field="documents")
    order = sorted(enumerate(pooled.result), key=lambda pair: -pair[1])[:n_best]
    return pooled, order


async def score(body: ScoreBody, request: Request) -> Response:
    """Score text pairs with a reranker, or with the cosine similarity of an embedding model."""
    pairs = body.pairs()

    def prepare(llm: LLM) -> PoolingJob:
        if llm.plan.result == "scores":
            return llm.prepare_pairs(pairs, truncate=body.cuts)
        texts, pooling = [text for pair in pairs for text in pair], request.app.state.settings.pooling
        return llm.prepare_embedding(texts, pooling=pooling, truncate=body.cuts)

    def finish(llm: LLM, job: PoolingJob) -> list[float]:
        if llm.plan.result == "scores":
            return [float(one) for one in llm.ranks(job)]
        embeddings = llm.embeddings(job).astype(np.float64)
        return [float(one) for one in np.sum(embeddings[::2] * embeddings[1::2], axis=1)]

    pooled = await run_pooling(request, body.model, ("rerank", "embedding"), prepare, finish, field="text_2")
    data = [{"index": i, "object": "score", "score": one} for i, one in enumerate(pooled.result)]
    return json_reply({**enveloped(pooled, "score"), "data": data}, pooled.headers)


async def classify(body: ClassifyBody, request: Request) -> Response:
    """Classify texts, and return the labels with their probabilities."""

    def prepare(llm: LLM) -> PoolingJob:
        return llm.prepare_classification(as_texts(body.input), truncate=body.cuts)

    pooled = await run_pooling(
        request, body.model, ("classify",), prepare, lambda llm, job: llm.classes(job), field="input"
    )
    data = [
        {
            "index": i,
            "label": one.label,
            "probs": list(one.scores.values()),
            "num_classes": len(one.scores),
            "labels": list(one.scores),
        }
        for i, one in enumerate(pooled.result)
    ]
    return json_reply({**enveloped(pooled, "classify"), "data": data}, pooled.headers)
