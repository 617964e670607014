"""The MCP door: the tools of the reference filesystem server, and our own, over the Model Context Protocol."""
