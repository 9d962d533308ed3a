"""Why does an EAGLE head read the token one step ahead of the feature?

After one feature the model may say one token or another, and each leads to another next feature. A head that reads the
feature alone has one answer for both, so on one of them it is off by half of what lies between them, however it was
trained. With the token beside the feature there is one right answer, and it can be learnt.

The model here is small enough to see that: its next feature is `A f + B e`, e being the embedding of the token said.
"""

import torch

WIDTH, TOKENS, PAIRS = 6, 4, 200


def table(rows: int, columns: int, phase: float) -> torch.Tensor:
    """Fixed numbers without a pattern that would matter."""
    cells = torch.arange(rows * columns, dtype=torch.float64).view(rows, columns)
    return torch.sin(cells * cells * 0.7 + cells * 1.3 + phase)


A, B, EMBED = 0.4 * table(WIDTH, WIDTH, 0.1), 0.5 * table(WIDTH, WIDTH, 0.5), table(TOKENS, WIDTH, 0.9)


def following(features: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The model's next features `[n, width]` after `features` `[n, width]` and the tokens said `[n]`."""
    return features @ A.T + EMBED[tokens] @ B.T


def taught(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The best linear head: least squares from inputs to targets, applied to the inputs."""
    inputs = torch.cat([inputs, torch.ones(len(inputs), 1, dtype=torch.float64)], 1)
    return inputs @ (torch.linalg.pinv(inputs) @ targets)


def main() -> None:
    feature = table(1, WIDTH, 0.3).expand(2, WIDTH)
    branches = torch.tensor([0, 1])
    targets = following(feature, branches)
    between = float(torch.dist(targets[0], targets[1]))
    print(f"one feature, two tokens: next features lie {between:.4f} apart")
    blind = taught(feature, targets)
    aware = taught(torch.cat([EMBED[branches], feature], 1), targets)
    print(f"without the token: off by {float((blind - targets).norm(dim=1).max()):.4f} on the worse branch")
    print(f"with the token:    off by {float((aware - targets).norm(dim=1).max()):.4f}")

    features, said = table(PAIRS, WIDTH, 0.2), torch.arange(PAIRS) * 7 // 3 % TOKENS
    targets = following(features, said)
    spread = (targets - targets.mean(0)).square().sum()
    for name, inputs in (("without", features), ("with", torch.cat([EMBED[said], features], 1))):
        left = float((taught(inputs, targets) - targets).square().sum() / spread)
        print(f"{PAIRS} features, {name} the token: {left:.1%} of the variance cannot be explained")


if __name__ == "__main__":
    main()
