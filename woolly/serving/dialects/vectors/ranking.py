"""Documents ranked by a query; pairs of texts scored; labels of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import Request, Response

from woolly.engine.reading import Reading
from woolly.llm import LLM
from woolly.serving.dialects.answer import json_reply
from woolly.serving.dialects.vectors.bodies import ClassifyBody, RerankBody, ScoreBody, as_texts
from woolly.serving.dialects.vectors.envelope import enveloped
from woolly.serving.errors import invalid_param
from woolly.serving.generation.texts import ReadTexts, read_texts


async def rerank(body: RerankBody, request: Request) -> Response:
    """Documents by how well they answer a query, the best first."""
    documents = body.listed()
    read, order = await rank(request, body, documents)
    if body.texts is not None:
        wanted = bool(body.return_text or body.return_documents)
        found: Any = [{"index": i, "score": score, **({"text": documents[i]} if wanted else {})} for i, score in order]
        return json_reply(found, read.headers)
    results = [
        {
            "index": i,
            "relevance_score": score,
            **({"document": {"text": documents[i]}} if body.return_documents else {}),
        }
        for i, score in order
    ]
    head = enveloped(read, "rerank")
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    return json_reply({**head, "results": results, "meta": meta}, read.headers)


async def rank(
    request: Request, body: RerankBody, documents: Sequence[str]
) -> tuple[ReadTexts, list[tuple[int, float]]]:
    """Returns the best documents with their scores; documents of one score keep their order."""
    n_best, limit = body.best(len(documents)), body.max_tokens_per_doc
    if limit is not None and limit < 1:
        raise invalid_param("max_tokens_per_doc", f"it is {limit}; at least 1 was expected")

    def prepare(llm: LLM) -> Reading:
        return llm.prepare_ranking(body.query, documents, truncate=body.cuts, document_tokens=limit)

    def finish(llm: LLM, reading: Reading) -> list[float]:
        return [float(one) for one in llm.ranks(reading, raw=bool(body.raw_scores))]

    read = await read_texts(request, body.model, ("rerank",), prepare, finish, field="documents")
    order = sorted(enumerate(read.result), key=lambda pair: -pair[1])[:n_best]
    return read, order


async def score(body: ScoreBody, request: Request) -> Response:
    """How well texts belong together: by the model that ranks, or the cosine of the vectors of one that embeds."""
    pairs = body.pairs()

    def prepare(llm: LLM) -> Reading:
        if llm.plan.result == "scores":
            return llm.prepare_pairs(pairs, truncate=body.cuts)
        texts, pooling = [text for pair in pairs for text in pair], request.app.state.settings.pooling
        return llm.prepare_embedding(texts, pooling=pooling, truncate=body.cuts)

    def finish(llm: LLM, reading: Reading) -> list[float]:
        if llm.plan.result == "scores":
            return [float(one) for one in llm.ranks(reading)]
        vectors = llm.vectors(reading).astype(np.float64)
        return [float(one) for one in np.sum(vectors[::2] * vectors[1::2], axis=1)]

    read = await read_texts(request, body.model, ("rerank", "embedding"), prepare, finish, field="text_2")
    data = [{"index": i, "object": "score", "score": one} for i, one in enumerate(read.result)]
    return json_reply({**enveloped(read, "score"), "data": data}, read.headers)


async def classify(body: ClassifyBody, request: Request) -> Response:
    """The labels of texts, with their probabilities."""

    def prepare(llm: LLM) -> Reading:
        return llm.prepare_classification(as_texts(body.input), truncate=body.cuts)

    read = await read_texts(
        request, body.model, ("classify",), prepare, lambda llm, reading: llm.classes(reading), field="input"
    )
    data = [
        {
            "index": i,
            "label": one.label,
            "probs": list(one.scores.values()),
            "num_classes": len(one.scores),
            "labels": list(one.scores),
        }
        for i, one in enumerate(read.result)
    ]
    return json_reply({**enveloped(read, "classify"), "data": data}, read.headers)
