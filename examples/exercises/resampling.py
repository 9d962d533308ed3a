"""How far off must a draft be before particles are resampled?

Eight particles draft two tokens each from q, a mixture of the target's law and a uniform one. Their weights p / q
spread as q drifts; when their effective sample size falls below half their number, they are resampled. A peaked target
spreads them sooner, for the tokens that it likes are then drafted least.
"""

import torch

from specdec.analysis import chi_square, effective_sample_size

P = torch.tensor([0.40, 0.25, 0.15, 0.08, 0.05, 0.03, 0.02, 0.02])
FAR = torch.full((8,), 0.125)
PARTICLES, DRAFTED = 8, 2


def weights_of_a_round(q: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
    """`[particles]`: how much more likely each drafted block is under the target than under the draft."""
    weights = []
    for _ in range(PARTICLES):
        block = [int(torch.multinomial(q, 1, generator=chance)) for _ in range(DRAFTED)]
        torch.multinomial(P, 1, generator=chance)  # the token of the target's own that follows, of weight 1
        weights.append(torch.stack([P[token] / q[token] for token in block]).prod())
    return torch.stack(weights)


def main() -> None:
    chance = torch.Generator().manual_seed(0)
    for tenths in (0, 2, 4, 6, 8, 10):
        drift = tenths / 10
        q = (1 - drift) * P + drift * FAR
        weights = weights_of_a_round(q, chance)
        size = effective_sample_size(weights)
        resampled = bool(size < PARTICLES / 2)
        if resampled:
            torch.multinomial(weights, PARTICLES, replacement=True, generator=chance)  # who is copied
        print(f"drift {drift:.1f}: divergence {chi_square(P, q):.3f}, ESS {size:5.2f}, resampled {resampled}")


if __name__ == "__main__":
    main()
