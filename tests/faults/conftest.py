"""The Valkey of the integration tests, for the checker's own tests."""

from tests.integration.conftest import valkey

__all__ = ["valkey"]
