"""Why are the worthiest nodes of a tree a tree?

A node's value is the product of the confidences along its path. No confidence exceeds 1, so no node is worth more than
its parent, and whoever is among the worthiest has its parent among them.
"""

from specdec.analysis import best_nodes, path_values

DEPTH, BRANCH, EXPANDED = 4, 2, 3  # levels, children a node, nodes that get children at each level


def confidences(depth: int) -> list[float]:
    """What a drafter gives the two likeliest tokens below a node at `depth`."""
    base = 0.7 - 0.1 * depth
    return [base, base - 0.25]


def expanded() -> tuple[list[int], list[float]]:
    """Parents and confidences of a tree that grows below its worthiest nodes, level by level."""
    parents: list[int] = []
    chance: list[float] = []
    frontier = [-1]
    for depth in range(DEPTH):
        level = []
        for parent in frontier:
            for confidence in confidences(depth)[:BRANCH]:
                parents.append(parent)
                chance.append(confidence)
                level.append(len(parents) - 1)
        values = path_values(chance, parents)
        frontier = sorted(level, key=lambda node: -float(values[node]))[:EXPANDED]
    return parents, chance


def main() -> None:
    parents, chance = expanded()
    values = path_values(chance, parents)
    monotone = all(parent < 0 or values[node] <= values[parent] for node, parent in enumerate(parents))
    print("nodes                               :", len(parents))
    print("no node is worth more than its parent:", monotone)
    trees = []
    for count in range(1, len(parents) + 1):
        kept = set(best_nodes(values, count).tolist())
        trees.append(all(parents[node] < 0 or parents[node] in kept for node in kept))
    print("the worthiest 1, 2, ... are a tree   :", all(trees))


if __name__ == "__main__":
    main()
