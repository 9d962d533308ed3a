"""Format: the layouts in which drafters are published, those that become a head of ours and those that cannot."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FORMATS", "Format"]


@dataclass(frozen=True)
class Format:
    """One layout. kind: of the head that it becomes; None where there is none, and then `why` says why.

    title: what it is called, and who writes it.
    """

    name: str
    title: str
    kind: str | None = None
    why: str = ""


_BLOCK = "it fills a block of masked positions in one pass, and specdec has no head that does"
_LM = "it is a language model of its own: load it with the drafter 'draft-model'"

_TABLE = (
    Format("specdec", "a head that specdec saved"),
    Format("medusa-1", "Medusa v0.1, heads with LM heads of their own", "medusa"),
    Format("medusa-v2", "Medusa 'version 2', heads that share the target's LM head", "medusa"),
    Format("medusa-2", "Medusa-2, a whole model with its heads", "medusa"),
    Format("medusa-vllm", "Medusa as vLLM names it", "medusa"),
    Format("medusa-modelopt", "Medusa as ModelOpt names it", "medusa"),
    Format("eagle", "EAGLE-1, EAGLE-2 or HASS (one layout)", "eagle"),
    Format("eagle-speculators", "EAGLE-1 as speculators up to 0.2 or an early vLLM wrote it", "eagle"),
    Format("eagle3", "EAGLE-3 (SafeAILab, SpecForge, AngelSlim, ModelOpt, nebius, vLLM names)", "eagle3"),
    Format("eagle3-deepspec", "EAGLE-3 as DeepSpec writes it", "eagle3"),
    Format("eagle3-speculators", "EAGLE-3 as speculators writes it", "eagle3"),
    Format("eagle3-mla", "EAGLE-3 with multi-head latent attention (DeepSeek, Kimi)", None,
           "specdec's heads have Llama or Qwen3 attention; latent attention is not among them"),
    Format("eagle3-gemma", "EAGLE-3 with Gemma layers", None,
           "Gemma's norms and soft caps are not those of specdec's heads"),
    Format("eagle3-plain", "a ModelOpt EAGLE head without fused states (use_aux_hidden_state false)", None,
           "it is neither EAGLE's layer nor EAGLE-3's: it has no fc"),
    Format("eagle3-parallel", "ModelOpt EAGLE-3 with parallel draft heads", None,
           "its parallel heads guess several tokens a step, and specdec has no head that does"),
    Format("p-eagle", "P-EAGLE, EAGLE-3 that drafts all depths in one pass", None,
           "it drafts from a trained mask state, and specdec has no head that does"),
    Format("dflash", "DFlash, a block drafter", None, _BLOCK),
    Format("dflash-2", "DFlash-2, a block drafter with a selector", None, _BLOCK),
    Format("dspark-deepspec", "DSpark as DeepSpec writes it, a block drafter with a Markov head", None, _BLOCK),
    Format("dspark-specforge", "DSpark as SpecForge writes it, a block drafter with a Markov head", None, _BLOCK),
    Format("dspark-speculators", "DSpark as speculators writes it, a block drafter with a Markov head", None, _BLOCK),
    Format("domino", "Domino, a block drafter with a recurrent refiner", None, _BLOCK),
    Format("xpress", "Xpress, a block drafter that refines itself", None, _BLOCK),
    Format("hydra", "Hydra, Medusa heads that see each other's guesses", None,
           "each of its heads reads the tokens of those before it, which Medusa heads do not"),
    Format("redrafter", "ReDrafter, a recurrent drafter", None,
           "its step is a small recurrent network, and specdec has no head of that kind"),
    Format("mlp", "an MLP speculator", None, "its step is an MLP over tokens, and specdec has no head of that kind"),
    Format("mtp", "multi-token-prediction layers of the target's own checkpoint", None,
           "these layers are of the target's own architecture and have caches of their own, one a depth; specdec has "
           "no head that runs them"),
    Format("mtp-speculators", "multi-token-prediction layers as speculators writes them", None,
           "these layers are of the target's own architecture; specdec has no head that runs them"),
    Format("language-model", "an ordinary language model", None, _LM),
    Format("unknown", "no layout that specdec knows", None, "neither its config nor its tensors say what it is"),
)  # fmt: skip

FORMATS = {each.name: each for each in _TABLE}
