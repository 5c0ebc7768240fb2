"""Test doubles: a scripted model server with OpenAI's chat completions over real HTTP.

In Python:

    with ScriptedModels([Rule(match="capital", reply="Paris")]) as server:
        ...  # with OPENAI_API_BASE=server.url and any OPENAI_API_KEY
        server.journal()

As a process, which exits with the one that started it:

    python -m cantata.testing script.yaml --port 8000

A script is a list of rules. The first rule that matches a request and has uses left answers it, so rules with `times: 1` are a sequence,
and rules with `after_tools: n` a loop of tool calls. Requests that no rule matches are echoed. `GET /journal` returns the requests so far,
`POST /script` replaces the rules.
"""

from cantata.testing.rules import Rule, ToolCall
from cantata.testing.server import ScriptedModels

__all__ = ["Rule", "ScriptedModels", "ToolCall"]
