"""How many tokens should a chain have, if more of them cost more?

Tokens a pass only grow with the length gamma; speed has a peak, the later the cheaper a drafted token is.
"""

import torch

from specdec.analysis import best_gamma, expected_accepted_tokens, speculative_speedup

ALPHA, C = 0.85, 0.15


def main() -> None:
    gammas = torch.arange(1, 11)
    tokens = expected_accepted_tokens(ALPHA, gammas)
    speeds = speculative_speedup(ALPHA, gammas, C)
    for gamma, emitted, speed in zip(gammas, tokens, speeds, strict=True):
        print(f"gamma {gamma:2d}: {emitted:.2f} tokens a pass, {speed:.2f} times as fast")
    for c in (0.05, C, 0.4):
        print(f"cost {c:.2f}: gamma {best_gamma(ALPHA, c)} is best")


if __name__ == "__main__":
    main()
