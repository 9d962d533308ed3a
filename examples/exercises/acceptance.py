"""How often is a drafted token kept, for a draft that is a little off and for one that is far off?

The chance is the sum of min(p, q), which is 1 less the total variation distance of the two laws.
"""

from specdec.analysis import acceptance_rate, total_variation

P = [0.5, 0.3, 0.2]
DRAFTS = {"close": [0.45, 0.35, 0.20], "far": [0.1, 0.1, 0.8]}


def main() -> None:
    for name, q in DRAFTS.items():
        print(f"{name:>5}: alpha {acceptance_rate(P, q):.3f}, 1 - TV {1 - total_variation(P, q):.3f}")


if __name__ == "__main__":
    main()
