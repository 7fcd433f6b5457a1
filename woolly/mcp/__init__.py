"""Model Context Protocol (MCP) client: servers with tools that a model may call."""

from woolly.mcp.approval import POLICIES, Approvals
from woolly.mcp.config import Config, ServerSpec, read_config
from woolly.mcp.result import ToolResult
from woolly.mcp.toolbox import OfferedTool, ServerStatus, Toolbox

__all__ = [
    "POLICIES",
    "Approvals",
    "Config",
    "OfferedTool",
    "ServerSpec",
    "ServerStatus",
    "ToolResult",
    "Toolbox",
    "read_config",
]
