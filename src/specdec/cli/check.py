"""`specdec check`: hold one strategy to the conformance kit."""

from __future__ import annotations

import typer

from specdec.plugins.manager import discover

__all__ = ["check"]


def check(
    name: str = typer.Argument(help="Name of the strategy, or role/name."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    max_examples: int = typer.Option(100, "--max-examples", min=1, help="Examples that each law check tries."),
    time_limit: float = typer.Option(60.0, "--time-limit", min=0.1, help="Seconds after which a check is stopped."),
) -> None:
    """Check a strategy's tiny example by the conformance kit; status 1 if anything failed."""
    strategy = discover().registry.find(name)
    # Imported here because the command line starts without torch.
    import torch

    from specdec.testing.checks import check as check_part

    torch.set_num_threads(1)  # for tiny tensors more threads cost more than they bring

    def make(vocab_size: int) -> object:
        return strategy.load_example()(vocab_size)

    make.__name__ = str(strategy)
    report = check_part(make, max_examples=max_examples, time_limit=time_limit, strategy=strategy)
    typer.echo(report.to_json() if as_json else str(report))
    if not report.ok:
        raise typer.Exit(1)
