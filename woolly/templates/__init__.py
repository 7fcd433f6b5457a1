"""CONVERSATION TO TEXT: renders chat templates in a sandbox."""

from typing import TYPE_CHECKING

from woolly.later import later

if TYPE_CHECKING:
    from woolly.templates.named import TEMPLATE_NAMES, named_template
    from woolly.templates.template import ChatTemplate

__all__ = ["TEMPLATE_NAMES", "ChatTemplate", "named_template"]

__getattr__ = later(
    __name__,
    {
        "named": "TEMPLATE_NAMES named_template",
        "template": "ChatTemplate",
    },
)
