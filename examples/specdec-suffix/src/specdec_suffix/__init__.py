"""A suffix-automaton drafter for specdec: `specdec_suffix.drafter.Suffix`, registered as `suffix`."""
