"""Chat templates, rendered in a sandbox."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.templates.builtin import TEMPLATE_NAMES, builtin_template
    from woolly.templates.template import ChatTemplate

__all__ = ["TEMPLATE_NAMES", "ChatTemplate", "builtin_template"]

__getattr__ = lazy_getattr(
    __name__,
    {
        "builtin": "TEMPLATE_NAMES builtin_template",
        "template": "ChatTemplate",
    },
)
