"""CONVERSATION TO TEXT: renders chat templates in a sandbox."""

from woolly.templates.named import TEMPLATE_NAMES, named_template
from woolly.templates.template import ChatTemplate

__all__ = ["TEMPLATE_NAMES", "ChatTemplate", "named_template"]
