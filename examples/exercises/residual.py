"""Why does the residual make the output exact?

A token comes out because it was drafted and kept, in the share min(p, q), or because another one was rejected and it
was drawn from the residual. Both shares together are p, whatever q is.
"""

import torch

from specdec.analysis import acceptance_rate, residual_distribution

P = torch.tensor([0.5, 0.2, 0.2, 0.1], dtype=torch.float64)
Q = torch.tensor([0.2, 0.4, 0.3, 0.1], dtype=torch.float64)


def main() -> None:
    kept = torch.minimum(P, Q)
    replaced = (1 - acceptance_rate(P, Q)) * residual_distribution(P, Q)
    print("kept     ", [round(share, 3) for share in kept.tolist()])
    print("replaced ", [round(share, 3) for share in replaced.tolist()])
    print("together ", [round(share, 3) for share in (kept + replaced).tolist()])
    print("is p     ", torch.allclose(kept + replaced, P, atol=1e-12))


if __name__ == "__main__":
    main()
