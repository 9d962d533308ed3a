"""From which block size on does a pool of n-grams save passes over Jacobi decoding?

The text goes round in a cycle of three tokens. A block of guesses that is refined pass by pass never settles on it; an
n-gram that was seen once is right every time. Blocks of one token leave no room for a guess. All three decoders emit
the same text.
"""

from specdec.core.engine import Generation, Parts
from specdec.core.interfaces import Drafter
from specdec.core.rng import TorchRng
from specdec.core.sampling import Sampling
from specdec.core.state import Row
from specdec.drafters import Jacobi, Lookahead, NoDraft
from specdec.schedulers import Fixed
from specdec.testing.tabular import TabularTarget
from specdec.verifiers import Greedy

AFTER = {3: 1, 1: 2, 2: 3}
TOKENS = 30


def passes(drafter: Drafter) -> tuple[int, list[int]]:
    """Passes of the target over the first tokens after the prompt, and these tokens."""
    target = TabularTarget(lambda text: [float(token == AFTER[text[-1]]) for token in range(4)], 4)
    row = Row(0, [3], Sampling(), max_length=1 + TOKENS)
    generation = Generation(Parts(target, drafter, Greedy(), Fixed(16)), (row,), TorchRng(0), TorchRng(1))
    return sum(1 for _ in generation.rounds()), row.new_tokens


def main() -> None:
    _, text = passes(NoDraft())
    for size in range(1, 6):
        jacobi, one = passes(Jacobi(block_size=size))
        lookahead, other = passes(Lookahead(form="simple", ngram=3, block_size=size))
        assert one == other == text
        print(f"block size {size}: Jacobi {jacobi} passes, lookahead {lookahead} passes")


if __name__ == "__main__":
    main()
