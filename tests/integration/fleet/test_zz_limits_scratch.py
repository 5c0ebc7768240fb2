import time
from orchestrator.models.definitions import *
from tests.integration.fleet.test_limits_of_models import *
from tests.integration.fleet.test_limits_of_models import submit, results, waits

def test_dead_line(desk: Desk, model: str) -> None:
    for hold, n in ((1.0, 10), (0.3, 30)):
        desk.script({"delay_s": hold})
        client = desk.client(asks(model), limits=Limits(models={model: Rates(concurrency=1)}))
        runs = submit(client, n)
        until(lambda: all(waits(r) for r in runs[2:]), "waits")
        for r in runs: r.cancel()
        since = time.monotonic()
        late = client.submit_turn("late", agent="it")
        late.result(60)
        print("dead line", hold, n, time.monotonic() - since, [w.detail for w in waits(late)])
    assert 0
