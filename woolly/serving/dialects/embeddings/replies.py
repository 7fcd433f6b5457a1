"""Replies of embeddings, reranking, scores and labels, for the API's description."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class TextUsage(BaseModel):
    """Number of prompt tokens."""

    prompt_tokens: int
    total_tokens: int


class Embedding(BaseModel):
    """One vector."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsReply(BaseModel):
    """The reply of /v1/embeddings."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: TextUsage
    truncated: list[int] | None = None


class RankedDocument(BaseModel):
    """One document."""

    index: int
    relevance_score: float
    document: dict[str, str] | None = None


class RankedText(BaseModel):
    """One document, in TEI's format."""

    index: int
    score: float
    text: str | None = None


class RerankReply(BaseModel):
    """The reply of /v1/rerank, the best document first."""

    id: str
    object: Literal["list"]
    model: str
    usage: TextUsage
    results: list[RankedDocument]
    meta: dict[str, Any]
    truncated: list[int] | None = None


class Scored(BaseModel):
    """One pair."""

    index: int
    object: Literal["score"]
    score: float


class ScoreReply(BaseModel):
    """The reply of /v1/score."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Scored]
    usage: TextUsage
    truncated: list[int] | None = None


class Classified(BaseModel):
    """One text."""

    index: int
    label: str
    probs: list[float]
    num_classes: int
    labels: list[str]


class ClassifyReply(BaseModel):
    """The reply of /v1/classify."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Classified]
    usage: TextUsage
    truncated: list[int] | None = None
