"""What the failures of a model call say, without a call."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from cantata.operation.logs.secrets import redact, secrets_in
from cantata_workers.models.llm.failures import ERRORS, Failure, ProviderInfo, explain, retry_after_s

MODEL = "openai/gpt-4o-mini"
NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
NOW_S = int(NOW.timestamp())


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, "model_bad_request", False), (401, "model_auth", False), (403, "model_auth", False), (404, "model_unknown", False),
        (402, "model_quota", False), (408, "model_timeout", True), (409, "model_unavailable", True), (422, "model_bad_request", False),
        (425, "model_unavailable", True), (429, "rate_limited", True),
        (500, "model_unavailable", True), (502, "model_unavailable", True), (504, "model_timeout", True), (529, "model_unavailable", True),
    ],
)  # fmt: skip
def test_the_status_of_an_answer_determines_the_error(status: int, code: str, retryable: bool) -> None:
    error = explain(Failure(MODEL, "said", status=status, headers={"server": "x"}), ProviderInfo(), now=NOW)

    assert (error.code, error.retryable) == (code, retryable)
    assert f"({status}): said" in str(error)


def test_a_package_that_is_missing_is_not_tried_again() -> None:
    error = explain(
        Failure("vertex_ai/gemini", "No module named 'google'", status=500, is_broken=True), ProviderInfo(), now=NOW
    )

    assert (error.code, error.retryable) == ("model_error", False)


def test_litellm_around_the_words_of_a_provider_is_taken_off() -> None:
    text = "litellm.Timeout: Timeout Error: OpenAIException - too late\nTraceback (most recent call last):\n  File"

    error = explain(Failure(MODEL, text, status=504, headers={"server": "x"}), ProviderInfo(), now=NOW)

    assert str(error) == "model 'openai/gpt-4o-mini': the provider timed out (504): too late"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("7", 7.0), (" 0.5 ", 0.5), ("-3", None), ("inf", None), ("nan", None), ("1e3", None), ("soon", None), ("", None), ("\u0667", None),
        (str(NOW_S + 30), 30.0), (str(NOW_S - 30), 0.0), (f"{NOW_S + 30}000", 30.0), (f"{NOW_S + 30}.5", 30.5), (str(NOW_S * 1000), 0.0),
        ("3600", 3600.0), ("86400000", None), ("9" * 20, None), ("9" * 400, None), ("4102444800", None),
        ("Fri, 20 Nov 99999 12:01:30 GMT", None), ("Fri, 20 Nov 9999 12:01:30 GMT", None),
        ("Fri, 20 Nov 2026 12:01:30 GMT", 90.0), ("Fri, 20 Nov 2026 11:00:00 GMT", 0.0),
    ],
)  # fmt: skip
def test_retry_after_is_read_as_seconds_or_as_a_date(value: str, expected: float | None) -> None:
    assert retry_after_s({"Retry-After": value}, NOW) == expected


def test_the_more_exact_header_counts() -> None:
    assert retry_after_s({"retry-after-ms": "1500", "Retry-After": "2"}, NOW) == 1.5
    assert retry_after_s({"retry-after-ms": "soon", "Retry-After": "2"}, NOW) == 2


@pytest.mark.parametrize(
    ("status", "reason", "text", "code"),
    [
        (429, "insufficient_quota insufficient_quota", "You ran out.", "model_quota"),
        (400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API.", "model_quota"),
        (429, "RESOURCE_EXHAUSTED", "You exceeded your current quota, please retry in 34 s", "rate_limited"),
        (400, "context_length_exceeded", "too big", "model_context"),
        (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", "model_context"),
        (400, "", "The input token count (1200000) exceeds the maximum number of tokens allowed", "model_context"),
        (400, "content_filter", "The response was filtered", "content_filter"),
        (400, "", "bad temperature", "model_bad_request"),
    ],
)
def test_the_providers_own_code_says_more_than_the_status(status: int, reason: str, text: str, code: str) -> None:
    error = explain(Failure(MODEL, text, reason, status, headers={"server": "x"}), ProviderInfo(), now=NOW)

    assert error.code == code
    assert error.retryable == ERRORS[code].is_retryable
    assert text in str(error)


def test_what_is_no_secret_is_not_redacted() -> None:
    secrets = secrets_in(
        {
            "MAX_TOKENS": "12345678",
            "HOME": "/home/someone",
            "X_API_KEY": "short",
            "extra_headers": {"Authorization": "Bearer q" * 2},
        }
    )

    assert secrets == ["Bearer qBearer q"]
    assert (
        redact("the task-force asks to skip 12345678 risk-assessments", secrets)
        == "the task-force asks to skip 12345678 risk-assessments"
    )
