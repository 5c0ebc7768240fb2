"""`submit completion`: completion of commands and options in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> int:
    """Print the completion script of a shell.

    \b
    bash   in ~/.bashrc:  eval "$(submit completion bash)"
    zsh    in ~/.zshrc:   eval "$(submit completion zsh)"
    fish   once:          submit completion fish > ~/.config/fish/completions/submit.fish
    """
    found = get_completion_class(shell)
    assert found  # one of click's own
    click.echo(found(ctx.find_root().command, {}, "submit", "_SUBMIT_COMPLETE").source())
    return 0
