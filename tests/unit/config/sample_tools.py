"""A module of functions with `@tool`, in each way in which it may be written."""

from __future__ import annotations

DECORATED_MODULE = """
import functools
import cantata
import cantata as score
from langchain.tools import tool as other
from cantata import tool
from cantata.config.user_code import tool_decorator
from cantata.config.user_code.tool_decorator import tool as mark

LIMIT = 3

@tool
def bare(): ...

@functools.cache
@tool(queue="gpu", timeout_s=2.5, retries=-0, cheap=None, name="anything", description="Draws "
      "well.")
def draw(): ...

@score.tool(at_most_once=True, hidden=("user_id", "day"))
async def charge(user_id, cents, *, day="today"): ...

@cantata.tool(retries=1)
def one(): ...

@mark(retries=2)
def two(): ...

@tool_decorator.tool(retries=3)
def three(): ...

@other(retries=4)
def foreign(): ...

wrapped = tool(retries=5)(print)

@tool(timeout_s=LIMIT * 2)
def counted(): ...

@tool(**LIMIT)
def spread(): ...

@tool(quue="gpu", timeout_s="long")
def misspelt(): ...

@tool(hidden=["limit"])
def searches(query, limit, **more): ...

def early(): ...
early = tool(retries=6)(early)
"""
