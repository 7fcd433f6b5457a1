"""POST /auth/token and /auth/validate: a token for a key, and what a token says."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict

from woolly.serving.auth import Authority
from woolly.serving.ole.sessions import timestamp

__all__ = ["TokenBody", "ValidateBody", "issue_token", "router", "validate_token"]

router = APIRouter(prefix="/auth")


class TokenBody(BaseModel):
    """Who asks, and the key that allows it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    user_id: str
    api_key: str


class ValidateBody(BaseModel):
    """A token."""

    model_config = ConfigDict(extra="forbid", strict=True)

    token: str


@router.post("/token", summary="Get a token for a key")
async def issue_token(body: TokenBody, request: Request) -> dict[str, Any]:
    """The token stands for the user in `Authorization: Bearer TOKEN` until it expires."""
    authority: Authority = request.app.state.authority
    token, lifetime = authority.issue(body.user_id, body.api_key)
    return {"token": token, "expires_in": lifetime, "token_type": "Bearer"}


@router.post("/validate", summary="Read a token")
async def validate_token(body: ValidateBody, request: Request) -> dict[str, Any]:
    """Whether this server signed it and it still holds."""
    authority: Authority = request.app.state.authority
    claims = authority.validate(body.token)
    if claims is None:
        return {"valid": False, "claims": None, "expires_at": None}
    told = {name: value for name, value in claims.items() if name != "key"}
    return {"valid": True, "claims": {**told, "user_id": claims["sub"]}, "expires_at": timestamp(claims["exp"])}
