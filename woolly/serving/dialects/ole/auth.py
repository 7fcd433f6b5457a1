"""POST /auth/token and /auth/validate: issue and validate tokens."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from pydantic import BaseModel, ConfigDict

from woolly.serving.dialects.ole.sessions import timestamp
from woolly.serving.errors import ApiError
from woolly.serving.gate.authenticator import Authenticator
from woolly.serving.gate.rate_limits import KeyGuessLimiter
from woolly.serving.router import APIRouter

router = APIRouter(prefix="/auth")


class TokenBody(BaseModel):
    """User name and API key."""

    model_config = ConfigDict(extra="forbid", strict=True)

    user_id: str
    api_key: str


class ValidateBody(BaseModel):
    """A token."""

    model_config = ConfigDict(extra="forbid", strict=True)

    token: str


@router.post("/token", summary="Issue a token")
async def issue_token(body: TokenBody, request: Request) -> dict[str, Any]:
    """Issue a token for a user, to be sent as `Authorization: Bearer TOKEN`."""
    authenticator: Authenticator = request.app.state.authenticator
    key_guesses: KeyGuessLimiter = request.app.state.key_guesses
    try:
        token, lifetime = authenticator.issue(body.user_id, body.api_key)
    except ApiError as error:
        if error.status == 401:
            key_guesses.record_failure(request.state.bucket)
        raise
    if (client := authenticator.identify(body.api_key)) is not None:
        key_guesses.record_success(request.state.bucket, client.key)
    return {"token": token, "expires_in": lifetime, "token_type": "Bearer"}


@router.post("/validate", summary="Validate a token")
async def validate_token(body: ValidateBody, request: Request) -> dict[str, Any]:
    """Return the claims of a token if this server signed it and it has not expired."""
    authenticator: Authenticator = request.app.state.authenticator
    claims = authenticator.validate(body.token)
    if claims is None:
        return {"valid": False, "claims": None, "expires_at": None}
    told = {name: value for name, value in claims.items() if name != "key"}
    return {"valid": True, "claims": {**told, "user_id": claims["sub"]}, "expires_at": timestamp(claims["exp"])}
