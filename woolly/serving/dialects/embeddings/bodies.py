"""Bodies of embedding, reranking and classification requests of OpenAI, Jina, TEI, Cohere and vLLM."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from woolly.serving.dialects.sampling_parameters import Items
from woolly.serving.errors import invalid_param

Ids = Annotated[list[int], Field(fail_fast=True)]
Mixed = Annotated[list[str | int], Field(fail_fast=True)]  # one text of strings and token ids
Input = str | Items[str] | Ids | Mixed | Annotated[list[str | Ids | Mixed], Field(fail_fast=True)]

_TRUNCATE = "Truncate texts that are too long, instead of rejecting them; the reply lists truncated texts."


class TextBody(BaseModel):
    """Fields shared by all bodies."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    truncate: bool | None = Field(None, description=_TRUNCATE)
    truncate_prompt_tokens: int | None = Field(
        None, description="Same as truncate for vLLM's clients: -1 truncates at the model's maximum."
    )
    user: str | None = None
    priority: int | None = Field(None, description="Accepted without effect.")

    @property
    def cuts(self) -> bool:
        """True if texts that are too long are truncated."""
        return read_truncate(self.truncate, self.truncate_prompt_tokens)


class EmbeddingsBody(TextBody):
    """Body of /v1/embeddings."""

    input: Input = Field(description="One or several texts, or token ids of this model.")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="float, or base64 of little-endian f32."
    )
    dimensions: int | None = Field(
        None, description="Length of the embeddings, which are truncated and normalized again."
    )


class Document(BaseModel):
    """A document as an object."""

    model_config = ConfigDict(extra="ignore", strict=True)

    text: str


class RerankBody(TextBody):
    """Body of /v1/rerank and its aliases, with the fields of Jina, Cohere and TEI."""

    query: str
    documents: Items[str | Document] | None = None
    texts: Items[str] | None = Field(None, description="Same as documents for TEI's clients; the reply is then a list.")
    top_n: int | None = Field(None, description="Maximum number of results.")
    return_documents: bool | None = None
    return_text: bool | None = Field(None, description="Same as return_documents (TEI).")
    raw_scores: bool | None = Field(None, description="Return the model's raw scores instead of scores from 0 to 1.")
    max_tokens_per_doc: int | None = Field(
        None, description="Maximum tokens of a document; longer documents are truncated."
    )

    def listed(self) -> list[str]:
        """Return the documents as strings. Raises ApiError unless exactly one of the fields is set."""
        if (self.documents is None) == (self.texts is None):
            raise invalid_param("documents", "expected one of documents and texts")
        listed = [one if isinstance(one, str) else one.text for one in self.documents or self.texts or ()]
        if not listed:
            raise invalid_param("texts" if self.documents is None else "documents", "empty; expected a document")
        return listed

    def best(self, n: int) -> int:
        """Return the requested number of results."""
        if self.top_n is not None and self.top_n < 1:
            raise invalid_param("top_n", f"expected at least 1, but got {self.top_n}")
        return n if self.top_n is None else min(n, self.top_n)


class ScoreBody(TextBody):
    """Body of /v1/score: pairs of texts, one to one or one to many."""

    text_1: str | Items[str] | None = None
    text_2: str | Items[str] | None = None
    queries: str | Items[str] | None = Field(None, description="Same as text_1.")
    documents: str | Items[str] | None = Field(None, description="Same as text_2.")

    def pairs(self) -> list[tuple[str, str]]:
        """Return the pairs. Raises ApiError if the lists cannot be paired."""
        first, second = (
            as_texts(one if one is not None else other)
            for one, other in ((self.text_1, self.queries), (self.text_2, self.documents))
        )
        if not first or not second:
            raise invalid_param("text_1" if not first else "text_2", "expected a string or a list of strings")
        if len(first) == 1:
            first = first * len(second)
        if len(first) != len(second):
            raise invalid_param(
                "text_2",
                f"{len(first)} and {len(second)} texts cannot be paired; send one text, or lists of equal length",
            )
        return list(zip(first, second, strict=True))


class ClassifyBody(TextBody):
    """Body of /v1/classify."""

    input: Input = Field(description="One or several texts, or token ids of this model.")


def as_texts(given: Any) -> list[Any]:
    """Return a list of texts, each a string or a list of token ids and strings.

    As in llama-server, a list with a token id is one text, and a list without token ids is a list of texts.
    """
    if given is None:
        return []
    if isinstance(given, str):
        return [given]
    return [given] if any(isinstance(part, int) for part in given) else list(given)


def read_truncate(truncate: bool | None, n_tokens: int | None) -> bool:
    """Return True if texts are truncated. Raises ApiError for a length other than the model's maximum."""
    if n_tokens is not None and n_tokens != -1:
        raise invalid_param(
            "truncate_prompt_tokens", f"expected -1, which truncates at the model's maximum, but got {n_tokens}"
        )
    return bool(truncate) or n_tokens == -1
