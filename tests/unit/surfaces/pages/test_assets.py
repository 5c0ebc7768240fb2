"""The files of the run pages, as they are sent."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from cantata.surfaces.pages import assets

STATIC = Path(str(files("cantata.surfaces.pages") / "static"))


def test_the_document_knows_where_everything_is() -> None:
    text = assets.index(
        api="", base="/pages", flower='http://x/"><script>', trace="http://t/{trace_id}?s='{span_id}&a"
    ).body.decode()

    assert 'data-api=""' in text
    assert 'data-base="/pages"' in text
    assert "&quot;&gt;&lt;script&gt;" in text
    assert 'data-trace="http://t/{trace_id}?s=&#x27;{span_id}&amp;a"' in text
    assert "{{" not in text


def test_a_document_of_another_place_is_another() -> None:
    here, there = (assets.index(api="/api", base=base) for base in ("/pages/", "/runs"))

    assert here.etag != there.etag
    assert b'"/pages/static/' in here.body


def test_every_file_that_the_document_loads_is_there() -> None:
    text = assets.index(api="", base="/pages").body.decode()
    named = [word.split('"')[0] for word in text.split('"/pages/static/')[1:]]

    assert named
    for path in named:
        found = assets.asset(path)
        assert found is not None, path
        assert found.body == (STATIC / path).read_bytes()


def test_every_file_has_a_media_type_that_browsers_take() -> None:
    kinds = {
        found.suffix: assets.asset(str(found.relative_to(STATIC)))
        for found in STATIC.rglob("*.*")
        if found.name != "index.html"
    }

    assert {
        suffix: found.media_type for suffix, found in kinds.items() if found and suffix in (".js", ".css", ".svg")
    } == {
        ".js": "text/javascript; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".svg": "image/svg+xml",
    }


@pytest.mark.parametrize("path", ["", "nope.js", "../runs.py", "index.html", "vendor", "/etc/passwd", "..%2fruns.py"])
def test_nothing_else_is_sent(path: str) -> None:
    assert assets.asset(path) is None


def test_nothing_of_another_place_may_be_loaded_or_frame_the_pages() -> None:
    policy = assets.HEADERS["Content-Security-Policy"]

    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
