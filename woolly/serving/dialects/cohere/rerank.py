"""/v2/rerank: documents ranked by a query."""

from __future__ import annotations

from woolly.serving.dialects.embeddings.ranking import rerank
from woolly.serving.dialects.embeddings.replies import RankedText, RerankReply
from woolly.serving.router import APIRouter

router = APIRouter()
router.post("/v2/rerank", responses={200: {"model": RerankReply | list[RankedText]}}, response_model=None)(rerank)
