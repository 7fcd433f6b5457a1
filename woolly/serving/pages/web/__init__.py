"""The web page at `/`: chat, models and figures in a browser; plain files, no build step, no other host."""

from woolly.serving.pages.web.assets import Asset, Assets
from woolly.serving.pages.web.page import create_router, is_public

__all__ = ["Asset", "Assets", "create_router", "is_public"]
