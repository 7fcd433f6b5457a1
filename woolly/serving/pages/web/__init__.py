"""The web page at `/`, with chat, models and metrics: static files without a build step or external hosts."""

from woolly.serving.pages.web.assets import Asset, Assets
from woolly.serving.pages.web.page import create_router, is_public

__all__ = ["Asset", "Assets", "create_router", "is_public"]
