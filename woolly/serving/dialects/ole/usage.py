"""GET /usage: usage by key. Administrators see all keys, and other clients only see their own key."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from woolly.errors import RequestError
from woolly.serving.accounts.account import Account
from woolly.serving.accounts.usage_ledger import UsageLedger
from woolly.serving.errors import feature_disabled, to_api_error
from woolly.serving.router import APIRouter

router = APIRouter()


@router.get("/usage", summary="Show the usage of keys")
async def show_usage(
    request: Request, by: str = "key,model", since: str | None = None, until: str | None = None, key: str | None = None
) -> dict[str, Any]:
    """Return usage grouped by key, model and day (UTC); `since` and `until` are inclusive days."""
    ledger: UsageLedger | None = request.app.state.meter.ledger
    if ledger is None:
        raise feature_disabled("GET /api/v1/usage", "--keys-file or --usage-file")
    account: Account | None = request.state.account
    if account is not None and not account.is_admin:
        key = account.name
    groups = tuple(one.strip() for one in by.split(",") if one.strip())
    try:
        return {"by": groups, "usage": await ledger.read(groups, key=key, since=since, until=until)}
    except RequestError as error:
        raise to_api_error(error) from error
