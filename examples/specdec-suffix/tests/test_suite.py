"""The conformance kit of specdec on this drafter."""

from __future__ import annotations

from specdec.testing import DrafterSuite

from specdec_suffix.drafter import Suffix


class TestSuffix(DrafterSuite):
    """The kit proves that the output law is the model's, whatever this drafter guesses."""

    def make(self, vocab_size):
        return Suffix(min_match=1)
