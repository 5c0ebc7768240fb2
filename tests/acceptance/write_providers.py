"""`python -m tests.acceptance.write_providers`: writes the table of LiteLLM's providers, which takes seconds to ask LiteLLM for."""

from __future__ import annotations

from pathlib import Path

from cantata_workers.models.llm import library

FILE = Path(__file__).parents[2] / "orchestrator" / "cantata" / "config" / "providers.txt"
OURS = {"local"}


def known() -> set[str]:
    """What the name of a model may begin with: providers, and the owners of models that LiteLLM finds a provider for."""
    library.load()
    import litellm  # noqa: PLC0415  # after `load`, which keeps it from the network
    from litellm.llms.openai_like.json_loader import JSONProviderRegistry  # noqa: PLC0415

    providers = {str(getattr(each, "value", each)) for each in litellm.provider_list} | set(
        JSONProviderRegistry.list_providers()
    )
    named = {str(name).partition("/")[0] for name in litellm.replicate_models if "/" in str(name)}
    return providers | named | OURS


def text() -> str:
    """The file as it should be."""
    return "".join(f"{name}\n" for name in sorted(known()))


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
