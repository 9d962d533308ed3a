"""What comes out if every guess is wrong?

What plain decoding says: the target's own token follows wherever its guesses end, so a round emits at least one.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec import Decoder
from specdec.core.draft import Draft
from specdec.core.interfaces import StatelessDrafter
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Row
from specdec.schedulers import Fixed

PROMPT = torch.tensor([[2, 7, 1]])


class Garbage(StatelessDrafter):
    """Guesses token 0, four times, whatever the text is."""

    name = "garbage"

    def propose(self, row: Row, budget: Budget, rng: Rng, context: Context) -> Draft:
        return Draft.point([0] * min(4, budget.depth, budget.nodes))


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        initializer_range=0.2, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def main() -> None:
    model = tiny_model()
    plain = model.generate(PROMPT, max_new_tokens=12, do_sample=False)
    decoder = Decoder(model, Garbage(), scheduler=Fixed(4))
    out = decoder.generate(PROMPT, max_new_tokens=12, do_sample=False, return_dict_in_generate=True)
    rounds = decoder.stream(PROMPT, max_new_tokens=12, do_sample=False)
    print("same text            :", torch.equal(out.sequences, plain))
    print("tokens of each round :", sorted({len(event.rows[0].tokens) for event in rounds}))
    print("guesses kept         :", out.stats.accepted, "of", out.stats.judged)


if __name__ == "__main__":
    main()
