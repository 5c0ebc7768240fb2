"""Who sends a request, by its headers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cantata.surfaces.http.origins import foreign_page

HOST = {"host": "127.0.0.1:8300"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        HOST,
        {**HOST, "origin": "http://127.0.0.1:8300", "sec-fetch-site": "same-origin"},
        {**HOST, "sec-fetch-site": "none"},
    ],
)
def test_a_program_and_our_own_page_are_no_other_page(headers: Mapping[str, str]) -> None:
    assert foreign_page(headers) is None


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8301", "null", "http://[", "", "http://evil.example"])
@pytest.mark.parametrize("host", [HOST, {}])
def test_an_origin_that_is_not_ours_or_none_at_all_is_another_page(origin: str, host: Mapping[str, str]) -> None:
    assert foreign_page({**host, "origin": origin}) == f"a page of {origin!r}"


def test_what_a_browser_says_of_another_site_counts_without_an_origin() -> None:
    assert foreign_page({**HOST, "sec-fetch-site": "cross-site"}) == "another page"
