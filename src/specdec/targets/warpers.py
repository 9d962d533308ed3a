"""The three common warpers of transformers from their options."""

from __future__ import annotations

from specdec.core.sampling import Processor


def warpers(
    temperature: float | None = None, top_k: int | None = None, top_p: float | None = None
) -> tuple[Processor, ...] | None:
    """Processors in the order of `generate`; None where no option is given, so that a caller may mirror another.

    Temperature 0 is no warper: it makes a law one-hot, which the caller does.
    """
    if temperature is None and top_k is None and top_p is None:
        return None
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    made: list[Processor] = []
    if temperature not in (None, 0, 1.0):
        made.append(TemperatureLogitsWarper(float(temperature)))  # type: ignore[arg-type]
    if top_k is not None:
        made.append(TopKLogitsWarper(top_k))
    if top_p is not None and top_p < 1.0:
        made.append(TopPLogitsWarper(top_p))
    return tuple(made)
