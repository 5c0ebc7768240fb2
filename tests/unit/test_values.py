"""What a function is told of memory where there is no worker."""

from __future__ import annotations

import pytest

from cantata import ToolContext


def test_a_context_that_no_worker_gave_says_how_a_test_gives_it_a_memory() -> None:
    context = ToolContext(run_id="r", step_id="s", attempt=1)

    assert context.session is None
    with pytest.raises(NotImplementedError, match="only the context that a worker gives has a memory"):
        _ = context.memory
