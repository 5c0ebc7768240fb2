"""What the failures of a model call say, without a call."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from cantata.observability.logs.secrets import redact, secrets_in
from cantata.workers.models.llm.failures import Failure, ProviderInfo, explain, retry_after_s

MODEL = "openai/gpt-4o-mini"
NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, "model_bad_request", False), (401, "model_auth", False), (403, "model_auth", False), (404, "model_unknown", False),
        (408, "model_timeout", True), (409, "model_bad_request", False), (422, "model_bad_request", False), (429, "rate_limited", True),
        (500, "model_unavailable", True), (502, "model_unavailable", True), (504, "model_timeout", True), (529, "model_unavailable", True),
    ],
)  # fmt: skip
def test_the_status_of_an_answer_determines_the_error(status: int, code: str, retryable: bool) -> None:
    error = explain(Failure(MODEL, "said", status, headers={"server": "x"}), ProviderInfo(), now=NOW)

    assert (error.code, error.retryable) == (code, retryable)
    assert f"({status}): said" in str(error)


def test_a_package_that_is_missing_is_not_tried_again() -> None:
    error = explain(Failure("vertex_ai/gemini", "No module named 'google'", 500, is_broken=True), ProviderInfo(), now=NOW)

    assert (error.code, error.retryable) == ("model_error", False)


def test_litellm_around_the_words_of_a_provider_is_taken_off() -> None:
    text = "litellm.Timeout: Timeout Error: OpenAIException - too late\nTraceback (most recent call last):\n  File"

    error = explain(Failure(MODEL, text, 504, headers={"server": "x"}), ProviderInfo(), now=NOW)

    assert str(error) == "model 'openai/gpt-4o-mini': the provider timed out (504): too late"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("7", 7.0), ("0.5", 0.5), ("-3", None), ("inf", None), ("soon", None),
        ("Fri, 20 Nov 2026 12:01:30 GMT", 90.0), ("Fri, 20 Nov 2026 11:00:00 GMT", 0.0),
    ],
)  # fmt: skip
def test_retry_after_is_read_as_seconds_or_as_a_date(value: str, expected: float | None) -> None:
    assert retry_after_s({"Retry-After": value}, NOW) == expected


def test_what_is_no_secret_is_not_redacted() -> None:
    secrets = secrets_in(
        {"MAX_TOKENS": "12345678", "HOME": "/home/someone", "X_API_KEY": "short", "extra_headers": {"Authorization": "Bearer q" * 2}}
    )

    assert secrets == ["Bearer qBearer q"]
    assert (
        redact("the task-force asks to skip 12345678 risk-assessments", secrets) == "the task-force asks to skip 12345678 risk-assessments"
    )
