"""Which variables of a developer's machine the suite does not see."""

from __future__ import annotations

from tests.conftest import FOREIGN

HOSTILE = {
    "REDIS_URL": "redis://nowhere.invalid", "CANTATA_NAMESPACE": "not valid", "CANTATA_HOME": "/nowhere", "OPENAI_API_KEY": "sk-real",
    "OPENAI_API_BASE": "http://nowhere.invalid", "LITELLM_MODE": "DEV", "HTTPS_PROXY": "http://nowhere.invalid",
    "http_proxy": "http://nowhere.invalid", "PYTEST_ADDOPTS": "--collect-only", "PYTEST_PLUGINS": "nowhere",
}  # fmt: skip


def test_what_a_shell_may_have_set_is_foreign_but_for_the_server_to_test_with() -> None:
    assert [name for name in (*HOSTILE, "PYTHONPATH", "no_proxy") if not FOREIGN.fullmatch(name)] == []
    assert [name for name in ("CANTATA_REDIS_SERVER", "PATH", "CI", "HOME") if FOREIGN.fullmatch(name)] == []
