"""Python tools of the demo: plain functions with plain JSON in and out."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TypedDict

HERE = Path(__file__).parent


class SupportMessage(TypedDict):
    """One support message with the label a person gave it."""

    id: str
    text: str
    label: str


def load(limit: int | None = None) -> dict[str, list[SupportMessage]]:
    """The support messages of the demo, or the first `limit` of them."""
    messages: list[SupportMessage] = json.loads((HERE / "messages.json").read_text())
    return {"messages": messages[:limit]}


def count(messages: list[SupportMessage], answers: list[dict[str, str] | None]) -> dict[str, object]:
    """How often each label was given and how many answers agree with the person's label."""
    given = [answer["label"] if answer else None for answer in answers]
    rows = [
        {
            "id": message["id"],
            "text": message["text"],
            "expected": message["label"],
            "label": label,
            "right": label == message["label"],
        }
        for message, label in zip(messages, given, strict=True)
    ]
    return {
        "total": len(rows),
        "right": sum(1 for row in rows if row["right"]),
        "by_label": dict(sorted(Counter(label for label in given if label).items())),
        "rows": rows,
    }


def report(counted: dict[str, object]) -> str:
    """The count as a sentence."""
    labels = counted["by_label"]
    assert isinstance(labels, dict)
    shares = ", ".join(f"{label} {number}" for label, number in labels.items())
    return f"{counted['right']} of {counted['total']} messages labelled as a person did. Given: {shares}."


def order_status(order: str) -> str:
    """Look up where an order is.

    Args:
        order: the number of the order, such as A-1042
    """
    return {"A-1042": "left the warehouse on Monday, arrives on Thursday"}.get(order, "not known")


def shop_hours() -> str:
    """Look up when the shop is open."""
    return "open from 9 to 18, Monday to Saturday"


def take_note(message: str) -> str:
    """What the agents of the counter do with a message."""
    return f"noted: {message}"
