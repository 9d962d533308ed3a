"""When does one more head stop to pay?

A head counts only where all heads before it are right, so what the last ones add shrinks faster than their accuracy.
"""

from specdec.analysis import expected_accepted_length

HEADS = 5


def main() -> None:
    for decay in (0.9, 0.7, 0.5):
        accuracy = [decay**head for head in range(1, HEADS + 1)]
        shown = ", ".join(f"{share:.2f}" for share in accuracy)
        print(f"decay {decay}: heads {shown} give {expected_accepted_length(accuracy):.2f} tokens a pass")
    accuracy = [0.7**head for head in range(1, HEADS + 1)]
    last = expected_accepted_length(accuracy) - expected_accepted_length(accuracy[:-1])
    print(f"at decay 0.7 head {HEADS} adds {last:.3f} tokens")


if __name__ == "__main__":
    main()
