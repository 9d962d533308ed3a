"""Analysis: the mathematics of acceptance and speed, as functions. Each module is imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec._lazy import lazy_exports

if TYPE_CHECKING:
    from specdec.analysis.acceptance import (
        acceptance_rate,
        residual_distribution,
        sibling_acceptance,
        total_variation,
    )
    from specdec.analysis.chains import (
        best_gamma,
        expected_accepted_length,
        expected_accepted_tokens,
        speculative_speedup,
    )
    from specdec.analysis.particles import (
        block_chi_square,
        chi_square,
        effective_sample_size,
        smc_error_bound,
        smc_speedup,
    )
    from specdec.analysis.roofline import (
        Machine,
        ModelSize,
        cost_ratio,
        free_tokens,
        pass_seconds,
        roofline_speedup,
    )
    from specdec.analysis.trees import (
        best_nodes,
        expected_tree_tokens,
        fixed_value_mass,
        path_values,
        value_mass,
    )

__all__ = [
    "Machine",
    "ModelSize",
    "acceptance_rate",
    "best_gamma",
    "best_nodes",
    "block_chi_square",
    "chi_square",
    "cost_ratio",
    "effective_sample_size",
    "expected_accepted_length",
    "expected_accepted_tokens",
    "expected_tree_tokens",
    "fixed_value_mass",
    "free_tokens",
    "pass_seconds",
    "path_values",
    "residual_distribution",
    "roofline_speedup",
    "sibling_acceptance",
    "smc_error_bound",
    "smc_speedup",
    "speculative_speedup",
    "total_variation",
    "value_mass",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Machine": "specdec.analysis.roofline",
        "ModelSize": "specdec.analysis.roofline",
        "acceptance_rate": "specdec.analysis.acceptance",
        "best_gamma": "specdec.analysis.chains",
        "best_nodes": "specdec.analysis.trees",
        "block_chi_square": "specdec.analysis.particles",
        "chi_square": "specdec.analysis.particles",
        "cost_ratio": "specdec.analysis.roofline",
        "effective_sample_size": "specdec.analysis.particles",
        "expected_accepted_length": "specdec.analysis.chains",
        "expected_accepted_tokens": "specdec.analysis.chains",
        "expected_tree_tokens": "specdec.analysis.trees",
        "fixed_value_mass": "specdec.analysis.trees",
        "free_tokens": "specdec.analysis.roofline",
        "pass_seconds": "specdec.analysis.roofline",
        "path_values": "specdec.analysis.trees",
        "residual_distribution": "specdec.analysis.acceptance",
        "roofline_speedup": "specdec.analysis.roofline",
        "sibling_acceptance": "specdec.analysis.acceptance",
        "smc_error_bound": "specdec.analysis.particles",
        "smc_speedup": "specdec.analysis.particles",
        "speculative_speedup": "specdec.analysis.chains",
        "total_variation": "specdec.analysis.acceptance",
        "value_mass": "specdec.analysis.trees",
    },
)
