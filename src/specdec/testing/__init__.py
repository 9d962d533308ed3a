"""Tools that prove a part keeps the target's law: a tabular target, and enumeration of every random branch."""
