"""/v1/embeddings, /v1/rerank, /v1/score and /v1/classify."""

from __future__ import annotations

from woolly.serving.dialects.embeddings.embeddings import embeddings
from woolly.serving.dialects.embeddings.ranking import classify, rerank, score
from woolly.serving.dialects.embeddings.replies import (
    ClassifyReply,
    EmbeddingsReply,
    RankedText,
    RerankReply,
    ScoreReply,
)
from woolly.serving.router import APIRouter

router = APIRouter()
router.post("/v1/embeddings", responses={200: {"model": EmbeddingsReply}}, response_model=None)(embeddings)
for _path in ("/v1/rerank", "/v1/reranking"):
    router.post(_path, responses={200: {"model": RerankReply | list[RankedText]}}, response_model=None)(rerank)
router.post("/v1/score", responses={200: {"model": ScoreReply}}, response_model=None)(score)
router.post("/v1/classify", responses={200: {"model": ClassifyReply}}, response_model=None)(classify)
