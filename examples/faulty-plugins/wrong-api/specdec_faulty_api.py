"""A plugin that was written against a plugin API which does not exist. The fault is meant."""

from specdec.plugins import Strategy, hookimpl


@hookimpl
def specdec_strategies() -> list[Strategy]:
    """A drafter for a later specdec."""
    return [
        Strategy(
            role="drafter",
            name="from-the-future",
            config="specdec_faulty_api:Config",
            build="specdec_faulty_api:Drafter",
            api=999,
        )
    ]
