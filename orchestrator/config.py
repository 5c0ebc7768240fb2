from types import SimpleNamespace
import os
def settings(): return SimpleNamespace(redis_url=os.environ.get("REDIS_URL"), broker_url=None)
def find(x): return None
