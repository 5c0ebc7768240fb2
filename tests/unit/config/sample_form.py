"""A form of a document, with a field of each kind."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue, model_validator

from cantata.values import Value


class Dish(Value):
    name: str
    kind: Literal["soup", "main", "sweet"] = "main"
    price: float = Field(default=1, gt=0, le=100)
    pieces: int = Field(default=1, ge=1)
    warm: bool = True
    parts: list[str] = Field(default=["x"], min_length=1)
    extra: dict[str, JsonValue] = Field(default_factory=dict)
    spice_level: int | None = Field(default=None, alias="spice")
    side: Dish | None = None
    code: str = Field(default="a:b", pattern="^[a-z]:[a-z]$", description="two letters with a colon")

    @model_validator(mode="after")
    def _soup_is_warm(self) -> Dish:
        if self.kind == "soup" and not self.warm:
            raise ValueError("a soup is warm")
        return self


class Menu(Value):
    dishes: dict[str, Dish] = Field(default_factory=dict)
    days: list[Dish] = Field(default_factory=list)
    hidden: str = ""
