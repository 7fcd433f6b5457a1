"""Replies to embedding, reranking, scoring and classification requests, for the OpenAPI schema."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class TextUsage(BaseModel):
    """Number of prompt tokens."""

    prompt_tokens: int
    total_tokens: int


class Embedding(BaseModel):
    """An embedding."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsReply(BaseModel):
    """Reply of /v1/embeddings."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: TextUsage
    truncated: list[int] | None = None


class RankedDocument(BaseModel):
    """A ranked document."""

    index: int
    relevance_score: float
    document: dict[str, str] | None = None


class RankedText(BaseModel):
    """A ranked document in TEI's format."""

    index: int
    score: float
    text: str | None = None


class RerankReply(BaseModel):
    """Reply of /v1/rerank, best document first."""

    id: str
    object: Literal["list"]
    model: str
    usage: TextUsage
    results: list[RankedDocument]
    meta: dict[str, Any]
    truncated: list[int] | None = None


class Scored(BaseModel):
    """A scored pair."""

    index: int
    object: Literal["score"]
    score: float


class ScoreReply(BaseModel):
    """Reply of /v1/score."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Scored]
    usage: TextUsage
    truncated: list[int] | None = None


class Classified(BaseModel):
    """A classified text."""

    index: int
    label: str
    probs: list[float]
    num_classes: int
    labels: list[str]


class ClassifyReply(BaseModel):
    """Reply of /v1/classify."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Classified]
    usage: TextUsage
    truncated: list[int] | None = None
